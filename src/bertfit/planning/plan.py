"""A plan: the fastest settings that fit, what they need, and what lost."""

from dataclasses import dataclass

from bertfit.planning.candidates import Candidate
from bertfit.planning.choice import NEAREST, Rejected, choose, is_hopeless, is_tight, slower
from bertfit.planning.levers import TrainSettings
from bertfit.planning.planner import Planner
from bertfit.planning.refusal import nothing_fits
from bertfit.types import MemoryEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a job runs, and why.

    Attributes:
        chosen: the levers.
        settings: the whole of the settings; their step is the hardest, not a usual one.
        estimate: what it needs.
        micro_batches: in a usual step, the mean of those that were drawn.
        step_seconds: of a usual step, estimated.
        tokens_per_second: real tokens, padding not counted.
        job_seconds: of all steps, evaluation not counted.
        rejected: candidates that were faster but do not fit, then such as fit but are slower.
    """

    chosen: Candidate
    settings: TrainSettings
    estimate: MemoryEstimate
    micro_batches: float
    step_seconds: float
    tokens_per_second: float
    job_seconds: float
    rejected: tuple[Rejected, ...]

    def nearest_rejected(self, count: int = NEAREST) -> list[Rejected]:
        """Return the losers next to the winner: too large by least, then the slower ones."""
        slower = [r for r in self.rejected if r.step_seconds >= self.step_seconds]
        large = [r for r in self.rejected if r.step_seconds < self.step_seconds]
        return large[-count:] + slower[:count]


def make_plan(planner: Planner) -> Plan:
    """Choose the fastest settings that fit the budget and the host's memory of the job.

    Raises:
        ConfigError: a lever that the user has set does not fit, and without it the job would.
        BudgetError: nothing fits; the message has the floor.
    """
    facts = planner.facts
    if is_tight(planner) and is_hopeless(planner):
        raise nothing_fits(planner)
    chosen, rejected = choose(planner, facts.budget_bytes, facts.host_bytes)
    if chosen is None:
        raise nothing_fits(planner)
    seconds = planner.seconds[chosen]
    return Plan(
        chosen=chosen,
        settings=planner.settings(chosen),
        estimate=planner.need_in_fence(chosen),
        micro_batches=planner.micro_batches[chosen.micro_batch_tokens],
        step_seconds=seconds,
        tokens_per_second=planner.step_tokens / seconds,
        job_seconds=seconds * facts.num_steps,
        rejected=(*rejected, *slower(planner, chosen)),
    )
