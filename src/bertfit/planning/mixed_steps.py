"""Steps made of micro-batches of any shapes, put together from pieces that few traces show.

Within a step a micro-batch asks for the same memory whatever came before it, except that the first
makes the gradients that the others add to. So a trace of a step with two micro-batches of one
shape shows the pieces for that shape, `planning.shapes` gives them for every other, and
`planning.layers_twice` for any number of layers that are computed twice.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import replace
from itertools import pairwise

import torch

from bertfit.memory.allocator import CachingAllocator
from bertfit.memory.kernels import Chip
from bertfit.memory.trace import Recorder, record
from bertfit.planning import program
from bertfit.planning.estimate import MAX_CYCLES, BuildModel, Simulation, summarize
from bertfit.planning.host import host_bytes
from bertfit.planning.layers_twice import RETURNED, Event, twice_below
from bertfit.planning.levers import Shape, TrainSettings, encoder_layers
from bertfit.planning.shapes import NUM_TRACES, Template, fit, neighbours, region_of
from bertfit.types import DeviceSpec, MemoryEstimate

Steps = tuple[tuple[Shape, ...], ...]

_CARD = torch.device("cuda")
# Pieces of the first step whose lasting blocks are those of a later one.
_ALIKE = {"setup": "clear", "warm": "first", "warm-update": "update"}
# The pieces in the order of `StepFamily._trace`, and those whose layers may be computed twice.
_ORDER = ("setup", "warm", "warm-update", "clear", "first", "later", "update")
_OF_LAYERS = ("warm", "first", "later")


Pieces = dict[str, list[Event]]
"""The pieces of a job for one shape.

`setup` makes weights and optimizer state; `warm` is the very first micro-batch, which also makes
the workspaces of cuBLAS, and `warm-update` ends its step. In every later step `clear` drops the
gradients, `first` makes them, `later` adds to them, and `update` ends it.
"""


class StepFamily:
    """Estimates one training job for any list of steps, with any number of layers computed twice.

    Args:
        build_model: gives the model, on `meta`.
        settings: the levers; their steps are not looked at.
        device: the card.
        longest: no more tokens than the model has positions.

    Attributes:
        num_traces: how often the job was traced so far.
    """

    def __init__(
        self,
        build_model: BuildModel,
        settings: TrainSettings,
        device: DeviceSpec,
        *,
        longest: int = 512,
    ) -> None:
        self.build_model, self.settings = build_model, settings
        self.device, self.longest = device, longest
        self.num_traces = 0
        self._num_layers = 0
        self._layer_of: dict[str, int] = {}
        self._host_bytes = 0
        self._pinned: dict[tuple[Shape, int], list[int]] = {}
        self._asked: dict[tuple[object, int], int] = defaultdict(int)
        self._templates: dict[tuple[object, int], Template | None] = {}
        self._pieces: dict[tuple[Shape, int], Pieces] = {}

    def estimate(self, steps: Steps, checkpointed_layers: int | None = None) -> MemoryEstimate:
        """Return what `estimate_memory` says of the steps.

        Args:
            steps: micro-batches of each.
            checkpointed_layers: so many of the first layers are computed twice; None is as in the
                settings.
        """
        return summarize(self.simulate(steps, checkpointed_layers), self.device)

    def simulate(self, steps: Steps, checkpointed_layers: int | None = None) -> Simulation:
        """Replay the steps, as often as it takes to be steady; see `estimate`."""
        count = checkpointed_layers
        count = self.settings.checkpointed_layers if count is None else count
        allocator = CachingAllocator(expandable_segments=self.settings.expandable_segments)
        whole = _Joined()
        whole.add(self._of(steps[0][0], count)["setup"])
        simulation = Simulation(allocator=allocator, trace=whole.trace)
        peak = -1
        for number in range(MAX_CYCLES + 1):
            for events in self._round(steps, count, is_first=number == 0):
                whole.add(events)
            simulation.advance()
            if number >= 2 and allocator.peak_reserved_bytes == peak:
                break
            peak = allocator.peak_reserved_bytes
        simulation.finish()
        simulation.host_bytes = self._host_bytes
        shapes = {shape for step in steps for shape in step}
        whole.trace.pinned = max((self._pinned[shape, count] for shape in shapes), key=sum)
        return simulation

    def _round(self, steps: Steps, count: int, *, is_first: bool) -> Iterator[list[Event]]:
        for at, step in enumerate(steps):
            warm = is_first and at == 0
            if not warm:
                yield self._of(step[0], count)["clear"]
            yield self._of(step[0], count)["warm" if warm else "first"]
            for shape in step[1:]:
                yield self._of(shape, count)["later"]
            yield self._of(step[-1], count)["warm-update" if warm else "update"]

    def _of(self, shape: Shape, count: int) -> Pieces:
        known = self._pieces.get((shape, count))
        if known is None:
            known = self._joined(shape, count)
            if known is None:
                trace, marks = self._trace_or_replay(shape, count)
                known, self._pinned[shape, count] = _cut(trace, marks), trace.pinned
            self._pieces[shape, count] = known
        return known

    def _joined(self, shape: Shape, count: int) -> Pieces | None:
        """Join what is known of none and of all layers computed twice; None where that fails."""
        if not self._layer_of:
            self._learn_layers()
        if not 0 < count < self._num_layers:
            return None
        none, every = self._of(shape, 0), self._of(shape, self._num_layers)
        pieces = dict(none)
        for name in _OF_LAYERS:
            joined = twice_below(none[name], every[name], count, self._num_layers, self._layer_at)
            if joined is None:
                self._num_layers = 0  # the next number of layers is traced at once
                return None
            pieces[name] = joined
        # Rows for the inputs of layers, where they go to the host.
        lasting, rows = (self._pinned[shape, known] for known in (0, self._num_layers))
        self._pinned[shape, count] = lasting + [
            size * count // self._num_layers for size in rows[len(lasting) :]
        ]
        return pieces

    def _learn_layers(self) -> None:
        model, __ = program.prepare(
            self.build_model(), replace(self.settings, checkpointed_layers=0)
        )
        numbers = {id(layer): number for number, layer in enumerate(encoder_layers(model))}
        self._num_layers = len(numbers)
        for name, part in model.named_modules():
            above = self._layer_of.get(name.rpartition(".")[0], -1)
            self._layer_of[name] = numbers.get(id(part), above)

    def _layer_at(self, module: str) -> int:
        return self._layer_of.get(module, -1)

    def _trace_or_replay(self, shape: Shape, count: int) -> tuple[Recorder, list[int]]:
        kind = region_of(shape), count
        self._asked[kind] += 1
        if kind not in self._templates and self._asked[kind] >= NUM_TRACES:
            # Fewer shapes are traced one by one.
            shapes = neighbours(shape, NUM_TRACES, self.longest)
            enough = len(shapes) == NUM_TRACES
            self._templates[kind] = (
                fit([self._trace(other, count) for other in shapes], shapes) if enough else None
            )
        template = self._templates.get(kind)
        if template is not None and template.holds(shape):
            return template.expand(shape)
        trace = self._trace(shape, count)
        return trace, [position for position, __ in trace.marks]

    def _trace(self, shape: Shape, count: int) -> Recorder:
        """Trace a step of one micro-batch and one of two, all of one shape.

        Where gradients leave the card a second micro-batch does as the first, and is left out.
        """
        self.num_traces += 1
        steps = ((shape,), (shape,) if self.settings.host_state else (shape, shape))
        settings = replace(self.settings, steps=steps, checkpointed_layers=count)
        chip = Chip(
            compute_capability=self.device.compute_capability,
            multiprocessors=self.device.multiprocessors,
        )
        model, layers = program.prepare(self.build_model(), settings)
        with record(chip, mask_is_full=not settings.padded) as trace:

            def mark(name: str) -> None:
                if name != "step" or trace.marks:  # weights and state are one piece with its begin
                    trace.mark(name)

            rounds = program.run(model, layers, settings, _CARD, mark)
            next(rounds)
            trace.mark("end")  # before the weights go
        self._host_bytes = host_bytes(model, settings, trace.bytes_of("optimizer_state"))
        return trace


class _Joined:
    """One stream of events out of pieces, with blocks counted anew."""

    def __init__(self) -> None:
        self.trace = Recorder()
        # Oldest first: a step makes some of what it leaves before what the last one left goes.
        self._blocks: dict[Hashable, list[int]] = defaultdict(list)

    def add(self, events: list[Event]) -> None:
        """Append a piece."""
        trace, blocks = self.trace, self._blocks
        for event in events:
            if event.size_bytes == RETURNED:
                trace.free(blocks[event.key].pop(0))
                continue
            trace.phase, trace.module = event.place
            blocks[event.key].append(trace.alloc(event.size_bytes, event.category))


def _cut(trace: Recorder, marks: list[int]) -> Pieces:
    """Cut the trace of `StepFamily._trace` at its marks."""
    order = _ORDER if len(marks) == len(_ORDER) else [name for name in _ORDER if name != "later"]
    borders = dict(zip(order, pairwise([0, *marks]), strict=True))
    names = _names(trace.stream, borders)
    pieces: Pieces = {}
    for name, (start, stop) in borders.items():
        pieces[name] = []
        for entry in trace.stream[start:stop]:
            block = entry if entry >= 0 else ~entry
            size = trace.sizes[block] if entry >= 0 else RETURNED
            key = names.get(block, block)
            pieces[name].append(Event(key, size, trace.categories[block], trace.places[block]))
    pieces.setdefault("later", pieces["first"])
    return pieces


def _names(stream: list[int], borders: dict[str, tuple[int, int]]) -> dict[int, Hashable]:
    """Name the blocks that outlive their piece, the same for every shape and every step."""
    went = {~entry: position for position, entry in enumerate(stream) if entry < 0}
    names: dict[int, Hashable] = {}
    for name, (start, stop) in borders.items():
        lasting = [e for e in stream[start:stop] if e >= 0 and went.get(e, stop) >= stop]
        # What the last step leaves would go in the next one; what the first step leaves for good
        # (weights, workspaces) is nowhere else.
        returning = [e for e in lasting if e in went or name not in _ALIKE]
        for number, block in enumerate(returning):
            names[block] = (_ALIKE.get(name, name), number)
        for number, block in enumerate(e for e in lasting if e not in set(returning)):
            names[block] = (name, "for good", number)
    return names
