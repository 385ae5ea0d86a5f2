"""How fast texts are tagged and embedded, beside what people use today: one run, same answers.

    python benchmarks/inference.py --tagger runs/mine --texts cluener/dev.json --texts msra.txt
    python benchmarks/inference.py --encoder E5 --texts cluener/dev.json
    python benchmarks/inference.py --shapes

Tagging: `transformers.pipeline("token-classification", batch_size=16,
aggregation_strategy="simple")`; a careful loop (sorted by length, dynamic padding, bf16,
`inference_mode`), with autocast and with weights in bf16; bertfit with every library that computes;
and the matrix products of the model's layers alone, which no tagger beats at their rate.
Embedding: `SentenceTransformer.encode` and bertfit, in fp32 and in bf16. Shapes: a tagger of
BERT-base's shape against the rate of a matrix product.

Every contender is loaded in a process of its own; they work in turns on the same texts, and the
best turn of each counts. All must find the same entities: where a text differs from what the
pipeline says (fp32), some unit of it must be a tie, `TIES` at most between its two best tags. The
texts that differ are counted in the table.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import psutil
import torch

from bertfit.data.formats import ReadOptions, read
from bertfit.engine.onnx_backend import has_onnx
from bertfit.engine.openvino_backend import has_openvino
from bertfit.engine.precision import cpu_has_bf16
from bertfit.models.hub import find_model
from bertfit.units import MIB
from inference_contenders import (
    GEMM_TIMES,
    Spans,
    base_flops,
    base_shapes,
    bertfit_encoder,
    bertfit_tagger,
    careful_tagger,
    gemm,
    margin_finder,
    pipeline_tagger,
    products_alone,
    sentence_transformer,
)

# log p of the best tag less that of the second, in fp32: what rounding may turn round. E5-small in
# bfloat16, 300 CLUENER texts: 6 or 7 differ, the surest of them by 0.024.
TIES = {"fp32": 0.001, "bf16": 0.1}
LEAST_COSINE = 0.9999
SHAPES = ((16, 128), (4, 512))
Row = dict[str, object]


class Contender:
    """Something that works in a process of its own when it is let.

    Args:
        name: for the table.
        precision: what it computes in.
        make: called there with the arguments; what it returns is called with work.
    """

    def __init__(
        self, name: str, precision: str, make: Callable[..., object], *arguments: object
    ) -> None:
        self.name, self.precision = name, precision
        self.seconds: list[float] = []
        self.rss_bytes = 0
        processes = multiprocessing.get_context("spawn")
        self._pipe, other = processes.Pipe()
        self._process = processes.Process(target=_serve, args=(other, make, arguments), daemon=True)
        self._process.start()
        other.close()

    def do(self, work: object) -> object:
        """Let it work; returns what it found."""
        self._pipe.send(work)
        try:
            found, seconds, self.rss_bytes = self._pipe.recv()
        except EOFError:
            raise SystemExit(f"{self.name}: failed, see above") from None
        self.seconds.append(seconds)
        return found

    def end(self) -> None:
        """Give its memory back."""
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, make: Callable[..., object], arguments: tuple[object, ...]) -> None:
    run = make(*arguments)
    assert callable(run)
    while True:
        work = pipe.recv()
        begin = time.perf_counter()
        found = run(work)
        seconds = time.perf_counter() - begin
        pipe.send((found, seconds, psutil.Process().memory_info().rss))


def in_turns(contenders: Sequence[Contender], work: Sequence[object], turns: int) -> None:
    """Let all do the work, each first in its turn; the times of warming up are forgotten."""
    for contender in contenders:
        contender.seconds.clear()
    for turn in range(turns):
        order = contenders if turn % 2 == 0 else contenders[::-1]
        for contender in order:
            for part in work:
                contender.do(part)
            print(f"{contender.name}: {contender.seconds[-1]:.2f} s", file=sys.stderr)


def read_texts(path: Path, count: int) -> list[str]:
    found = [e.text for e in read(path, ReadOptions(on_error="skip")) if e.text.strip()]
    return found[:count]


def taggers(folder: Path, precision: str) -> list[Contender]:
    found = [
        Contender("transformers.pipeline", "fp32", pipeline_tagger, folder),
        Contender("careful loop, autocast", precision, careful_tagger, folder, precision, True),
        Contender("careful loop, weights", precision, careful_tagger, folder, precision, False),
    ]
    backends = [("torch", precision)]
    backends += [("openvino", precision)] * has_openvino() + [("onnx", "fp32")] * has_onnx()
    found += [
        Contender(f"bertfit, {name}", number, bertfit_tagger, folder, number, name, False)
        for name, number in backends
    ]
    name = "bertfit, torch, legal tags"  # the default
    return [*found, Contender(name, precision, bertfit_tagger, folder, precision, "torch", True)]


def differing(
    expected: Sequence[Spans], found: Sequence[Spans], margins: Sequence[np.ndarray]
) -> tuple[int, float]:
    """Return how many texts differ, and how sure fp32 was at the surest of them.

    A text that differs in spans is as sure as the least sure unit that they cover or border on.
    """
    count, surest = 0, 0.0
    for one, other, units in zip(expected, found, margins, strict=True):
        spans = set(one) ^ set(other)
        if spans:
            count += 1
            near = [
                margin
                for start, end, margin in units.tolist()
                if any(begin <= end and start <= last for begin, last, __ in spans)
            ]
            surest = max(surest, min(near))
    return count, surest


def predict(folder: Path, texts: list[str], turns: int, precision: str) -> list[Row]:
    contenders = taggers(folder, precision)
    finder = Contender("margins", "fp32", margin_finder, folder)
    margins = finder.do(texts)
    finder.end()
    answers = {each.name: each.do(texts) for each in contenders}
    ceiling = Contender("its matrix products alone", precision, products_alone, folder, precision)
    operations = ceiling.do(texts)
    in_turns([*contenders, ceiling], [texts], turns)
    expected = answers[contenders[0].name]
    rows, faults = [], []
    for each in contenders:
        each.end()
        count, surest = differing(expected, answers[each.name], margins)  # type: ignore[arg-type]
        if surest > TIES[each.precision] and "legal" not in each.name:
            faults.append(f"{each.name}: other entities where fp32 is sure by {surest:.3f}")
        rows.append({**rate_row(each, len(texts)), "texts_differ": count, "surest": surest})
    ceiling.end()
    gflops = int(str(operations)) / min(ceiling.seconds) / 1e9
    bound = {**rate_row(ceiling, len(texts)), "gflop_per_second": round(gflops)}
    table([*rows, {**bound, "texts_differ": 0, "surest": 0.0}], ("texts_differ", "surest"))
    share = max(min(ceiling.seconds) / min(each.seconds) for each in contenders)
    print(f"products: {gflops:.0f} GFLOP/s; the fastest reaches {share:.0%} of their rate")
    rows.append(bound)
    if faults:
        raise SystemExit("\n".join(faults))
    return rows


def embed(folder: Path, texts: list[str], turns: int, precision: str) -> list[Row]:
    contenders = [
        Contender(f"{name}, {number}", number, make, folder, number)
        for number in dict.fromkeys(("fp32", precision))
        for name, make in (
            ("SentenceTransformer.encode", sentence_transformer),
            ("bertfit", bertfit_encoder),
        )
    ]
    vectors = [each.do(texts) for each in contenders]
    in_turns(contenders, [texts], turns)
    rows = []
    for each, found in zip(contenders, vectors, strict=True):
        each.end()
        cosine = least_cosine(vectors[0], found)  # type: ignore[arg-type]
        rows.append({**rate_row(each, len(texts)), "least_cosine": round(cosine, 6)})
    table(rows, ("least_cosine",))
    if float(str(rows[1]["least_cosine"])) <= LEAST_COSINE:
        raise SystemExit("bertfit's vectors in fp32 are not those of encode")
    return rows


def least_cosine(one: np.ndarray, other: np.ndarray) -> float:
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(((one * other).sum(1) / norms).min())


def shapes(turns: int, precision: str) -> list[Row]:
    contenders = [Contender("matrix product", precision, gemm, precision)]
    for name in ("transformers", "torch", *["openvino"] * has_openvino()):
        title = name if name == "transformers" else f"bertfit, {name}"
        contenders.append(Contender(title, precision, base_shapes, precision, name))
    rows: list[Row] = []
    for shape in SHAPES:
        for each in contenders:
            each.do(shape)
        in_turns(contenders, [shape], turns)
        rates = []
        for each in contenders:
            product = 2 * shape[0] * shape[1] * 768 * 4 * 768 * GEMM_TIMES
            flops = product if each is contenders[0] else base_flops(*shape)
            rates.append(flops / min(each.seconds) / 1e9)
        rows += [
            {
                "contender": f"{each.name}, {shape[0]} x {shape[1]}",
                "gflop_per_second": round(rate),
                "share": round(rate / rates[0], 3),
            }
            for each, rate in zip(contenders, rates, strict=True)
        ]
    for each in contenders:
        each.end()
    print(f"{'':36}{'GFLOP/s':>9}{'share':>8}")
    for row in rows:
        print(f"{row['contender']!s:36}{row['gflop_per_second']:>9}{row['share']:>8}")
    return rows


def rate_row(each: Contender, count: int) -> Row:
    return {
        "contender": each.name,
        "texts_per_second": round(count / min(each.seconds), 1),
        "seconds": [round(seconds, 3) for seconds in each.seconds],
        "rss_mib": round(each.rss_bytes / MIB),
    }


def table(rows: list[Row], more: Sequence[str]) -> None:
    first = float(str(rows[0]["texts_per_second"]))
    heads = "".join(f"{name.replace('_', ' '):>14}" for name in more)
    print(f"{'':36}{'texts/s':>9}{'times':>7}{'MiB':>7}{heads}")
    for row in rows:
        rate = float(str(row["texts_per_second"]))
        cells = "".join(f"{row[name]:>14.6g}" for name in more)
        print(f"{row['contender']!s:36}{rate:9.1f}{rate / first:7.2f}{row['rss_mib']:7}{cells}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tagger", help="run folder or model folder of a tagger of bertfit")
    parser.add_argument("--encoder", help="model folder of an encoder")
    parser.add_argument("--texts", type=Path, action="append", default=[])
    parser.add_argument("--count", type=int, default=1000, help="texts of each file")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--shapes", action="store_true", help="BERT-base against matrix products")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    precision = "bf16" if cpu_has_bf16() else "fp32"
    document: dict[str, object] = {"threads": torch.get_num_threads(), "precision": precision}
    for path in asked.texts:
        texts = read_texts(path, asked.count)
        print(f"{path}: {len(texts)} texts of {sum(map(len, texts)) / len(texts):.0f} characters")
        if asked.tagger:
            folder = find_model(asked.tagger)
            document[f"predict {path}"] = predict(folder, texts, asked.turns, precision)
        if asked.encoder:
            folder = find_model(asked.encoder)
            document[f"embed {path}"] = embed(folder, texts, asked.turns, precision)
    if asked.shapes:
        document["shapes"] = shapes(asked.turns, precision)
    if asked.json:
        asked.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
