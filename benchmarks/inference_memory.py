"""What inference holds: memory over a long stream, and the first result of a short file.

    python benchmarks/inference_memory.py stream --encoder MINILM --sentences 1000000
    python benchmarks/inference_memory.py encode --encoder MINILM --sentences 100000
    python benchmarks/inference_memory.py first --tagger runs/mine

`stream` runs `bertfit embed` over short sentences, all different, and looks at its memory, open
files and threads from outside; `--minutes` ends it with Ctrl-C. `encode` does the same with
`SentenceTransformer.encode`. `first` tags ten lines in a new process, beside one that only imports
torch and the class of the model.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from bertfit.units import MIB

_SAMPLE_SECONDS = 1.0
_ENDING = """
import psutil, resource
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(time.perf_counter() - begin, psutil.Process().memory_info().rss, peak)
"""
_ONLY_IMPORTS = """
import time; begin = time.perf_counter()
import json, sys, torch, transformers
config = json.load(open(sys.argv[1] + "/config.json"))
getattr(transformers, config["architectures"][0])
"""
_TEN_LINES = """
import time; begin = time.perf_counter()
import sys, bertfit
tagger = bertfit.load(sys.argv[1], device="cpu")
lines = open(sys.argv[2], encoding="utf-8").read().splitlines()
next(iter(tagger.entities(lines)))
"""
_ENCODE = """
import sys
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
lines = open(sys.argv[2], encoding="utf-8").read().splitlines()
model.encode(lines[:1000])
print("ready", flush=True)
vectors = model.encode(lines)
"""


def sentences(count: int, seed: int = 0) -> Iterator[str]:
    """Short sentences that do not come twice, of words that do."""
    rng = np.random.default_rng(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = ["".join(rng.choice(syllables, rng.integers(1, 4))) for __ in range(50_000)]
    for number in range(count):
        chosen = rng.integers(0, len(words), rng.integers(2, 6))
        yield f"{' '.join(words[i] for i in chosen)} {number}"


def write_sentences(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in sentences(count))


def stream(folder: str, count: int, minutes: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place:
        lines, output = Path(place) / "in.txt", Path(place) / "v.npy"
        write_sentences(lines, count)
        command = [sys.executable, "-m", "bertfit", "embed", folder, str(lines)]
        command += ["--output", str(output), "--dtype", "fp16", "--quiet"]
        rows = watch(subprocess.Popen(command), output.with_name("v.npy.part.json"), minutes)
    warm = [row for row in rows if row["sentences"] > rows[-1]["sentences"] / 5]
    slope, __ = np.polyfit([r["sentences"] for r in warm], [r["rss_bytes"] for r in warm], 1)
    document = {
        "rows": rows[:: max(1, len(rows) // 20)],
        "sentences": rows[-1]["sentences"],
        "grown_mib_per_100000": round(slope * 100_000 / MIB, 3),
        "rss_mib": round(statistics.median(row["rss_bytes"] for row in warm) / MIB),
        "open_files": sorted({row["open_files"] for row in warm}),
        "threads": sorted({row["threads"] for row in warm}),
    }
    print(json.dumps({key: value for key, value in document.items() if key != "rows"}))
    return document


def watch(
    process: "subprocess.Popen[bytes]", journal: Path, minutes: float
) -> list[dict[str, int]]:
    """Look at a process once a second until it ends; Ctrl-C for it when its time is over."""
    seen, rows, end = psutil.Process(process.pid), [], time.monotonic() + 60 * minutes
    asked_to_stop = False
    while process.poll() is None:
        time.sleep(_SAMPLE_SECONDS)
        try:
            done = json.loads(journal.read_text(encoding="utf-8"))["records_read"]
            rows.append(
                {
                    "sentences": done,
                    "rss_bytes": seen.memory_info().rss,
                    "open_files": seen.num_fds(),
                    "threads": seen.num_threads(),
                }
            )
        except (FileNotFoundError, psutil.Error):
            continue  # not begun yet, or ended just now
        if time.monotonic() > end and not asked_to_stop:
            asked_to_stop = True
            process.send_signal(signal.SIGINT)
    if process.returncode not in (0, 75):
        raise SystemExit(f"bertfit embed ended with exit code {process.returncode}")
    return rows


def encode(folder: str, count: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place:
        lines = Path(place) / "in.txt"
        write_sentences(lines, count)
        process = subprocess.Popen(
            [sys.executable, "-c", _ENCODE, folder, str(lines)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        seen = psutil.Process(process.pid)
        begin = most = seen.memory_info().rss
        while process.poll() is None:
            time.sleep(_SAMPLE_SECONDS / 4)
            try:
                most = max(most, seen.memory_info().rss)
            except psutil.Error:
                break
        if process.wait():
            raise SystemExit(f"encode ended with exit code {process.returncode}")
    grown = (most - begin) / count * 100_000
    document = {"sentences": count, "grown_mib_per_100000": round(grown / MIB, 1)}
    print(json.dumps(document))
    return document


def first(folder: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place:
        lines = Path(place) / "ten.txt"
        write_sentences(lines, 10)
        (plain_seconds, plain_rss, plain_peak), (seconds, rss, peak) = (
            best_of(3, [sys.executable, "-c", code + _ENDING, folder, str(lines)])
            for code in (_ONLY_IMPORTS, _TEN_LINES)
        )
    weights = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
    document: dict[str, object] = {
        "imports_seconds": round(plain_seconds, 2),
        "first_result_seconds": round(seconds, 2),
        "weights_mib": round(weights / MIB),
        "rss_above_imports_mib": round((rss - plain_rss) / MIB),
        "peak_above_imports_mib": round((peak - plain_peak) / MIB),
        "rss_above_imports_over_weights": round((rss - plain_rss) / weights, 2),
    }
    print(json.dumps(document))
    return document


def best_of(times: int, command: list[str]) -> list[float]:
    """Run a program a few times, whose last line is seconds and bytes; the least of each."""
    found = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        for __ in range(times)
    ]
    return [
        min(values) for values in zip(*(map(float, line.split()) for line in found), strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["stream", "encode", "first"])
    parser.add_argument("--encoder", help="folder of an encoder, such as MiniLM")
    parser.add_argument("--tagger", help="folder of a tagger")
    parser.add_argument("--sentences", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.what == "stream":
        document = stream(asked.encoder, asked.sentences, asked.minutes)
    elif asked.what == "encode":
        document = encode(asked.encoder, asked.sentences)
    else:
        document = first(asked.tagger)
    if asked.json:
        asked.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
