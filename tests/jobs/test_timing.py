"""Which of the planned candidates a card's own clock prefers."""

from bertfit.jobs.timing import RUNS, settle_by_clock
from bertfit.planning.candidates import Candidate
from engine.test_recovery import Workshop, equal, windows_of


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
    assert not said
