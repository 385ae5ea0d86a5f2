"""How fast texts are tagged and embedded, beside what people use today, in one process.

    python benchmarks/inference.py --tagger runs/mine --texts texts.txt [--texts more.txt]

Tagging: `transformers.pipeline("token-classification", batch_size=16,
aggregation_strategy="simple")`, a careful loop (sorted by length, dynamic padding, bf16 autocast,
`inference_mode`), and bertfit. Embedding: `SentenceTransformer.encode` where it is installed, else
the same careful loop with mean pooling, and bertfit. Every contender sees the same texts in the
same order, in turns, and the best of its turns counts.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import psutil
import torch

from bertfit.data.formats import ReadOptions, read
from bertfit.engine.precision import cpu_has_bf16
from bertfit.jobs.embed import load_encoder
from bertfit.jobs.predict import load
from bertfit.models.encoder import find_model

BATCH_TOKENS = 2048


def read_texts(paths: Sequence[Path], count: int) -> list[str]:
    texts: list[str] = []
    for path in paths:
        some = [e.text for e in read(path, ReadOptions(on_error="skip")) if e.text.strip()]
        texts += some[: count // len(paths)]
    return texts


def length_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Batches of indices, longest first, each of at most `budget` padded tokens."""
    batches: list[list[int]] = []
    width = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and (len(batches[-1]) + 1) * width <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
            width = lengths[index]
    return batches


def pipeline_tagger(folder: Path) -> Callable[[list[str]], object]:
    from transformers import pipeline

    # transformers 5 reads weights in the dtype they are stored in, here float32.
    tag = pipeline(
        "token-classification",
        model=str(folder),
        tokenizer=str(folder),
        batch_size=16,
        aggregation_strategy="simple",
        device="cpu",
    )
    return lambda texts: tag(texts)


def careful_tagger(folder: Path, bf16: bool) -> Callable[[list[str]], object]:
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    model = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def run(texts: list[str]) -> object:
        ids = tokenizer(texts, truncation=True, max_length=512)["input_ids"]
        tags: list[list[int]] = [[] for __ in texts]
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            for batch in length_batches([len(row) for row in ids], BATCH_TOKENS):
                padded = tokenizer.pad({"input_ids": [ids[i] for i in batch]}, return_tensors="pt")
                found = model(**padded).logits.argmax(-1).tolist()
                for i, row in zip(batch, found, strict=True):
                    tags[i] = row[: len(ids[i])]
        return tags

    return run


def bertfit_tagger(folder: Path) -> Callable[[list[str]], object]:
    predictor = load(str(folder), device="cpu")
    return lambda texts: list(predictor.entities(texts))


def sentence_transformer(folder: Path, bf16: bool) -> tuple[str, Callable[[list[str]], np.ndarray]]:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return "careful loop", careful_encoder(folder, bf16)
    model = SentenceTransformer(str(folder), device="cpu")

    def run(texts: list[str]) -> np.ndarray:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return np.asarray(model.encode(texts, batch_size=32, show_progress_bar=False))

    return "SentenceTransformer.encode", run


def careful_encoder(folder: Path, bf16: bool) -> Callable[[list[str]], np.ndarray]:
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def run(texts: list[str]) -> np.ndarray:
        ids = tokenizer(texts, truncation=True, max_length=512)["input_ids"]
        vectors = np.zeros((len(texts), model.config.hidden_size), dtype=np.float32)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            for batch in length_batches([len(row) for row in ids], BATCH_TOKENS):
                padded = tokenizer.pad({"input_ids": [ids[i] for i in batch]}, return_tensors="pt")
                states = model(**padded).last_hidden_state.float()
                mask = padded["attention_mask"].unsqueeze(-1)
                vectors[batch] = ((states * mask).sum(1) / mask.sum(1)).numpy()
        return vectors

    return run


def gemm_rate(rows: int, hidden: int) -> float:
    """Bf16 matrix products a second, in FLOP/s, of a feed-forward layer's shape."""
    a = torch.randn(rows, hidden, dtype=torch.bfloat16)
    b = torch.randn(4 * hidden, hidden, dtype=torch.bfloat16)
    times = []
    for __ in range(12):
        begin = time.perf_counter()
        torch.nn.functional.linear(a, b)
        times.append(time.perf_counter() - begin)
    return 2 * rows * hidden * 4 * hidden / min(times)


def measure(
    contenders: dict[str, Callable[[list[str]], object]], texts: list[str], turns: int
) -> list[dict[str, object]]:
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    process = psutil.Process()
    for run in contenders.values():
        run(texts[:64])  # warm up: lazy initialisation, kernels, caches
    for __ in range(turns):
        for name, run in contenders.items():
            begin = time.perf_counter()
            run(texts)
            seconds[name].append(time.perf_counter() - begin)
            print(f"{name}: {len(texts) / seconds[name][-1]:.0f} texts/s", file=sys.stderr)
    return [
        {
            "contender": name,
            "texts_per_second": round(len(texts) / min(each), 1),
            "rss_bytes": process.memory_info().rss,
        }
        for name, each in seconds.items()
    ]


def table(rows: list[dict[str, object]]) -> None:
    first = float(str(rows[0]["texts_per_second"]))
    print(f"{'':34}{'texts/s':>9}{'times':>8}")
    for row in rows:
        rate = float(str(row["texts_per_second"]))
        print(f"{row['contender']!s:34}{rate:9.0f}{rate / first:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tagger", help="run folder or model folder of a tagger")
    parser.add_argument("--encoder", help="model folder of an encoder")
    parser.add_argument("--texts", type=Path, action="append", required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--skip-pipeline", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    texts = read_texts(asked.texts, asked.count)
    bf16 = cpu_has_bf16()
    document: dict[str, object] = {
        "texts": len(texts),
        "characters": sum(map(len, texts)),
        "threads": torch.get_num_threads(),
        "bf16": bf16,
        "gemm_2048x384": gemm_rate(2048, 384),
        "gemm_2048x768": gemm_rate(2048, 768),
    }
    print(json.dumps(document))
    if asked.tagger:
        folder = find_model(asked.tagger)
        contenders: dict[str, Callable[[list[str]], object]] = {}
        if not asked.skip_pipeline:
            contenders["transformers.pipeline"] = pipeline_tagger(folder)
        contenders["careful loop"] = careful_tagger(folder, bf16)
        contenders["bertfit"] = bertfit_tagger(folder)
        document["predict"] = rows = measure(contenders, texts, asked.turns)
        table(rows)
    if asked.encoder:
        folder = find_model(asked.encoder)
        name, other = sentence_transformer(folder, bf16)
        embedder = load_encoder(str(folder), device="cpu")
        exact = load_encoder(str(folder), device="cpu", precision="fp32")
        ours = np.stack(list(exact.embeddings(texts[:200])))
        theirs = sentence_transformer(folder, False)[1](texts[:200])
        norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
        cosine = (ours * theirs).sum(1) / norms
        document["least_cosine_fp32"] = float(cosine.min())
        print(f"least cosine in fp32: {cosine.min():.6f}")
        document["embed"] = rows = measure(
            {name: other, "bertfit": lambda some: list(embedder.embeddings(some))},
            texts,
            asked.turns,
        )
        table(rows)
    if asked.json:
        asked.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
