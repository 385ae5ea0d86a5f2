"""Which of the planned candidates a card's own clock prefers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.shared import stub_runtime

from bertfit.jobs.timing import RUNS, settle_by_clock
from bertfit.planning.candidates import Candidate
from engine.test_recovery import Workshop, equal, windows_of
from jobs.corpora import write_corpus


def candidate(tokens: int, layers: int) -> Candidate:
    return Candidate(
        micro_batch_tokens=tokens,
        checkpointed_layers=layers,
        host_state=False,
        autocast_cache=False,
        expandable_segments=True,
    )


def clock_of(*seconds: float) -> list[float]:
    """Begin and end of every run, the first of each candidate being slow."""
    times, now = [], 0.0
    for each in seconds:
        for run in range(RUNS):
            times += [now, now + each + (10.0 if run == 0 else 0.0)]
            now = times[-1]
    return times


def test_the_faster_candidate_is_taken_and_said() -> None:
    shop, said = Workshop(), []
    before = shop.weights()
    planned, other = candidate(128, 0), candidate(64, 2)
    times = iter(clock_of(2.0, 1.0))
    best = settle_by_clock(
        shop.steps, [planned, other], windows_of(0), said.append, lambda: next(times)
    )
    assert best == other
    assert shop.steps.micro_batch_tokens == 64
    assert sum(bool(getattr(m, "gradient_checkpointing", False)) for m in shop.model.modules()) >= 2
    assert "50%" in said[0]
    assert equal(before, shop.weights())
    assert all(p.grad is None for p in shop.model.parameters())


def test_the_plan_stays_where_the_clock_agrees() -> None:
    shop, said = Workshop(), []
    planned, other = candidate(128, 0), candidate(64, 2)
    times = iter(clock_of(1.0, 1.0))
    best = settle_by_clock(
        shop.steps, [planned, other], windows_of(0), said.append, lambda: next(times)
    )
    assert best == planned
    assert not any(getattr(m, "gradient_checkpointing", False) for m in shop.model.modules())
    assert said == ["Timed on this card, the plan is the fastest of 2."]


@pytest.mark.slow
def test_a_run_on_a_card_times_three_plans_before_its_first_step(tmp_path: Path) -> None:
    """On the stub runtime: times mean nothing there, but torch believes in the card."""
    with stub_runtime():
        from stub import build_folder

        built = build_folder()
    data, folder = write_corpus(tmp_path / "t.jsonl", 96), tmp_path / "run"
    job = f"--model tiny --train-file {data} --output-dir {folder} --num-train-epochs 1 --lang en"
    done = subprocess.run(
        [sys.executable, "-m", "bertfit", "train", "--device", "cuda", *job.split()],
        env={
            **os.environ,
            "LD_PRELOAD": str(built / "libphantom.so"),
            "LD_LIBRARY_PATH": str(built),
            "PHANTOM_MEMORY": "4GiB",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = re.search(
        r"Timed on this card, (?:the plan is the fastest of 3|micro-batches of (\d+) tokens)",
        done.stderr,
    )
    assert said is not None, done.stderr
    planned = json.loads((folder / "plan.json").read_text())["chosen"]["micro_batch_tokens"]
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert len(steps) > 1 and not any(step["oom_retries"] for step in steps)
    if said[1] is None or int(said[1]) == planned:
        assert len({len(step["cuts"]) for step in steps[:-1]}) == 1
