"""The door to transformers: what it lets in, what it refuses, and with which words."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig

from bertfit.data.batches import pad
from bertfit.engine.optim import Update, parameter_groups
from bertfit.engine.step import train_step
from bertfit.errors import ModelError
from bertfit.models.encoder import (
    build_classifier,
    load_classifier,
    load_tokenizer,
    save_pretrained,
)
from bertfit.models.hub import find_model
from bertfit.models.model_config import config_fields, max_positions
from bertfit.models.tagger import load_tagger, window_size
from bertfit.models.tiny import save_tokenizer, tiny_encoder
from tiny_models import SCHEME, random_window

FAMILIES: dict[str, dict[str, object]] = {
    "bert": {},
    "roberta": {"pad_token_id": 1},
    "xlm-roberta": {"pad_token_id": 1},
    "camembert": {"pad_token_id": 1},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "albert": {"embedding_size": 16},
    "electra": {"embedding_size": 16},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "modernbert": {"local_attention": 16, "global_attn_every_n_layers": 2},
    "ernie": {},
    "mpnet": {"pad_token_id": 1},
    "nezha": {},
}


def family(model_type: str) -> torch.nn.Module:
    fields: dict[str, object] = {
        "model_type": model_type,
        "vocab_size": 200,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 40,
        "pad_token_id": 0,
        **FAMILIES[model_type],
    }
    torch.manual_seed(0)
    return build_classifier(fields, SCHEME.tags, 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small BERT checkpoint with tokenizer."""
    path = tmp_path / "model"
    tiny = tiny_encoder(["anna lives in rome ."] * 2)
    save_tokenizer(tiny, tmp_path / "tokenizer")
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    save_pretrained(build_classifier(tiny.config, ("O", "B-X", "I-X")), tokenizer.fast, path)
    return path


@pytest.mark.parametrize("model_type", [name for name in FAMILIES if name != "nezha"])
def test_a_step_of_every_family_up_to_its_last_position(model_type: str) -> None:
    model = family(model_type).train()
    limit = max_positions(model.config)
    length = limit or 60
    update = Update(
        parameter_groups(model, [], learning_rate=1e-3, head_learning_rate=1e-3, weight_decay=0),
        max_grad_norm=1.0,
    )
    batch = pad([random_window(length, 1), random_window(5, 2)], model.config.pad_token_id)
    result = train_step(model, update, [batch], device=torch.device("cpu"), precision="fp32")
    assert float(result.refused) == 0.0 and 0.5 < float(result.loss) < 4.0
    if limit is not None and model_type != "modernbert":
        longer = pad([random_window(limit + 1, 3)], model.config.pad_token_id)
        with pytest.raises((IndexError, RuntimeError)):
            train_step(model, update, [longer], device=torch.device("cpu"), precision="fp32")


@pytest.mark.parametrize("model_type", [name for name in FAMILIES if name != "nezha"])
def test_padding_never_changes_the_logits_of_a_family(model_type: str) -> None:
    model = family(model_type).eval()
    window = random_window(12, 5)
    alone = pad([window], model.config.pad_token_id)
    with_other = pad([window, random_window(30, 6)], model.config.pad_token_id)
    with torch.no_grad():
        one = model(input_ids=torch.from_numpy(alone.input_ids)).logits[0]
        two = model(
            input_ids=torch.from_numpy(with_other.input_ids),
            attention_mask=torch.from_numpy(with_other.attention_mask),
        ).logits[0, :12]
    assert float((one - two).abs().max()) < 1e-5


def test_unknown_families_are_refused_by_name() -> None:
    with pytest.raises((ModelError, ValueError)):
        family("nezha")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such folder"):
        find_model(str(tmp_path / "nowhere"))


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        find_model(str(tmp_path))


def test_a_hub_id_that_cannot_be_had_names_the_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError) as caught:
        find_model("nobody/no-such-model-here")
    for way in ("HF_ENDPOINT", "modelscope", "name that folder"):
        assert way in str(caught.value)


@pytest.mark.parametrize("name", ["a b", "x/y/z", "ü/ö", "-x"])
def test_what_can_be_neither_folder_nor_hub_id(name: str) -> None:
    with pytest.raises(ModelError):
        find_model(name)


def test_pickled_weights_are_never_read(folder: Path, tmp_path: Path) -> None:
    import pickle

    canary = tmp_path / "canary"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return (Path.touch, (canary,))

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ModelError, match="Pickled weights"):
        load_classifier(folder, ("O",))
    assert not canary.exists()


def test_code_that_comes_with_a_model_is_not_run(folder: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (folder / "modeling_x.py").write_text(f"open({str(canary)!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "evil"
    config["auto_map"] = {"AutoConfig": "modeling_x.C"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="own Python code"):
        load_classifier(folder, ("O",))
    assert not canary.exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}', "[" * 10_000, '{"model_type": 3}'])
def test_a_config_that_is_none(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        load_classifier(folder, ("O",))


def test_weights_of_another_size_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] = 80
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"other shapes|cannot be loaded"):
        load_classifier(folder, ("O",))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_are_not_finite_are_refused(folder: Path, dtype: torch.dtype) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    weights = load_file(path)
    name = next(n for n in weights if "embeddings" in n)
    weights[name].view(-1)[7] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"not finite"):
        load_classifier(folder, ("O",), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 5, 100, 5000])
def test_weights_that_are_cut_off_are_refused(folder: Path, size: int, dtype: torch.dtype) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelError):
        load_classifier(folder, ("O",), dtype=dtype)


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("model_type", [name for name in FAMILIES if name != "nezha"])
def test_weights_are_cast_as_they_are_read(tmp_path: Path, model_type: str, shards: bool) -> None:
    model = family(model_type)
    model.save_pretrained(tmp_path, max_shard_size="20KB" if shards else "5GB")  # type: ignore[operator]
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == shards
    plain, __ = load_classifier(tmp_path, SCHEME.tags)
    cast, taken = load_classifier(tmp_path, SCHEME.tags, dtype=torch.bfloat16)
    assert taken == SCHEME.tags
    for name, weight in plain.named_parameters():
        assert torch.equal(cast.get_parameter(name), weight.bfloat16()), name
    for name, table in plain.named_buffers():
        assert torch.equal(cast.get_buffer(name), table), name


def test_weights_that_are_cast_are_not_held_as_they_were(tmp_path: Path) -> None:
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not os.access(clear, os.W_OK):
        pytest.skip("this system does not tell the most memory that was held")
    fields = {
        "model_type": "bert",
        "vocab_size": 200,
        "hidden_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 40,
    }
    build_classifier(fields, SCHEME.tags).save_pretrained(tmp_path)  # type: ignore[operator]
    size = (tmp_path / "model.safetensors").stat().st_size

    def kib(name: str) -> int:
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))

    clear.write_text("5")  # proc(5): the most begins anew
    before = kib("VmRSS")
    model, __ = load_classifier(tmp_path, SCHEME.tags, dtype=torch.bfloat16)
    held = 1024 * (kib("VmHWM") - before)
    assert sum(p.nbytes for p in model.parameters()) > 0.49 * size
    # Half of it, and the largest weights on their way: read as a whole, it would be 1.5 times.
    assert held < 0.8 * size


def test_a_model_without_fast_tokenizer_is_refused(folder: Path) -> None:
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(ModelError, match="fast tokenizer"):
        load_tokenizer(folder)


def test_a_damaged_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "Nope"}}')
    with pytest.raises(ModelError):
        load_tokenizer(folder)


def test_an_encoder_without_head_is_no_tagger(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["ModernBertModel"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="without a tagging head"):
        load_tagger(folder)


def test_length_beyond_the_position_table_says_the_limit() -> None:
    with pytest.raises(ModelError, match="ends at 512"):
        window_size(512, 600, None, "m")
    assert window_size(512, None, None, "m") == (512, 128)
    assert window_size(None, 1000, 10, "m") == (1000, 10)


def test_a_model_folder_is_found_with_links_and_without(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copytree(folder, run / "model")
    assert find_model(str(run)) == run / "model"
    assert find_model(str(folder)) == folder


@pytest.mark.parametrize("experts", ["grouped_mm", "eager", None])
def test_how_experts_are_run_is_kept(tmp_path: Path, experts: str | None) -> None:
    """transformers' save_pretrained leaves it out, and the model loaded again ran another way."""
    fields = {
        "model_type": "openai_privacy_filter",
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "num_local_experts": 4,
        "pad_token_id": 0,
        "eos_token_id": 1,
    } | ({} if experts is None else {"experts_implementation": experts})
    tokenizer = SimpleNamespace(save_pretrained=lambda folder: None)
    model = build_classifier(fields, ("O", "B-X"))
    runs = model.config._experts_implementation
    assert runs == experts or experts is None
    save_pretrained(model, tokenizer, tmp_path)
    found = build_classifier(config_fields(tmp_path), ("O", "B-X"))
    assert found.config._experts_implementation == runs
    assert AutoConfig.from_pretrained(tmp_path)._experts_implementation in (runs, None)
