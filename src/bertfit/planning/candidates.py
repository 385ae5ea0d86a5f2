"""What a plan is made for, and the neutral settings that it chooses among.

Which candidates there are depends on the job alone, never on the budget: so a larger budget can
only add to those that fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertfit.config import JobConfig
from bertfit.data.batches import cut_lengths
from bertfit.planning.estimate import BuildModel
from bertfit.planning.levers import Shape, TrainSettings
from bertfit.types import DeviceSpec, LengthProfile

# Steps drawn from the lengths, whose mean time stands for all.
SAMPLED_STEPS = 8
# Above so many windows in a step not every number of them is tried.
_MOST_SIZES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Levers that the user has set; None leaves one to the plan."""

    micro_batch_tokens: int | None = None
    activation_checkpointing: int | None = None
    host_state: bool | None = None
    autocast_cache: bool | None = None
    expandable_segments: bool | None = None

    @classmethod
    def of(cls, job: JobConfig) -> "Pins":
        """Take them from a job."""
        return cls(**{name: getattr(job, name) for name in cls.__slots__})

    def given(self) -> dict[str, object]:
        """Return those that are set."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """What a plan is made for.

    Attributes:
        model: its name, for messages.
        build_model: gives it, on `meta`.
        settings: of the job; the levers that `Candidate` has are not looked at, nor the steps.
        lengths: of all windows of an epoch.
        windows_per_step: in one optimizer step.
        num_steps: of the whole job.
        device: the card.
        budget_bytes: what the job may take of it.
        host_bytes: what it may take of the host's memory.
        pins: what the user has set.
        is_fenced: torch's allocator is capped at the budget; without one the card's end is the end.
    """

    model: str
    build_model: BuildModel
    settings: TrainSettings
    lengths: LengthProfile
    windows_per_step: int
    num_steps: int
    device: DeviceSpec
    budget_bytes: int
    host_bytes: int
    pins: Pins = Pins()
    is_fenced: bool = True

    @property
    def longest(self) -> int:
        """Tokens of the longest window."""
        return max(self.lengths.histogram)

    @property
    def is_even(self) -> bool:
        """Whether all windows are of one length, so that no batch needs a mask."""
        return len(self.lengths.histogram) == 1

    def steps(self) -> list[list[int]]:
        """Draw the lengths of some steps, always the same, each falling."""
        lengths = sorted(self.lengths.histogram)
        if self.is_even:
            return [[lengths[0]] * self.windows_per_step]
        counts = np.array([self.lengths.histogram[length] for length in lengths], float)
        draw = np.random.default_rng(0)
        drawn = draw.choice(
            lengths, (SAMPLED_STEPS, self.windows_per_step), p=counts / counts.sum()
        )
        return [sorted(map(int, step), reverse=True) for step in drawn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One choice of the neutral levers.

    Attributes:
        micro_batch_tokens: padded tokens of a micro-batch, at most.
        checkpointed_layers: so many of the first layers are computed twice.
        host_state: fp32 weights and optimizer live on the host.
        autocast_cache: 16-bit copies of the weights live as long as a forward.
        expandable_segments: as in `PYTORCH_ALLOC_CONF`.
    """

    micro_batch_tokens: int
    checkpointed_layers: int
    host_state: bool
    autocast_cache: bool
    expandable_segments: bool

    def settings(self, facts: JobFacts, steps: tuple[tuple[Shape, ...], ...]) -> TrainSettings:
        """Return the settings of the job with these levers."""
        return replace(
            facts.settings,
            steps=steps,
            padded=not facts.is_even,
            checkpointed_layers=self.checkpointed_layers,
            autocast_cache=self.autocast_cache,
            expandable_segments=self.expandable_segments,
            host_state=self.host_state,
        )


def candidates(facts: JobFacts, num_layers: int, *, shares_layers: bool) -> list[Candidate]:
    """List every choice of the levers that is not pinned otherwise.

    Args:
        facts: the job.
        num_layers: of the encoder that can be computed twice.
        shares_layers: one layer's weights are used several times in a forward (ALBERT). Only then
            does a cast that is kept save another, so else none is kept.
    """
    pins = facts.pins
    sizes = [pins.micro_batch_tokens] if pins.micro_batch_tokens else _sizes(facts)
    layers: Sequence[int] = range(num_layers + 1)
    if pins.activation_checkpointing is not None:
        layers = [pins.activation_checkpointing]
    homes = [False, True] if pins.host_state is None else [pins.host_state]
    cached = shares_layers if pins.autocast_cache is None else pins.autocast_cache
    return [
        Candidate(
            micro_batch_tokens=tokens,
            checkpointed_layers=count,
            host_state=on_host,
            autocast_cache=cached,
            expandable_segments=pins.expandable_segments is not False,
        )
        for on_host in homes
        for tokens in sizes
        for count in layers
    ]


def _sizes(facts: JobFacts) -> list[int]:
    """Return micro-batches, in tokens, that cut a step of the longest windows evenly."""
    windows = facts.windows_per_step
    parts = range(1, windows + 1)
    counts = sorted({-(-windows // part) for part in parts})
    if len(counts) > _MOST_SIZES:
        places = np.geomspace(1, len(counts), _MOST_SIZES).round().astype(int) - 1
        counts = [counts[place] for place in sorted(set(places))]
    return [count * facts.longest for count in counts]


def cut_step(lengths: Sequence[int], micro_batch_tokens: int) -> list[Shape]:
    """Return the micro-batches of a step, as training cuts it."""
    ranges = cut_lengths(lengths, micro_batch_tokens)
    return [(last - first, lengths[first]) for first, last in ranges]


def hardest_step(facts: JobFacts, micro_batch_tokens: int) -> list[Shape]:
    """Return micro-batches that need as much memory as any step of the job.

    Where lengths differ: twice the largest of the longest windows, which is what training rehearses
    before its first step, and a smaller one that must find its place between their blocks.
    """
    drawn = facts.steps()[0]
    if facts.is_even:
        shapes = cut_step(drawn, micro_batch_tokens)
        # A third micro-batch of one shape finds everything as the second did.
        return [s for place, s in enumerate(shapes) if shapes[:place].count(s) < 2]
    windows = max(1, min(micro_batch_tokens // facts.longest, facts.windows_per_step))
    return [(windows, facts.longest)] * 2 + cut_step(drawn, micro_batch_tokens)[-1:]


def hardest_steps(facts: JobFacts, micro_batch_tokens: int) -> tuple[tuple[Shape, ...], ...]:
    """Return steps whose need, over and over, is that of the job.

    Where lengths differ a usual step goes with the hardest one: its blocks are of other sizes, and
    leave gaps between those of the hardest.
    """
    hardest = tuple(hardest_step(facts, micro_batch_tokens))
    if facts.is_even:
        return (hardest,)
    return hardest, tuple(cut_step(facts.steps()[0], micro_batch_tokens))
