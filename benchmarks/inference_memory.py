"""What inference holds: memory over a long stream, and the first result of a short file.

    python benchmarks/inference_memory.py stream --encoder FOLDER --sentences 1000000
    python benchmarks/inference_memory.py first --tagger FOLDER

`stream` embeds made-up short sentences, all different, into a `.npy`, and prints the memory, open
files and threads of the process at every tenth. `first` compares two new processes: one that only
imports torch and the model's class, and one that also tags ten lines. Prints a table, writes JSON.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import psutil

from bertfit.units import MIB

_ONLY_IMPORTS = """
import time; begin = time.perf_counter()
import torch
from transformers import AutoModelForTokenClassification
import psutil
print(time.perf_counter() - begin, psutil.Process().memory_info().rss)
"""
_TEN_LINES = """
import time; begin = time.perf_counter()
import sys, bertfit, psutil
tagger = bertfit.load(sys.argv[1], device="cpu")
lines = open(sys.argv[2], encoding="utf-8").read().splitlines()
next(iter(tagger.entities(lines)))
print(time.perf_counter() - begin, psutil.Process().memory_info().rss)
"""


def sentences(count: int, seed: int = 0) -> Iterator[str]:
    """Short sentences that do not come twice, of words that do."""
    rng = np.random.default_rng(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = ["".join(rng.choice(syllables, rng.integers(1, 5))) for __ in range(50_000)]
    for number in range(count):
        chosen = rng.integers(0, len(words), rng.integers(3, 9))
        yield f"{' '.join(words[i] for i in chosen)} {number}"


def stream(folder: str, count: int) -> list[dict[str, int]]:
    from bertfit.jobs.embed import load_encoder

    process, rows = psutil.Process(), []
    embedder = load_encoder(folder, device="cpu")
    with tempfile.TemporaryDirectory() as place:
        vectors = np.lib.format.open_memmap(
            Path(place) / "v.npy", "w+", np.float16, (count // 10, embedder.hidden_size)
        )
        found = embedder.embeddings(sentences(count))
        for tenth in range(10):
            for row, vector in enumerate(islice(found, count // 10)):
                vectors[row] = vector
            vectors.flush()
            memory = process.memory_full_info()
            rows.append(
                {
                    "sentences": (tenth + 1) * (count // 10),
                    "rss_bytes": memory.rss - memory.shared,  # the map's own pages are shared
                    "open_files": process.num_fds(),
                    "threads": threading.active_count(),
                }
            )
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def first(folder: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        lines = Path(place) / "ten.txt"
        lines.write_text("\n".join(islice(sentences(10), 10)), encoding="utf-8")
        (plain_seconds, plain_rss), (seconds, rss) = (
            map(float, _output([sys.executable, "-c", code, folder, str(lines)]).split())
            for code in (_ONLY_IMPORTS, _TEN_LINES)
        )
    weights = sum(path.stat().st_size for path in Path(folder).rglob("*.safetensors"))
    return {
        "imports_seconds": plain_seconds,
        "first_result_seconds": seconds,
        "weights_bytes": weights,
        "rss_above_imports_bytes": rss - plain_rss,
    }


def _output(command: list[str]) -> str:
    found = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        for __ in range(2)
    ]
    return found[-1]  # the first run reads the files of the libraries from the disk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["stream", "first"])
    parser.add_argument("--encoder", help="folder of an encoder, such as MiniLM")
    parser.add_argument("--tagger", help="folder of a tagger")
    parser.add_argument("--sentences", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.what == "stream":
        rows = stream(asked.encoder, asked.sentences)
        grown = rows[-1]["rss_bytes"] - rows[1]["rss_bytes"]
        per_100_000 = grown / (rows[-1]["sentences"] - rows[1]["sentences"]) * 100_000
        document: object = {"rows": rows, "grown_bytes_per_100000": round(per_100_000)}
        print(f"grown after the first fifth: {per_100_000 / MIB:.2f} MiB per 100,000 sentences")
    else:
        document = first(asked.tagger)
        print(json.dumps(document))
    if asked.json:
        asked.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
