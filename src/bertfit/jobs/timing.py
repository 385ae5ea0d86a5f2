"""The best plans of a card, timed on real micro-batches before a run settles on one."""

import time
from collections.abc import Callable, Sequence

import torch

from bertfit.engine.oom import Done, attempt
from bertfit.engine.recovery import Steps
from bertfit.jobs.corpus import Say
from bertfit.language import _
from bertfit.planning.candidates import Candidate
from bertfit.planning.levers import set_checkpointed
from bertfit.types import Window

# The first run of a shape loads kernels and makes blocks; the second is what later steps take.
RUNS = 2


def settle_by_clock(
    steps: Steps,
    candidates: Sequence[Candidate],
    windows: Sequence[Window],
    say: Say,
    clock: Callable[[], float] = time.perf_counter,
) -> Candidate:
    """Run forward and backward of a real step with each candidate, and keep the fastest.

    The weights are not touched. The candidates differ in their micro-batches and in the layers
    computed twice; what they share is in place.

    Args:
        steps: runs them; is left with the fastest.
        candidates: the planned one first; a tie is its.
        windows: of one step.
        say: told what the clock says of the plan.
        clock: in seconds.

    Returns:
        The fastest.
    """
    seconds: dict[Candidate, float] = {}
    for candidate in candidates:
        _take(steps, candidate)
        batches = steps.batches(windows)

        def run(batches: object = batches) -> None:
            steps.forward_backward(batches)  # type: ignore[arg-type]
            if steps.device.type == "cuda":
                torch.cuda.synchronize(steps.device)

        for _number in range(RUNS):
            begun = clock()
            done = attempt(run, steps.card)
            if not isinstance(done, Done):
                break
            seconds[candidate] = clock() - begun
        if not isinstance(done, Done):
            seconds.pop(candidate, None)
        steps.update.clear()
        steps.card.free_cached()
    planned = candidates[0]
    best = min(seconds, key=lambda candidate: seconds[candidate], default=planned)
    _take(steps, best)
    if best == planned and len(seconds) > 1:
        say(_("Timed on this card, the plan is the fastest of {count}.").format(count=len(seconds)))
    elif best != planned and planned in seconds:
        say(
            _(
                "Timed on this card, micro-batches of {tokens} tokens with {layers} layers "
                "computed twice take {share:.0%} less time than the plan: they are taken."
            ).format(
                tokens=best.micro_batch_tokens,
                layers=best.checkpointed_layers,
                share=1 - seconds[best] / seconds[planned],
            )
        )
    return best


def _take(steps: Steps, candidate: Candidate) -> None:
    set_checkpointed(steps.model, candidate.checkpointed_layers, host_state=candidate.host_state)
    steps.micro_batch_tokens = candidate.micro_batch_tokens
