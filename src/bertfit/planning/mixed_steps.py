"""Steps made of micro-batches of any shapes, put together from pieces that few traces show.

Within a step a micro-batch asks for the same memory whatever came before it, except that the first
makes the gradients that the others add to. So a trace of a step with two micro-batches of one
shape shows the pieces for that shape, and `planning.shapes` gives them for every other.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch

from bertfit.memory.allocator import CachingAllocator
from bertfit.memory.kernels import Chip
from bertfit.memory.trace import Recorder, record
from bertfit.planning import program
from bertfit.planning.estimate import MAX_CYCLES, BuildModel, Simulation, summarize
from bertfit.planning.host import host_bytes
from bertfit.planning.levers import Shape, TrainSettings
from bertfit.planning.shapes import NUM_TRACES, Template, fit, neighbours, region_of
from bertfit.types import Category, DeviceSpec, MemoryEstimate

Steps = tuple[tuple[Shape, ...], ...]

_CARD = torch.device("cuda")
# Pieces of the first step whose lasting blocks are those of a later one.
_ALIKE = {"setup": "clear", "warm": "first", "warm-later": "later", "warm-update": "update"}


@dataclass(frozen=True, slots=True)
class _Event:
    """A request or a return; `key` names the block within its piece, or through the whole job."""

    key: Hashable
    size_bytes: int  # -1 for a return
    category: Category
    place: tuple[str, str]


Pieces = dict[str, list[_Event]]
"""The pieces of a job for one shape.

`setup` makes weights and optimizer state; `warm` is the very first micro-batch, which also makes
the workspaces of cuBLAS, and `warm-update` ends its step. In every later step `clear` drops the
gradients, `first` makes them, `later` adds to them, and `update` ends it.
"""


class StepFamily:
    """Estimates one training job for any list of steps.

    Args:
        build_model: gives the model, on `meta`.
        make_settings: gives the levers for a list of steps.
        device: the card.
        longest: no more tokens than the model has positions.
    """

    def __init__(
        self,
        build_model: BuildModel,
        make_settings: Callable[[Steps], TrainSettings],
        device: DeviceSpec,
        *,
        longest: int = 512,
    ) -> None:
        self.build_model, self.make_settings = build_model, make_settings
        self.device, self.longest = device, longest
        self.num_traces = 0
        self._host_bytes = 0
        self._templates: dict[tuple[bool, ...], Template | None] = {}
        self._pieces: dict[Shape, Pieces] = {}

    def estimate(self, steps: Steps) -> MemoryEstimate:
        """Return what `estimate_memory` says of the steps."""
        return summarize(self.simulate(steps), self.device)

    def simulate(self, steps: Steps) -> Simulation:
        """Replay the steps, as often as it takes to be steady."""
        settings = self.make_settings(steps)
        allocator = CachingAllocator(expandable_segments=settings.expandable_segments)
        whole = _Joined()
        whole.add(self._of(steps[0][0])["setup"])
        simulation = Simulation(allocator=allocator, trace=whole.trace)
        peak = -1
        for number in range(MAX_CYCLES + 1):
            for events in self._round(steps, is_first=number == 0):
                whole.add(events)
            simulation.advance()
            if number >= 2 and allocator.peak_reserved_bytes == peak:
                break
            peak = allocator.peak_reserved_bytes
        simulation.finish()
        simulation.host_bytes = self._host_bytes
        return simulation

    def _round(self, steps: Steps, *, is_first: bool) -> Iterator[list[_Event]]:
        for at, step in enumerate(steps):
            warm = is_first and at == 0
            if not warm:
                yield self._of(step[0])["clear"]
            yield self._of(step[0])["warm" if warm else "first"]
            for shape in step[1:]:
                yield self._of(shape)["later"]
            yield self._of(step[-1])["warm-update" if warm else "update"]

    def _of(self, shape: Shape) -> Pieces:
        if shape not in self._pieces:
            self._pieces[shape] = _cut(*self._trace_or_replay(shape))
        return self._pieces[shape]

    def _trace_or_replay(self, shape: Shape) -> tuple[Recorder, list[int]]:
        region = region_of(shape)
        if region not in self._templates:
            shapes = neighbours(shape, NUM_TRACES, self.longest)
            enough = len(shapes) == NUM_TRACES
            self._templates[region] = (
                fit([self._trace(other) for other in shapes], shapes) if enough else None
            )
        template = self._templates[region]
        if template is not None and template.holds(shape):
            return template.expand(shape)
        trace = self._trace(shape)
        return trace, [position for position, __ in trace.marks]

    def _trace(self, shape: Shape) -> Recorder:
        """Trace two steps of two micro-batches of a shape."""
        self.num_traces += 1
        settings = self.make_settings(((shape, shape),))
        chip = Chip(
            compute_capability=self.device.compute_capability,
            multiprocessors=self.device.multiprocessors,
        )
        model, layers = program.prepare(self.build_model(), settings)
        with record(chip, mask_is_full=not settings.padded) as trace:
            rounds = program.run(model, layers, settings, _CARD, trace.mark)
            for _number in range(2):
                next(rounds)
                trace.mark("end")
        self._host_bytes = host_bytes(model, settings, trace.bytes_of("optimizer_state"))
        return trace


class _Joined:
    """One stream of events out of pieces, with blocks counted anew."""

    def __init__(self) -> None:
        self.trace = Recorder()
        # Oldest first: a step makes some of what it leaves before what the last one left goes.
        self._blocks: dict[Hashable, list[int]] = defaultdict(list)

    def add(self, events: list[_Event]) -> None:
        """Append a piece."""
        trace, blocks = self.trace, self._blocks
        for event in events:
            if event.size_bytes < 0:
                trace.free(blocks[event.key].pop(0))
                continue
            trace.phase, trace.module = event.place
            blocks[event.key].append(trace.alloc(event.size_bytes, event.category))


def _cut(trace: Recorder, marks: list[int]) -> Pieces:
    """Cut the trace of `StepFamily._trace` at its marks."""
    borders = dict(
        zip(
            ("setup", "warm", "warm-later", "warm-update", "clear", "first", "later", "update"),
            pairwise([0, *marks]),
            strict=True,
        )
    )
    kinds = trace.final_categories()
    names = _names(trace.stream, borders)
    pieces: Pieces = {}
    for name, (start, stop) in borders.items():
        pieces[name] = []
        for entry in trace.stream[start:stop]:
            block = entry if entry >= 0 else ~entry
            size = trace.sizes[block] if entry >= 0 else -1
            key = names.get(block, block)
            pieces[name].append(_Event(key, size, kinds[block], trace.places[block]))
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
