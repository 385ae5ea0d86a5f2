"""Any shape at once: one program gives the same events for every shape, only the sizes change.

Inside a region of shapes the stream of events is the same and every size is a constant times a
product of batch and length, or follows from a kernel's rule. A few traces show the constants, and
every other shape costs one replay. What does not fit exactly is traced afresh, never guessed.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertfit.memory.allocator import CachingAllocator
from bertfit.memory.index_kernels import EMBEDDING_SORT_ABOVE
from bertfit.memory.kernels import SizeRule, round_up
from bertfit.memory.trace import Recorder, Slot
from bertfit.planning.estimate import BuildModel, Simulation, simulate, summarize
from bertfit.planning.levers import Settings, Shape
from bertfit.types import DeviceSpec, MemoryEstimate

NUM_TRACES = 4  # two would show a constant; the others prove that it is one

NUM_FEATURES = 12

MakeSettings = Callable[[Shape], Settings]
Varying = tuple[tuple[str, tuple[int, int]], ...]  # name -> (factor, feature)


def features(shape: Shape) -> NDArray[np.int64]:
    """Return the products of batch B and length T that sizes are multiples of.

    Lengths are also rounded up to 8 (rows of attention masks) and to 32 and 128 (kernels).
    """
    batch, length = shape
    to8 = round_up(length, 8)
    # Constants first: where several products fit all traces, the simplest is taken.
    return np.array(
        [
            1,
            batch,
            length,
            batch * length,
            length * length,
            batch * length * length,
            to8,
            batch * to8,
            length * to8,
            batch * length * to8,
            batch * round_up(length, 32),
            batch * round_up(length, 128),
        ],
        dtype=np.int64,
    )


def region_of(shape: Shape) -> tuple[bool, ...]:
    """Say on which side of every switch of algorithm or layout a shape lies."""
    batch, length = shape
    tokens = batch * length
    return (
        batch == 1,
        length == 1,
        length % 8 == 0,
        tokens > EMBEDDING_SORT_ABOVE,
        length > EMBEDDING_SORT_ABOVE,
        tokens > 64 * 1024,  # LayerNorm's backward, `kernels.layer_norm_blocks`
    )


def neighbours(shape: Shape, count: int, longest: int) -> list[Shape]:
    """Return shapes of the same region, the given one first, that tell the features apart.

    Drawn with a fixed seed, so the same question is always answered by the same traces. Large
    shapes cost no more than small ones: nothing is computed.
    """
    draw = random.Random(0)
    region = region_of(shape)
    best: list[Shape] = []
    most = -1
    for _attempt in range(200):
        shapes = [shape]
        for _try in range(400):
            length = draw.randint(1, max(longest, shape[1]))
            length = round_up(length, 8) if shape[1] % 8 == 0 else length
            other = (draw.randint(1, 2 * shape[0] + 64), length)
            if length <= max(longest, shape[1]) and region_of(other) == region:
                shapes.append(other)
            if len(shapes) == count:
                break
        told_apart = _told_apart(shapes)
        if len(shapes) == count and told_apart > most:
            best, most = shapes, told_apart
        if most == NUM_FEATURES * (NUM_FEATURES - 1) // 2:
            break
    return best


def _told_apart(shapes: list[Shape]) -> int:
    """Count the pairs of features that are not multiples of each other over these shapes."""
    table = np.stack([features(shape) for shape in shapes]).astype(float)
    scaled = table / table[0]
    return sum(
        not np.array_equal(scaled[:, a], scaled[:, b])
        for a in range(NUM_FEATURES)
        for b in range(a)
    )


@dataclass(frozen=True, kw_only=True)
class Template:
    """The events of a program in one region of shapes.

    Attributes:
        trace: one of the traces, for everything but sizes.
        factors: (N,) what the size of each block is a multiple of, in units of its feature.
        columns: (N,) which feature that is.
        rules: block -> rule and its varying arguments as multiples.
        slots: position in the stream -> what is left out there, and the rule's arguments.
        rounds: positions in the stream where a round of the program ends.
        pinned: (factor, feature) of each block of the host's pinned memory.
    """

    trace: Recorder
    factors: NDArray[np.int64]
    columns: NDArray[np.int64]
    rules: dict[int, tuple[SizeRule, Varying]]
    slots: dict[int, tuple[Slot, Varying]]
    rounds: frozenset[int]
    pinned: tuple[tuple[int, int], ...]

    def holds(self, shape: Shape) -> bool:
        """Say whether the same blocks are there: a rule may give nothing for some shapes."""
        products = features(shape)
        return all(
            any(rule.sizes(_evaluate(varying, products))) == bool(self.trace.sizes[block])
            for block, (rule, varying) in self.rules.items()
        )

    def expand(self, shape: Shape) -> tuple[Recorder, list[int]]:
        """Return the trace of a shape, and where the rounds of its program end."""
        products = features(shape)
        old = self.trace
        new = Recorder()
        new.sizes = (self.factors * products[self.columns]).tolist()
        for block, (rule, varying) in self.rules.items():
            (new.sizes[block],) = rule.sizes(_evaluate(varying, products))
        new.categories = list(old.categories)
        new.places = list(old.places)
        new.ops = list(old.ops)
        new.pinned = [factor * int(products[column]) for factor, column in self.pinned]
        rounds = []
        skip = 0
        held: list[int] = []
        for position, entry in enumerate([*old.stream, 0]):
            if position in self.rounds:
                rounds.append(len(new.stream))
            found = self.slots.get(position)
            if found is not None:
                slot, varying = found
                skip = slot.events
                if slot.kind != "return":
                    where = old.places[entry if entry >= 0 else ~entry]
                    new.phase, new.module = self._place(position, where)
                    sizes = slot.rule.sizes(_evaluate(varying, products))
                    held = [new.alloc(size, "workspace") for size in sizes]
                if slot.kind != "take":
                    for block in reversed(held):
                        new.free(block)
            if skip:
                skip -= 1
            elif position < len(old.stream):
                new.stream.append(entry)
        return new, rounds

    def _place(self, position: int, otherwise: tuple[str, str]) -> tuple[str, str]:
        before = self.trace.stream[position - 1] if position else 0
        return self.trace.places[before] if before >= 0 else otherwise


def _evaluate(varying: Varying, products: NDArray[np.int64]) -> list[tuple[str, int]]:
    return [(name, factor * int(products[column])) for name, (factor, column) in varying]


def _fit(values: list[int], table: NDArray[np.int64]) -> tuple[int, int] | None:
    """Find the simplest feature that all values are one multiple of."""
    for column in range(table.shape[1]):
        factor, rest = divmod(values[0], int(table[0, column]))
        if rest == 0 and all(
            factor * int(product) == value
            for product, value in zip(table[:, column], values, strict=True)
        ):
            return factor, column
    return None


def fit(traces: list[Recorder], shapes: list[Shape]) -> Template | None:
    """Find the template that all traces follow, or None where there is none."""
    table = np.stack([features(shape) for shape in shapes])
    plain = [_without_slots(trace) for trace in traces]
    if any(other != plain[0] for other in plain[1:]):
        return None
    first = traces[0]
    numbers = [_numbering(trace) for trace in traces]
    count = len(first.sizes)
    factors, columns = np.zeros(count, np.int64), np.zeros(count, np.int64)
    rules: dict[int, tuple[SizeRule, Varying]] = {}
    for at, block in enumerate(numbers[0]):
        blocks = [number[at] for number in numbers]
        rule = first.rules.get(block)
        if rule is not None:
            varying = _fit_rule([t.rules[b] for t, b in zip(traces, blocks, strict=True)], table)
            if varying is None:
                return None
            rules[block] = rule, varying
            continue
        found = _fit([t.sizes[b] for t, b in zip(traces, blocks, strict=True)], table)
        if found is None:
            return None
        factors[block], columns[block] = found
    if any(len(trace.pinned) != len(first.pinned) for trace in traces):
        return None
    pinned: list[tuple[int, int]] = []
    for sizes in zip(*(trace.pinned for trace in traces), strict=True):
        found = _fit(list(sizes), table)
        if found is None:
            return None
        pinned.append(found)
    slots: dict[int, tuple[Slot, Varying]] = {}
    for group in zip(*(trace.slots for trace in traces), strict=True):
        varying = _fit_rule([slot.rule for slot in group], table)
        if varying is None or group[0].position in slots:
            return None
        slots[group[0].position] = group[0], varying
    return Template(
        trace=first,
        factors=factors,
        columns=columns,
        rules=rules,
        slots=slots,
        rounds=frozenset(position for position, _name in first.marks),
        pinned=tuple(pinned),
    )


def _fit_rule(rules: list[SizeRule], table: NDArray[np.int64]) -> Varying | None:
    first = rules[0]
    if any(r.function is not first.function or r.fixed != first.fixed for r in rules):
        return None
    fitted = []
    for values in zip(*(rule.varying for rule in rules), strict=True):
        found = _fit([value for _name, value in values], table)
        if found is None:
            return None
        fitted.append((values[0][0], found))
    return tuple(fitted)


def _slot_positions(trace: Recorder) -> set[int]:
    return {slot.position + number for slot in trace.slots for number in range(slot.events)}


def _numbering(trace: Recorder) -> list[int]:
    """Return the blocks that are in every trace, in order."""
    left_out = _slot_positions(trace)
    return [
        entry
        for position, entry in enumerate(trace.stream)
        if entry >= 0 and position not in left_out
    ]


def _without_slots(trace: Recorder) -> list[int]:
    """Return the stream without slots, blocks counted anew, and the places of the slots."""
    left_out = _slot_positions(trace)
    starts = {slot.position for slot in trace.slots}
    names: dict[int, int] = {}
    plain = []
    for position, entry in enumerate(trace.stream):
        if position in starts:
            plain.append(1 << 40)
        if position in left_out:
            continue
        if entry >= 0:
            names[entry] = len(names)
            plain.append(names[entry])
        else:
            plain.append(~names[~entry])
    return plain


class ShapeFamily:
    """Estimates one job for any shape of its batches.

    Args:
        build_model: gives the model, on `meta`.
        make_settings: gives the levers for a shape (windows, tokens).
        device: the card.
        longest: no more tokens than the model has positions.
    """

    def __init__(
        self,
        build_model: BuildModel,
        make_settings: MakeSettings,
        device: DeviceSpec,
        *,
        longest: int = 512,
    ) -> None:
        self.longest = longest
        self.build_model = build_model
        self.make_settings = make_settings
        self.device = device
        self.num_traces = 0
        self._host_bytes = 0
        self._templates: dict[tuple[bool, ...], Template | None] = {}

    def estimate(self, shape: Shape) -> MemoryEstimate:
        """Return what `estimate_memory` would, from a replay where that is exact."""
        return summarize(self.simulate(shape), self.device)

    def simulate(self, shape: Shape) -> Simulation:
        """Replay a shape; a shape that a template does not fit is traced."""
        region = region_of(shape)
        if region not in self._templates:
            self._templates[region] = self._learn(shape)
        template = self._templates[region]
        if template is None or not template.holds(shape):
            return self._trace(shape)
        simulation = self._replay(template, shape)
        return simulation or self._trace(shape)

    def _replay(self, template: Template, shape: Shape) -> Simulation | None:
        """Replay a template; None where the program is not steady in as many rounds."""
        settings = self.make_settings(shape)
        trace, rounds = template.expand(shape)
        allocator = CachingAllocator(expandable_segments=settings.expandable_segments)
        simulation = Simulation(allocator=allocator, trace=trace, host_bytes=self._host_bytes)
        peaks = []
        for end in rounds:
            simulation.advance(end)
            peaks.append(allocator.peak_reserved_bytes)
        simulation.finish()
        return simulation if len(peaks) > 1 and peaks[-1] == peaks[-2] else None

    def _trace(self, shape: Shape) -> Simulation:
        self.num_traces += 1
        found = simulate(self.build_model, self.make_settings(shape), self.device)
        self._host_bytes = found.host_bytes  # the same for every shape
        return found

    def _learn(self, shape: Shape) -> Template | None:
        shapes = neighbours(shape, NUM_TRACES, self.longest)
        if len(shapes) < NUM_TRACES:
            return None
        return fit([self._trace(other).trace for other in shapes], shapes)
