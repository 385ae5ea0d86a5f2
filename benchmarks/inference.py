"""How fast texts are tagged and embedded, beside what people use today, in one process.

    python benchmarks/inference.py --tagger runs/mine --texts texts.txt [--texts more.txt]

Tagging: `transformers.pipeline("token-classification", batch_size=16,
aggregation_strategy="simple")`, a careful loop (sorted by length, dynamic padding, bf16 autocast,
`inference_mode`), and bertfit. All three get bertfit's tokens, which the model was trained on, so
their entities can be compared; how far they are the same is printed. Embedding:
`SentenceTransformer.encode` where it is installed, else the same careful loop with mean pooling,
and bertfit. Every contender sees the same texts in the same order, in turns, and the best of its
turns counts. `--gemm`: the share of the rate of matrix products that BERT-base reaches.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import torch

from bertfit.data.formats import ReadOptions, read
from bertfit.engine.backends import torch_tagger
from bertfit.engine.inference import batching_of, make_ready
from bertfit.engine.precision import cpu_has_bf16
from bertfit.jobs.backend_choice import backend_of
from bertfit.jobs.chunks import Chunk
from bertfit.jobs.embed import load_encoder
from bertfit.jobs.predict import Predictor, load
from bertfit.models.encoder import build_classifier
from bertfit.models.hub import find_model
from bertfit.types import Example, Window

BATCH_TOKENS = 2048
Spans = list[tuple[int, int, str]]


def read_texts(paths: Sequence[Path], count: int) -> list[str]:
    texts: list[str] = []
    for path in paths:
        some = [e.text for e in read(path, ReadOptions(on_error="skip")) if e.text.strip()]
        texts += some[: count // len(paths)]  # as many of each
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


def windows_of(predictor: Predictor, texts: Sequence[str]) -> list[Window]:
    """The windows that bertfit makes, one a text: every contender gets these very tokens."""
    examples = (Example(id=str(i), text=text) for i, text in enumerate(texts))
    found = [
        replace(window, index=done + window.index)
        for chunk, done in _counted(predictor.chunks(examples))
        for window in chunk.windows
    ]
    if [window.index for window in found] != list(range(len(texts))):
        raise SystemExit("a text is empty or longer than a window: give others")
    return found


def _counted(chunks: Iterable[Chunk]) -> Iterator[tuple[Chunk, int]]:
    done = 0
    for chunk in chunks:
        yield chunk, done
        done += len(chunk.examples)


def pipeline_tagger(folder: Path, predictor: Predictor) -> Callable[[list[str]], list[Spans]]:
    """The usual pipeline; only its tokens are bertfit's, since the model was trained on those."""
    from transformers import AutoModelForTokenClassification, TokenClassificationPipeline

    class SameTokens(TokenClassificationPipeline):
        def preprocess(self, sentence, offset_mapping=None, **params):
            (window,) = windows_of(predictor, [sentence])
            count = len(window.input_ids)
            special = np.ones(count, dtype=np.int64)
            offsets = np.zeros((count, 2), dtype=np.int64)
            ends = [*window.first_token[1:], count - 1]
            for (start, end), first, last in zip(
                window.units, window.first_token, ends, strict=True
            ):
                special[first:last] = 0
                offsets[first:last] = start, end
            yield {
                "input_ids": torch.from_numpy(window.input_ids.astype(np.int64))[None],
                "attention_mask": torch.ones(1, count, dtype=torch.int64),
                "special_tokens_mask": torch.from_numpy(special)[None],
                "offset_mapping": torch.from_numpy(offsets)[None],
                "sentence": sentence,
                "is_last": True,
            }

    tag = SameTokens(
        model=AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32),
        tokenizer=predictor.tagger.tokenizer.fast,
        batch_size=16,
        aggregation_strategy="simple",
        device="cpu",
    )
    return lambda texts: [
        [(e["start"], e["end"], e["entity_group"]) for e in found] for found in tag(texts)
    ]


def careful_tagger(
    folder: Path, predictor: Predictor, bf16: bool
) -> Callable[[list[str]], list[Spans]]:
    """What a careful user writes: sorted, padded to the longest of a batch, autocast."""
    from transformers import AutoModelForTokenClassification

    model = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()
    names = model.config.id2label

    def run(texts: list[str]) -> list[Spans]:
        windows = windows_of(predictor, texts)
        found: list[Spans] = [[] for __ in texts]
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            for batch in length_batches([len(w.input_ids) for w in windows], BATCH_TOKENS):
                rows = [torch.from_numpy(windows[i].input_ids.astype(np.int64)) for i in batch]
                ids = torch.nn.utils.rnn.pad_sequence(
                    rows, batch_first=True, padding_value=predictor.tagger.tokenizer.pad_id
                )
                lengths = torch.tensor([len(row) for row in rows])
                mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
                tags = model(input_ids=ids, attention_mask=mask).logits.argmax(-1).numpy()
                for i, row in zip(batch, tags, strict=True):
                    units = windows[i].units.tolist()
                    said = [names[tag] for tag in row[windows[i].first_token].tolist()]
                    found[i] = bio_spans(units, said)
        return found

    return run


def bio_spans(units: Sequence[tuple[int, int]], tags: Sequence[str]) -> Spans:
    """Join B-X, I-X, I-X into one span; an I-X without a beginning begins one."""
    spans: Spans = []
    before = "O"
    for (start, end), tag in zip(units, tags, strict=True):
        if tag.startswith("I-") and before[2:] == tag[2:]:
            spans[-1] = (spans[-1][0], end, tag[2:])
        elif tag != "O":
            spans.append((start, end, tag[2:]))
        before = tag
    return spans


def bertfit_tagger(predictor: Predictor) -> Callable[[list[str]], list[Spans]]:
    return lambda texts: [
        [(e.start, e.end, e.label) for e in found] for found in predictor.entities(texts)
    ]


def agreement(ours: Sequence[Spans], theirs: Sequence[Spans]) -> float:
    """F1 of one contender's entities against another's."""
    both = sum(len(set(a) & set(b)) for a, b in zip(ours, theirs, strict=True))
    return 2 * both / max(1, sum(map(len, ours)) + sum(map(len, theirs)))


def gemm_share(bf16: bool) -> list[dict[str, object]]:
    """How much of the rate of plain matrix products a model of BERT-base's shape reaches."""
    fields = {
        "model_type": "bert",
        "vocab_size": 21128,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
    }
    model = build_classifier(fields, ("O", "B-X", "I-X")).eval()
    weights = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2 and "emb" not in n)
    cpu, precision = torch.device("cpu"), "bf16" if bf16 else "fp32"
    forward = torch_tagger(model, cpu, make_ready(model, cpu, precision))
    batching = batching_of(model, cpu, 0)
    rows: list[dict[str, object]] = []
    for count, length in ((16, 128), (4, 512)):
        windows = [random_window(length, i) for i in range(count)]
        batch = batching.batch(windows)
        flops = count * length * (2 * weights + 12 * 4 * length * 768)
        with torch.inference_mode():
            forward(batch)
            seconds = min(_timed(partial(forward, batch)) for __ in range(5))
        rate = gemm_rate(count * length, 768)
        rows.append(
            {
                "shape": f"{count} x {length}",
                "gflops": round(flops / seconds / 1e9),
                "gemm_gflops": round(rate / 1e9),
                "share": round(flops / seconds / rate, 3),
            }
        )
    return rows


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def random_window(length: int, seed: int) -> Window:
    ids = np.random.default_rng(seed).integers(1000, 20000, length).astype(np.int32)
    units = np.array([(i, i + 1) for i in range(length)], dtype=np.int32)
    return Window(
        index=seed,
        input_ids=ids,
        units=units,
        first_token=np.arange(length, dtype=np.int32),
        labels=None,
        owned=(0, length),
    )


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
    parser.add_argument("--texts", type=Path, action="append", default=[])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--skip-pipeline", action="store_true")
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--gemm", action="store_true", help="BERT-base against matrix products")
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
    if asked.gemm:
        document["gemm"] = gemm_share(bf16)
        print(json.dumps(document["gemm"]))
    if asked.tagger:
        folder = find_model(asked.tagger)
        predictor = load(str(folder), device="cpu", backend=backend_of(asked.backend))
        contenders: dict[str, Callable[[list[str]], list[Spans]]] = {}
        if not asked.skip_pipeline:
            contenders["transformers.pipeline"] = pipeline_tagger(folder, predictor)
        contenders["careful loop"] = careful_tagger(folder, predictor, bf16)
        contenders["bertfit"] = bertfit_tagger(predictor)
        some = texts[:200]
        ours = contenders["bertfit"](some)
        document["same_entities"] = {
            name: round(agreement(ours, run(some)), 4) for name, run in contenders.items()
        }
        print(json.dumps(document["same_entities"]))
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
