"""Out-of-memory at 200 random allocations of training; the result must not change by a bit.

    python benchmarks/oom_injection.py

A two-layer encoder with dropout trains on the processor; in one step out of three an allocation
drawn at random fails. Each run is compared with an undisturbed one whose cuts are pinned to those
that were recorded: losses, gradient norms and weights must be equal, and after every step as many
bytes must be alive. Without dropout, losses are compared with the run that had no failure at all.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from engine.test_recovery import Workshop, allocations_of_a_step, equal, made, windows_of


def one(number: int, draw: random.Random, most: int, dropout: float) -> dict[str, object]:
    tokens = draw.choice((1, 40, 128, 400))
    places = sorted(draw.sample(range(most - 8), draw.choice((1, 1, 1, 2))))
    failing = Workshop(dropout=dropout, tokens=tokens)
    rows = [made(failing, step, set(places) if step == 1 else set()) for step in range(3)]
    pinned = Workshop(dropout=dropout, tokens=tokens)
    plain = Workshop(dropout=dropout, tokens=tokens)
    same = [pinned.steps.run(i, windows_of(i), row[0].cuts) for i, row in enumerate(rows)]
    free = [plain.steps.run(i, windows_of(i)) for i in range(3)]
    losses = [float(done.result.loss) for done in same]
    uncut = [float(done.result.loss) for done in free]
    return {
        "number": number,
        "places": places,
        "retries": rows[1][0].oom_retries,
        "same_cut": [row[0].cuts for row in rows] == [done.cuts for done in free],
        "bit_equal": [row[1] for row in rows] == losses
        and equal(failing.weights(), pinned.weights()),
        "live_equal": len({row[2] for row in rows}) == 1,
        "equal_to_plain": equal(failing.weights(), plain.weights()),
        "difference": max(abs(a - b) / b for a, b in zip((r[1] for r in rows), uncut, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    draw, begun = random.Random(args.seed), time.perf_counter()
    most = allocations_of_a_step()
    rows = [one(number, draw, most, 0.1) for number in range(args.runs)]
    dry = [one(number, draw, most, 0.0) for number in range(args.runs // 10)]
    hit = [row for row in rows if row["retries"]]
    at_same_cut = [row for row in hit if row["same_cut"]]
    summary = {
        "runs": len(rows),
        "failures": sum(int(row["retries"]) for row in rows),
        "bit_equal": sum(bool(row["bit_equal"]) for row in rows),
        "live_equal": sum(bool(row["live_equal"]) for row in rows),
        "retried_at_the_same_cut": len(at_same_cut),
        "of_these_equal_to_the_plain_run": sum(bool(r["equal_to_plain"]) for r in at_same_cut),
        "without_dropout_largest_difference": max(float(row["difference"]) for row in dry),
        "seconds": round(time.perf_counter() - begun, 1),
    }
    print(json.dumps(summary, indent=1))
    if args.json:
        args.json.write_text(json.dumps({"summary": summary, "rows": rows + dry}, indent=1) + "\n")
    good = summary["bit_equal"] == summary["live_equal"] == len(rows)
    sys.exit(0 if good and len(at_same_cut) == summary["of_these_equal_to_the_plain_run"] else 1)


if __name__ == "__main__":
    main()
