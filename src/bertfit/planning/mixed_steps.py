"""Steps made of micro-batches of any shapes, put together from pieces that few traces show.

Within a step a micro-batch asks for the same memory whatever came before it, except that the first
makes the gradients that the others add to. So one trace shows the pieces for many shapes, each as
a micro-batch of its own, `planning.shapes` gives them for every other shape, and
`planning.layers_twice` for any number of layers that are computed twice.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, pairwise
from typing import TypeAlias

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
# Those whose layers may be computed twice.
_OF_LAYERS = ("warm", "first", "later")

Asked: TypeAlias = tuple[str, Shape | None]
"""A piece of a job: its name, and its shape if it is a micro-batch.

`setup` makes weights and optimizer state; `warm` is the very first micro-batch, which also makes
the workspaces of cuBLAS, and `warm-update` ends its step. In every later step `clear` drops the
gradients, `first` makes them, `later` adds to them, and `update` ends it.
"""

Names: TypeAlias = dict[int, Hashable]
Traced: TypeAlias = tuple[Recorder, Names]
"""A piece on its own, and the names of its blocks that others know too."""


class StepFamily:
    """Estimates one training job for any list of steps, with any number of layers computed twice.

    Args:
        build_model: gives the model, on `meta`.
        settings: the levers; their steps are not looked at.
        device: the card.
        longest: no more tokens than the model has positions.

    Attributes:
        num_traces: how often the job was traced so far.
        num_micro_batches: in how many micro-batches.
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
        self.num_traces = self.num_micro_batches = 0
        self._num_layers = 0
        self._layer_of: dict[str, int] = {}
        self._host_bytes = 0
        self._pinned: list[int] = []
        self._row_bytes = 0.0
        self._asked: dict[Hashable, set[Shape]] = defaultdict(set)
        self._templates: dict[Hashable, tuple[Template, Names] | None] = {}
        self._pieces: dict[tuple[Asked, int], list[Event]] = {}

    def estimate(self, steps: Steps, checkpointed_layers: int | None = None) -> MemoryEstimate:
        """Return what `estimate_memory` says of the steps.

        Args:
            steps: micro-batches of each.
            checkpointed_layers: so many of the first layers are computed twice; None is as in the
                settings.
        """
        return summarize(self.simulate(steps, checkpointed_layers), self.device)

    def surely_reserved(self, steps: Steps) -> int:
        """Return the peak of the beginning of the steps: no more than `simulate` would find.

        Two micro-batches are traced, where all the shapes of the steps may take many.
        """
        count, hardest = self.settings.checkpointed_layers, steps[0][0]
        begin = tuple(shape for shape in steps[0][:2] if shape == hardest)
        self._learn((begin,), count)
        *pieces, __ = self._round((begin,), is_first=True)  # no update yet
        whole = _Joined()
        for asked in (("setup", None), *pieces):
            whole.add(self._pieces[asked, count])
        simulation = self._on_a_card(whole)
        simulation.advance()
        return simulation.allocator.peak_reserved_bytes

    def simulate(
        self,
        steps: Steps,
        checkpointed_layers: int | None = None,
        *,
        reserved_limit_bytes: int | None = None,
    ) -> Simulation:
        """Replay the steps, as often as it takes to be steady; see `estimate`.

        Args:
            steps: as in `estimate`.
            checkpointed_layers: as in `estimate`.
            reserved_limit_bytes: what torch's allocator is capped at; None is without a cap. Near
                it cached blocks are given back, and memory may end.
        """
        count = checkpointed_layers
        count = self.settings.checkpointed_layers if count is None else count
        self._learn(steps, count)
        whole = _Joined()
        whole.add(self._pieces[("setup", None), count])
        simulation = self._on_a_card(whole, reserved_limit_bytes)
        allocator, peak = simulation.allocator, -1
        for number in range(MAX_CYCLES + 1):
            for asked in self._round(steps, is_first=number == 0):
                whole.add(self._pieces[asked, count])
            simulation.advance()
            if simulation.stopped_at is not None:
                break
            if number >= 2 and allocator.peak_reserved_bytes == peak:
                break
            peak = allocator.peak_reserved_bytes
        simulation.finish()
        simulation.host_bytes = self._host_bytes
        whole.trace.pinned = self._pinned_for(steps, count)
        return simulation

    def _on_a_card(self, whole: "_Joined", reserved_limit_bytes: int | None = None) -> Simulation:
        allocator = CachingAllocator(
            reserved_limit_bytes=reserved_limit_bytes,
            expandable_segments=self.settings.expandable_segments,
        )
        return Simulation(allocator=allocator, trace=whole.trace)

    def _round(self, steps: Steps, *, is_first: bool) -> Iterator[Asked]:
        # Where gradients leave the card every micro-batch does as the first.
        later = "first" if self.settings.host_state else "later"
        for at, step in enumerate(steps):
            warm = is_first and at == 0
            if not warm:
                yield "clear", None
            yield "warm" if warm else "first", step[0]
            for shape in step[1:]:
                yield later, shape
            yield "warm-update" if warm else "update", None

    def _pinned_for(self, steps: Steps, count: int) -> list[int]:
        """Return the pinned blocks: those of the state, and rows for the largest input so far."""
        tokens = [windows * length for windows, length in chain(*steps)]
        largest = [size for at, size in enumerate(tokens) if size > max(tokens[:at], default=0)]
        rows = [round(count * size * self._row_bytes) for size in largest]
        return [*self._pinned, *filter(None, rows)]

    # --- what is known, and how more of it is learnt

    def _learn(self, steps: Steps, count: int) -> None:
        """Make sure of all pieces of the steps."""
        rounds = chain(*(self._round(steps, is_first=first) for first in (True, False)))
        asked = list(dict.fromkeys([("setup", None), *rounds]))
        if all((piece, count) in self._pieces for piece in asked):
            return
        if count and not self._layer_of:
            self._learn_layers()
        if not (0 < count < self._num_layers and self._join(asked, count)):
            self._trace_or_replay(asked, count)

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

    def _join(self, asked: list[Asked], count: int) -> bool:
        """Join what is known of none and of all layers computed twice; False where that fails."""
        for none_or_all in (0, self._num_layers):
            self._trace_or_replay(asked, none_or_all)
        for piece in asked:
            joined: list[Event] | None = self._pieces[piece, 0]
            if joined is not None and piece[0] in _OF_LAYERS:
                every = self._pieces[piece, self._num_layers]
                joined = twice_below(joined, every, count, self._num_layers, self._layer_at)
            if joined is None:
                self._num_layers = 0  # the next number of layers is traced at once
                return False
            self._pieces[piece, count] = joined
        return True

    def _trace_or_replay(self, asked: Iterable[Asked], count: int) -> None:
        """Learn pieces: few shapes of a kind from a trace of each, more of them from a template."""
        wanted = self._missing(asked, count)
        lessons = self._lessons(wanted, count)
        known = [kind for kind, found in self._templates.items() if found is not None]
        at_once = [
            piece
            for piece in wanted
            if piece[1] is None or all(_kind(piece, count) not in k for k in (lessons, known))
        ]
        traced = self._trace([*at_once, *chain(*lessons.values())], count)
        for kind, pieces in lessons.items():
            parts, names = zip(*(traced[piece] for piece in pieces), strict=True)
            template = fit(list(parts), [shape for __, shape in pieces if shape is not None])
            self._templates[kind] = None if template is None else (template, names[0])
        for piece in self._missing(wanted, count):
            self._replay(piece, count)
        self._trace(self._missing(wanted, count), count)  # what no template fits

    def _missing(self, asked: Iterable[Asked], count: int) -> list[Asked]:
        return [piece for piece in asked if (piece, count) not in self._pieces]

    def _lessons(self, wanted: Iterable[Asked], count: int) -> dict[Hashable, list[Asked]]:
        """Choose shapes to learn templates from: of each kind of which enough shapes are wanted."""
        lessons: dict[Hashable, list[Asked]] = {}
        for piece in wanted:
            name, shape = piece
            if shape is None:
                continue
            kind = _kind(piece, count)
            self._asked[kind].add(shape)
            if kind in self._templates or len(self._asked[kind]) < NUM_TRACES:
                continue
            shapes = neighbours(shape, NUM_TRACES, self.longest)
            if len(shapes) == NUM_TRACES:
                lessons[kind] = [(name, other) for other in shapes]
            self._templates[kind] = None
        return lessons

    def _replay(self, piece: Asked, count: int) -> None:
        """Learn a piece from a template, if there is one that holds."""
        template, names = self._templates.get(_kind(piece, count)) or (None, {})
        if template is not None and piece[1] is not None and template.holds(piece[1]):
            trace, __ = template.expand(piece[1])
            self._pieces[piece, count] = _events(trace, names)

    def _trace(self, asked: list[Asked], count: int) -> dict[Asked, Traced]:
        """Trace pieces in as few runs of the job as there are first micro-batches among them."""
        shapes = {
            name: [shape for other, shape in asked if other == name and shape is not None]
            for name in _OF_LAYERS
        }
        firsts, laters = shapes["first"], shapes["later"]
        if self.settings.host_state:
            firsts, laters = firsts[:1], firsts[1:]
        found: dict[Asked, Traced] = {}
        warms = shapes["warm"] or [*firsts, *laters][:1]
        for number, warm in enumerate(warms):
            begun = firsts[number :: len(warms)] or [warm]
            more = laters if number == 0 else []
            found |= self._trace_steps(
                ((warm,), (begun[0], *more), *((first,) for first in begun[1:])), count
            )
        for piece, (trace, names) in found.items():
            self._pieces[piece, count] = _events(trace, names)
        return found

    def _trace_steps(self, steps: Steps, count: int) -> dict[Asked, Traced]:
        """Trace steps and cut them into pieces."""
        self.num_traces += 1
        self.num_micro_batches += sum(map(len, steps))
        settings = replace(self.settings, steps=steps, checkpointed_layers=count)
        chip = Chip(
            compute_capability=self.device.compute_capability,
            multiprocessors=self.device.multiprocessors,
        )
        model, layers = program.prepare(self.build_model(), settings)
        pinned = []
        with record(chip) as trace:

            def mark(name: str) -> None:
                trace.mark(name)
                pinned.append(len(trace.pinned))

            rounds = program.run(model, layers, settings, _CARD, mark)
            next(rounds)
            mark("end")  # before the weights go
        self._host_bytes = host_bytes(model, settings, trace.bytes_of("optimizer_state"))
        __, setup, warm, *___ = pinned
        self._pinned = trace.pinned[:setup]
        if count:  # inputs of layers computed twice: one row for each layer
            windows, length = steps[0][0]
            self._row_bytes = sum(trace.pinned[setup:warm]) / (count * windows * length)
        # Weights and state are one piece with the begin of the first step.
        marks = [position for position, __ in trace.marks[1:]]
        order = [("setup", None), *self._round(steps, is_first=True)]
        borders = [
            (piece, *border) for piece, border in zip(order, pairwise([0, *marks]), strict=True)
        ]
        names = _names(trace.stream, borders)
        return {piece: _cut(trace, names, start, stop) for piece, start, stop in borders}


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


def _kind(piece: Asked, count: int) -> Hashable:
    """Return what pieces have in common whose events are the same but for their sizes."""
    name, shape = piece
    return name, None if shape is None else region_of(shape), count


def _cut(trace: Recorder, names: Names, start: int, stop: int) -> Traced:
    """Cut a piece out of a trace, its blocks counted anew."""
    piece = Recorder()
    numbers: dict[int, int] = {}
    for entry in trace.stream[start:stop]:
        block = entry if entry >= 0 else ~entry
        number = numbers.setdefault(block, len(numbers))
        if number == len(piece.sizes):
            piece.sizes.append(trace.sizes[block])
            piece.categories.append(trace.categories[block])
            piece.places.append(trace.places[block])
            piece.ops.append(trace.ops[block])
            if block in trace.rules:
                piece.rules[number] = trace.rules[block]
        piece.stream.append(number if entry >= 0 else ~number)
    piece.slots = [
        slot._replace(position=slot.position - start)
        for slot in trace.slots
        if start <= slot.position < stop
    ]
    return piece, {numbers[block]: name for block, name in names.items() if block in numbers}


def _events(trace: Recorder, names: Names) -> list[Event]:
    found = []
    for entry in trace.stream:
        block = entry if entry >= 0 else ~entry
        size = trace.sizes[block] if entry >= 0 else RETURNED
        found.append(
            Event(names.get(block, block), size, trace.categories[block], trace.places[block])
        )
    return found


def _names(stream: list[int], borders: list[tuple[Asked, int, int]]) -> Names:
    """Name the blocks that outlive their piece, the same for every shape and every step."""
    went = {~entry: position for position, entry in enumerate(stream) if entry < 0}
    names: Names = {}
    for (name, __), start, stop in borders:
        lasting = [e for e in stream[start:stop] if e >= 0 and went.get(e, stop) >= stop]
        # What the last step leaves would go in the next one; what the first step leaves for good
        # (weights, workspaces) is nowhere else.
        returning = [e for e in lasting if e in went or name not in _ALIKE]
        for number, block in enumerate(returning):
            names[block] = (_ALIKE.get(name, name), number)
        known = set(returning)
        for number, block in enumerate(e for e in lasting if e not in known):
            names[block] = (name, "for good", number)
    return names
