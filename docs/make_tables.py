"""Writes the tables of cards and models into their pages; a test says when they are out of date.

Run it after a change of cards.toml or models.toml: python docs/make_tables.py
"""

import re
import tomllib
from pathlib import Path

from bertfit.memory.cards import CARDS_FILE, Card, cards, context_bytes
from bertfit.models.catalogue import KnownModel, known_models
from bertfit.units import GIB, MIB

DOCS = Path(__file__).parent

_KINDS = {
    "laptop": ("Laptops", "笔记本"),
    "desktop": ("Desktop cards", "台式机"),
    "workstation": ("Workstation cards", "工作站"),
    "data-centre": ("Data centres and rented cards", "数据中心与租用"),
}
_CARD_HEAD = (
    ("name", "名字"),
    ("on the box, GiB", "标称显存 GiB"),
    ("torch sees, GiB", "torch 看到的 GiB"),
    ("context, MiB", "上下文 MiB"),
    ("SMs", "SM 数"),
    ("compute capability", "计算能力"),
    ("bf16", "bf16"),
    ("16-bit TFLOP/s", "16 位 TFLOP/s"),
    ("fp32 TFLOP/s", "fp32 TFLOP/s"),
    ("GB/s", "GB/s"),
    ("last torch", "最后支持的 torch"),
)
_MODEL_HEAD = (
    ("model", "模型"),
    ("language", "语言"),
    ("type", "类型"),
    ("parameters", "参数量"),
    ("layers", "层数"),
    ("width", "宽度"),
    ("tokens", "最长词元"),
    ("licence", "许可"),
    ("sizes checked", "尺寸已核对"),
)
_SCORE_HEAD = (
    ("model", "模型"),
    ("task", "任务"),
    ("metric", "指标"),
    ("best", "最好"),
    ("mean", "平均"),
    ("source", "来源"),
)


def page(name: str, chinese: bool) -> Path:
    """Return the path of a page in one of the two languages."""
    return DOCS / f"{name}{'.zh-CN' if chinese else ''}.md"


def filled(text: str, tables: dict[str, str]) -> str:
    """Put every table between its two markers, `<!-- table: x -->` and `<!-- end -->`."""
    for name, table in tables.items():
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(
            pattern, lambda m, t=table: f"{m[1]}{t}\n{m[2]}", text, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"marker '{name}' stands {count} times")
    return text


def card_tables(chinese: bool) -> dict[str, str]:
    """Build the tables of the cards page."""
    tables = {
        f"cards-{kind}": _table(
            _CARD_HEAD, [_card_row(card) for card in cards() if card.kind == kind], chinese
        )
        for kind in _KINDS
    }
    rows = []
    with CARDS_FILE.open("rb") as file:
        for context in tomllib.load(file)["context"]:
            source = context["source"]
            rows.append(
                [
                    context.get("card", "?"),
                    context["cuda"],
                    str(context["mib"]),
                    context["what"],
                    f"[{source.rsplit('/', 1)[-1]}]({source})",
                ]
            )
    head = (
        ("card", "显卡"),
        ("CUDA", "CUDA"),
        ("MiB", "MiB"),
        ("what was measured", "测的是什么"),
        ("source", "来源"),
    )
    tables["contexts"] = _table(head, rows, chinese)
    return tables


def model_tables(chinese: bool) -> dict[str, str]:
    """Build the tables of the models page."""
    models = known_models()
    scores = [
        [
            _link(model),
            score.task,
            score.metric,
            f"{score.value:g}",
            "" if score.mean is None else f"{score.mean:g}",
            score.source.removeprefix("https://"),
        ]
        for model in models
        for score in model.scores
    ]
    return {
        "models": _table(_MODEL_HEAD, [_model_row(model) for model in models], chinese),
        "scores": _table(_SCORE_HEAD, scores, chinese),
    }


def main() -> None:
    """Rewrite the four pages."""
    for chinese in (False, True):
        for name, tables in (("cards", card_tables(chinese)), ("models", model_tables(chinese))):
            path = page(name, chinese)
            path.write_text(filled(path.read_text(encoding="utf-8"), tables), encoding="utf-8")


def _card_row(card: Card) -> list[str]:
    seen = f"{card.total_bytes / GIB:.2f}"
    return [
        f"[{card.slug}]({card.source})",
        f"{card.marketed_bytes / GIB:g}",
        f"~{seen}" if card.is_estimated else seen,
        f"{context_bytes(card.multiprocessors) // MIB}",
        str(card.multiprocessors),
        ".".join(map(str, card.compute_capability)),
        "yes" if card.bf16 else "",
        f"{card.tensor_flops / 1e12:.4g}",
        f"{card.fp32_flops / 1e12:.4g}",
        f"{card.memory_bandwidth / 1e9:.4g}",
        card.last_torch or "",
    ]


def _model_row(model: KnownModel) -> list[str]:
    config = model.config
    width = config.get("hidden_size", config.get("dim"))
    layers = config.get("num_hidden_layers", config.get("n_layers"))
    return [
        _link(model),
        model.language,
        str(config["model_type"]),
        f"{model.parameters / 1e6:.1f} M",
        str(layers),
        str(width),
        str(config["max_position_embeddings"]),
        model.licence,
        "yes" if model.checked else "",
    ]


def _link(model: KnownModel) -> str:
    return f"[{model.id}]({model.source})"


def _table(head: tuple[tuple[str, str], ...], rows: list[list[str]], chinese: bool) -> str:
    names = [pair[chinese] for pair in head]
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
