"""Out-of-memory at 200 random allocations of training; the result must not change by a bit.

    python benchmarks/oom_injection.py
    python benchmarks/oom_injection.py --first 100 --count 50 --json rows.json    # a piece

A two-layer encoder with dropout trains on the processor for three steps; in the second one or two
allocations drawn at random fail, anywhere in forward, backward or clipping. Each run is compared
with an undisturbed one whose cuts are pinned to those that were recorded: losses, gradient norms
and weights must be equal, and after every step as many bytes must be alive. Each run is made again
without dropout, and its losses are compared with those of the run that had no failure at all.

A run is drawn from its number alone, so pieces add up: with `--json` the rows of earlier pieces are
kept, and the summary is of all rows in the file.
"""

import argparse
import functools
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from engine.test_recovery import Workshop, allocations_of_a_step, equal, made, windows_of

STEPS, DISTURBED = 3, 1
allocations = functools.cache(allocations_of_a_step)


def places_of(draw: random.Random, most: int) -> list[int]:
    """Draw the allocations that fail; the second is in the attempt after the first."""
    first = draw.randrange(most)
    return [first] if draw.random() < 0.75 else [first, first + 1 + draw.randrange(most)]


def one(number: int, seed: int, dropout: float) -> dict[str, object]:
    draw = random.Random(f"{seed} {number}")
    tokens = draw.choice((1, 40, 128, 400))
    places = places_of(draw, allocations(tokens))
    options = {"dropout": dropout, "tokens": tokens}
    failing, pinned, plain = Workshop(**options), Workshop(**options), Workshop(**options)
    rows = [
        made(failing, step, set(places) if step == DISTURBED else set()) for step in range(STEPS)
    ]
    cuts = [done.cuts for done, __, __ in rows]
    same = [pinned.steps.run(step, windows_of(step), cuts[step]) for step in range(STEPS)]
    free = [plain.steps.run(step, windows_of(step)) for step in range(STEPS)]
    losses = [loss for __, loss, __ in rows]
    uncut = [float(done.result.loss) for done in free]
    return {
        "number": number,
        "dropout": dropout,
        "tokens": tokens,
        "places": places,
        "retries": rows[DISTURBED][0].oom_retries,
        "same_cut": cuts == [done.cuts for done in free],
        "bit_equal": losses == [float(done.result.loss) for done in same]
        and equal(failing.weights(), pinned.weights()),
        "live_equal": len({live for __, __, live in rows}) == 1,
        "equal_to_plain": losses == uncut and equal(failing.weights(), plain.weights()),
        "difference": max(abs(a - b) / b for a, b in zip(losses, uncut, strict=True)),
    }


def summary_of(rows: list[dict]) -> dict[str, object]:
    wet = [row for row in rows if row["dropout"]]
    at_same_cut = [row for row in wet if row["same_cut"]]
    dry = [row for row in rows if not row["dropout"]]
    return {
        "runs": len(wet),
        "failures": sum(row["retries"] for row in wet),
        "runs_that_missed_a_failure": sum(row["retries"] != len(row["places"]) for row in wet),
        "bit_equal": sum(row["bit_equal"] for row in wet),
        "live_equal": sum(row["live_equal"] for row in wet),
        "retried_at_the_same_cut": len(at_same_cut),
        "of_these_equal_to_the_plain_run": sum(row["equal_to_plain"] for row in at_same_cut),
        "without_dropout": len(dry),
        "without_dropout_cut_smaller": sum(not row["same_cut"] for row in dry),
        "without_dropout_largest_difference": max((row["difference"] for row in dry), default=0.0),
    }


def is_good(summary: dict) -> bool:
    return (
        summary["bit_equal"] == summary["live_equal"] == summary["runs"]
        and not summary["runs_that_missed_a_failure"]
        and summary["retried_at_the_same_cut"] == summary["of_these_equal_to_the_plain_run"]
        and summary["without_dropout_largest_difference"] <= 1e-6
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--count", type=int, default=200, help="runs to make")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--json", type=Path, help="rows go there, beside those of other pieces")
    args = parser.parse_args()
    begun = time.perf_counter()
    known = json.loads(args.json.read_text())["rows"] if args.json and args.json.exists() else []
    rows = {(row["number"], row["dropout"]): row for row in known}
    for number in range(args.first, args.first + args.count):
        for dropout in (0.1, 0.0):
            rows[number, dropout] = one(number, args.seed, dropout)
        if args.json:
            body = {"summary": summary_of(list(rows.values())), "rows": list(rows.values())}
            args.json.write_text(json.dumps(body, indent=1) + "\n")
    summary = summary_of(list(rows.values()))
    print(json.dumps({**summary, "seconds": round(time.perf_counter() - begun, 1)}, indent=1))
    sys.exit(0 if is_good(summary) else 1)


if __name__ == "__main__":
    main()
