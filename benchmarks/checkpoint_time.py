"""How long training stops for a checkpoint, and how soon it is on the disk.

    python benchmarks/checkpoint_time.py --model FOLDER --data FILE

Trains some steps on the texts of a file, with a checkpoint every few of them, and measures on the
thread that trains how long each one holds it up, and when the last byte of it is synced. Prints a
table, writes JSON.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path

from bertfit.config import job_config
from bertfit.data.formats import read
from bertfit.jobs.checkpoints import CheckpointStore
from bertfit.jobs.snapshots import Snapshots
from bertfit.jobs.train import train
from bertfit.jobs.train_saving import Saving
from bertfit.types import Example
from bertfit.units import MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--every", type=int, default=4, help="steps between two checkpoints")
    parser.add_argument("--folder", type=Path, default=None, help="disk to write to")
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args()

    began: list[float] = []
    stopped: list[float] = []
    durable: list[float] = []
    with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=asked.folder) as place:
        job = job_config(
            {
                "model": asked.model,
                "train_file": few_texts(asked.data, Path(place), asked.saves * asked.every * 16),
                "eval_fraction": 0,
                "num_train_epochs": 1,
                "max_length": 64,
                "save_every": f"{asked.every}steps",
                "output_dir": Path(place) / "run",
            }
        )
        Saving.take_checkpoint = timed(Saving.take_checkpoint, began, stopped)  # type: ignore[method-assign]
        Snapshots._write = timed(Snapshots._write, [], [], durable)  # type: ignore[method-assign]
        report = train(job, say=lambda message: None)
        store = CheckpointStore(report.output_dir / "checkpoints")
        start = time.perf_counter()
        store.load_newest()
        loading = time.perf_counter() - start
        newest = max(store.folder.iterdir())
        size = sum(file.stat().st_size for file in newest.iterdir())
    print(f"{size / MIB:.0f} MiB of weights and moments, on {report.steps} steps")
    for number, (start, stop, end) in enumerate(zip(began, stopped, durable, strict=True), 1):
        print(f"save {number}: training stopped {stop:.3f} s, durable after {end - start:.2f} s")
    print(f"read and compared with its checksums: {loading:.2f} s")
    if asked.json is not None:
        rows = [
            {"stopped": stop, "durable": end - start}
            for start, stop, end in zip(began, stopped, durable, strict=True)
        ]
        asked.json.write_text(
            json.dumps({"bytes": size, "saves": rows, "load_seconds": loading}, indent=1)
        )


def few_texts(data: Path, place: Path, count: int) -> Path:
    """Write so many texts of a file to another one, beginning again where they end."""
    found: list[Example] = [example for example in read(data) if example.entities]
    new = place / "texts.jsonl"
    with new.open("w", encoding="utf-8") as file:
        for number in range(count):
            example = found[number % len(found)]
            spans = [[e.start, e.end, e.label] for e in example.entities or ()]
            line = {"text": example.text, "label": spans}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return new


def timed(
    function: Callable[..., None],
    began: list[float],
    seconds: list[float],
    ended: list[float] | None = None,
) -> Callable[..., None]:
    """Return the function, noting when it began, how long it took and when it ended."""

    @wraps(function)
    def noting(*arguments: object, **options: object) -> None:
        began.append(time.perf_counter())
        function(*arguments, **options)
        seconds.append(time.perf_counter() - began[-1])
        if ended is not None:
            ended.append(time.perf_counter())

    return noting


if __name__ == "__main__":
    main()
