"""What counting a card costs: training steps on `--device sim:4GiB` beside plain `--device cpu`.

    python benchmarks/simulated_overhead.py --model FOLDER --data FILE

The same steps are made three times, in turns and more than once: on the processor, on the simulated
card, and on the processor cut as the card cut them. Seconds are those of the processor in the steps
alone; what comes before the first of them (a plan, a forecast) is given beside. Prints a table,
writes JSON.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from functools import wraps
from itertools import islice
from pathlib import Path

from bertfit.config import job_config
from bertfit.data.formats import read, write
from bertfit.engine.recovery import Steps
from bertfit.jobs.train import train

CPU, CARD = "cpu", "sim:4GiB"


def run(
    model: str, data: Path, folder: Path, device: str, cuts: Sequence[Sequence[int]] = ()
) -> tuple[dict[str, float], list[list[int]]]:
    """Train one epoch; return the seconds before and in its steps, and how they were cut."""
    spent: list[float] = []
    began = time.process_time()
    before: list[float] = []
    original = Steps.run

    @wraps(original)
    def timed(*arguments: object, **options: object) -> object:
        start = time.process_time()
        before.append(start - began)
        done = original(*arguments, **options)  # type: ignore[arg-type]
        spent.append(time.process_time() - start)
        return done

    job = {"model": model, "train_file": data, "output_dir": folder, "device": device,
           "num_train_epochs": 1, "eval_fraction": 0.0, "save_every": "never"}  # fmt: skip
    Steps.run = timed  # type: ignore[assignment, method-assign]
    try:
        train(job_config(job), progress=False, say=lambda message: None, cuts=cuts)
    finally:
        Steps.run = original  # type: ignore[method-assign]
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    # The first step learns shapes and fills caches.
    seconds = {"seconds": sum(spent[1:]), "first": spent[0], "before": before[0]}
    return seconds, [row["cuts"] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "train.jsonl"
        write(islice(read(asked.data), asked.texts), data, "jsonl")
        cuts: Sequence[Sequence[int]] = ()
        for number in range(asked.rounds):
            for name, device in (("cpu", CPU), ("card", CARD), ("cpu, cut as the card", CPU)):
                pinned = cuts if name.startswith("cpu,") else ()
                done, found = run(
                    asked.model, data, Path(folder) / f"{number}{name}", device, pinned
                )
                cuts = found if device == CARD else cuts
                rows.append({"name": name, "round": number, **done})
                print(
                    f"{name:20} {done['seconds']:7.2f} s, first step {done['first']:5.2f} s, "
                    f"before it {done['before']:6.2f} s",
                    flush=True,
                )
    best = {
        name: min(row["seconds"] for row in rows if row["name"] == name)
        for name in dict.fromkeys(row["name"] for row in rows)
    }
    plain, card, cut_alike = best.values()
    print(f"overhead {card / plain - 1:+.1%}, at equal cuts {card / cut_alike - 1:+.1%}")
    if asked.json:
        asked.json.write_text(json.dumps({"best": best, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
