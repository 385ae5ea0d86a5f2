"""Read a million sentences of one word with every reader, and say how long each takes.

    python benchmarks/million_sentences.py

Seconds of processor time of one thread, from the opening of the file to its last record; the files
are those of `tests/data/hostile.py`. Ends with 1 where one takes over 5 s: run it
on a quiet machine.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bertfit.data.formats import ProblemLog, ReadOptions, read
from data.hostile import MILLION_NAMES, million_sentences

MOST_SECONDS = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names of files, with commas")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = []
    for name in asked.only.split(",") if asked.only else MILLION_NAMES:
        case = million_sentences(name)
        with tempfile.TemporaryDirectory() as folder:
            path = case.write(Path(folder))
            began, seen = time.process_time(), time.perf_counter()
            log = ProblemLog()
            count = sum(1 for __ in read(path, ReadOptions(format=case.format), log))
            seconds, wall = time.process_time() - began, time.perf_counter() - seen
        assert count == case.records
        rows.append({"name": name, "cpu_seconds": seconds, "wall_seconds": wall})
        print(
            f"{name:22} {seconds:5.2f} s of the processor, {wall:5.2f} s by the clock", flush=True
        )
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(int(max(row["cpu_seconds"] for row in rows) > MOST_SECONDS))


if __name__ == "__main__":
    main()
