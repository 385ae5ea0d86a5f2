"""A card made of RAM: a job runs on the processor, and memory is counted as on a card.

Before every step its events on the card (`memory.trace` of the very step, `planning.shapes` for any
shape) are replayed in the card's allocator. Where a request cannot be met the step fails as it
would there, with nothing computed; else it runs on the processor, whose results are the results.
Scoring the dev data is not counted: it needs less than the step before it.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from bertfit.config import Precision
from bertfit.engine.optim import Update
from bertfit.engine.precision import LossScale
from bertfit.engine.step import train_step
from bertfit.memory.allocator import Block, CachingAllocator
from bertfit.memory.gauges import Reading
from bertfit.memory.kernels import Chip
from bertfit.memory.trace import Recorder, record
from bertfit.models.rows import RowEmbedding
from bertfit.planning.levers import Shape
from bertfit.planning.shapes import NUM_TRACES, Template, fit, neighbours, region_of
from bertfit.types import Batch, DeviceSpec
from bertfit.units import format_bytes

MakeUpdate = Callable[[nn.Module], Update]
# A block by its number in one trace, or what it is where it outlives a part of the step.
Key: TypeAlias = int | tuple[str, int]
# Blocks of a trace that outlive a part of it.
Names: TypeAlias = dict[int, tuple[str, int]]
# (block, bytes asked for), or (block, -1) for its return.
Events: TypeAlias = list[tuple[Key, int]]

# An expanded shape takes half a megabyte and some milliseconds to make again.
KEPT_SHAPES = 64

_CARD = torch.device("cuda")
_RETURNED = -1
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The events of a step with micro-batches of one shape, in the pieces that steps are made of.

    Attributes:
        setup: weights and optimizer state.
        first: a micro-batch that makes the gradients; and the workspaces of cuBLAS, if need be.
        later: one that adds to them.
        update: norm, clipping and the optimizer.
        places: block -> phase and module, for messages.
    """

    setup: Events
    first: Events
    later: Events
    update: Events
    places: list[tuple[str, str]]


class SimulatedCard:
    """A card of which only the allocator is real; also the gauge of its memory.

    Args:
        spec: the card.
        budget_bytes: what the job may take of it, context counted; None is all.
        precision: what the job would compute with on the card.
        expandable_segments: as in `PYTORCH_ALLOC_CONF`.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        *,
        budget_bytes: int | None = None,
        precision: Precision = "fp32",
        expandable_segments: bool = False,
    ) -> None:
        self.spec, self.precision = spec, precision
        limit = None if budget_bytes is None else budget_bytes - spec.context_bytes
        self.allocator = CachingAllocator(
            spec.total_bytes - spec.context_bytes,
            reserved_limit_bytes=limit,
            expandable_segments=expandable_segments,
        )
        self.num_traces = 0
        self._chip = Chip(
            compute_capability=spec.compute_capability, multiprocessors=spec.multiprocessors
        )
        self._held: dict[Key, Block] = {}
        self._model: nn.Module | None = None
        self._make_update: MakeUpdate | None = None
        self._longest = 512
        self._templates: dict[object, tuple[Template, Names] | None] = {}
        self._parts: dict[object, _Parts] = {}
        self._process = psutil.Process()

    # --- what the job does on it

    def load(self, model: nn.Module, make_update: MakeUpdate, longest: int) -> None:
        """Put weights and optimizer state on the card.

        Args:
            model: the model, on the processor.
            make_update: makes the optimizer of a model.
            longest: tokens of the longest window.

        Raises:
            torch.OutOfMemoryError: the card is too small.
        """
        self._model, self._make_update, self._longest = model, make_update, longest
        self._play(self._parts_of((1, min(longest, 32)), False).setup)

    def counted(
        self, step: Callable[Concatenate[nn.Module, Update, Sequence[Batch], P], T]
    ) -> Callable[Concatenate[nn.Module, Update, Sequence[Batch], P], T]:
        """Return the step, counted before it runs; it raises as the card would have."""

        def run(
            model: nn.Module,
            update: Update,
            batches: Sequence[Batch],
            /,
            *args: P.args,
            **kwargs: P.kwargs,
        ) -> T:
            self.charge(batches, with_update=True)
            return step(model, update, batches, *args, **kwargs)

        return run

    def gradients(
        self, model: nn.Module, update: Update, batches: Sequence[Batch], **how: object
    ) -> Tensor:
        """Count forward and backward of a step, and compute nothing.

        Raises:
            torch.OutOfMemoryError: the card would have raised it.
        """
        self.charge(batches, with_update=False)
        self._drop_gradients()
        return torch.zeros(())

    # --- the gauge

    def free_cached(self) -> None:
        """Empty the allocator's cache; the gradients of a step that failed are gone by then."""
        self._drop_gradients()
        self.allocator.empty_cache()

    def num_alloc_retries(self) -> int:
        """How often the allocator emptied its cache to serve a request."""
        return self.allocator.num_alloc_retries

    def peak_reserved_bytes(self) -> int:
        """The most that was reserved so far."""
        return self.allocator.peak_reserved_bytes

    def read(self) -> Reading:
        """Look at the allocator and at this process."""
        reserved = self.allocator.reserved_bytes
        return Reading(
            allocated_bytes=self.allocator.allocated_bytes,
            reserved_bytes=reserved,
            card_used_bytes=reserved + self.spec.context_bytes,
            card_total_bytes=self.spec.total_bytes,
            host_bytes=self._process.memory_info().rss,
        )

    # --- replaying

    def charge(self, batches: Sequence[Batch], *, with_update: bool) -> None:
        """Count a step.

        Raises:
            torch.OutOfMemoryError: the card would have raised it.
        """
        self._drop_gradients()
        parts = None
        for batch in batches:
            if batch.labels is None or not batch.num_labelled:
                continue
            is_first = parts is None
            shape = (batch.input_ids.shape[0], batch.input_ids.shape[1])
            parts = self._parts_of(shape, batch.attention_mask is not None)
            self._play(parts.first if is_first else parts.later, parts.places)
        if parts is not None and with_update:
            self._play(parts.update, parts.places)

    def _play(self, events: Events, places: list[tuple[str, str]] | None = None) -> None:
        """Replay a part; what it leaves is kept by name, the rest goes with its end."""
        local: dict[Key, Block] = {}
        try:
            for key, size in events:
                blocks = local if isinstance(key, int) else self._held
                if size == _RETURNED:
                    block = blocks.pop(key, None)
                    if block is not None:
                        self.allocator.free(block)
                elif key not in blocks:
                    block = self.allocator.malloc(size)
                    if block is None:
                        raise torch.OutOfMemoryError(self._explain(key, size, places))
                    blocks[key] = block
        finally:
            for block in local.values():
                self.allocator.free(block)

    def _drop_gradients(self) -> None:
        for key in [key for key in self._held if isinstance(key, tuple) and key[0] == "gradient"]:
            self.allocator.free(self._held.pop(key))

    def _explain(self, key: Key, size: int, places: list[tuple[str, str]] | None) -> str:
        failure = self.allocator.failure
        assert failure is not None, "the allocator refused"
        phase, module = places[key] if places and isinstance(key, int) else ("setup", "")
        return (
            f"CUDA out of memory. Tried to allocate {format_bytes(size)}. {self.spec.name} "
            f"(simulated) has {format_bytes(self.spec.total_bytes)} of which "
            f"{format_bytes(failure.free_bytes)} is free, {format_bytes(failure.allocated_bytes)} "
            f"allocated and {format_bytes(failure.cached_bytes)} cached, in {phase} of "
            f"{module or 'the step'}"
        )

    # --- learning what a step does

    def _parts_of(self, shape: Shape, masked: bool) -> _Parts:
        kind = (masked, self._num_checkpointed())
        known = self._parts.pop((shape, kind), None)
        if known is None:
            known = self._new_parts(shape, masked, (region_of(shape), kind))
            if len(self._parts) == KEPT_SHAPES:
                del self._parts[next(iter(self._parts))]  # the one not asked for the longest
        self._parts[shape, kind] = known
        return known

    def _new_parts(self, shape: Shape, masked: bool, region: object) -> _Parts:
        if region not in self._templates:
            self._templates[region] = self._learn(shape, masked)
        learnt = self._templates[region]
        if learnt is None:
            trace, named = self._trace(shape, masked)
            return _split(trace, [position for position, __ in trace.marks], named)
        template, named = learnt
        return _split(*template.expand(shape), named)

    def _learn(self, shape: Shape, masked: bool) -> tuple[Template, Names] | None:
        shapes = neighbours(shape, NUM_TRACES, self._longest)
        if len(shapes) < NUM_TRACES:
            return None
        (first, named), *others = [self._trace(other, masked) for other in shapes]
        template = fit([first, *(trace for trace, __ in others)], shapes)
        return None if template is None else (template, named)

    def _num_checkpointed(self) -> int:
        assert self._model is not None, "load() comes first"
        return sum(bool(getattr(m, "gradient_checkpointing", False)) for m in self._model.modules())

    def _trace(self, shape: Shape, masked: bool) -> tuple[Recorder, Names]:
        """Trace a step of two micro-batches, and name the blocks that outlive a part of it."""
        assert self._model is not None and self._make_update is not None
        self.num_traces += 1
        batch = _blank(shape, masked)
        model = _twin(self._model)
        with record(self._chip) as trace:
            model = model.to(_CARD).train()
            update = self._make_update(model)
            named: Names = {
                block: ("state", number) for number, block in enumerate(trace.live.values())
            }
            trace.mark("ready")
            result = train_step(
                model,
                update,
                _Marked([batch, batch], trace),
                device=_CARD,
                precision=self.precision,
                loss_scale=LossScale().scale if self.precision == "fp16" else 1.0,
            )
            del result
            trace.mark("end")
            for number, parameter in enumerate(update.parameters):
                block = None if parameter.grad is None else trace.block_of(parameter.grad)
                if block is not None:
                    named[block] = ("gradient", number)
        return trace, named


class _Marked(Sequence[Batch]):
    """Batches that mark in the trace when each of them begins, and when the last has ended.

    A step goes over its batches twice: to count the labels, and to run them.
    """

    def __init__(self, batches: list[Batch], trace: Recorder) -> None:
        self._batches, self._trace = batches, trace
        self._passes = 0

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._batches[index]

    def __iter__(self) -> Iterator[Batch]:
        self._passes += 1
        if self._passes == 1:
            yield from self._batches
            return
        for batch in self._batches:
            self._trace.mark("micro-batch")
            yield batch
        self._trace.mark("update")


def _split(trace: Recorder, borders: list[int], named: Names) -> _Parts:
    """Cut the trace of `SimulatedCard._trace` at its marks."""
    ready, first, later, update, end = borders
    returned = {~entry for entry in trace.stream if entry < 0}
    # The workspaces of cuBLAS are made with the first product and stay.
    stays = [
        entry
        for entry in trace.stream[first:later]
        if entry >= 0 and entry not in returned and entry not in named
    ]
    keys = {**named, **{block: ("workspace", number) for number, block in enumerate(stays)}}

    def part(start: int, stop: int) -> Events:
        return [
            (keys.get(entry, entry), trace.sizes[entry])
            if entry >= 0
            else (keys.get(~entry, ~entry), _RETURNED)
            for entry in trace.stream[start:stop]
        ]

    return _Parts(
        setup=part(0, ready),
        first=part(first, later),
        later=part(later, update),
        update=part(update, end),
        places=trace.places,
    )


def _twin(model: nn.Module) -> nn.Module:
    """Copy a model without its bytes."""
    known: dict[int, object] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            blank = torch.empty_like(parameter, device="meta")
            known[id(parameter)] = nn.Parameter(blank, requires_grad=parameter.requires_grad)
        for buffer in module.buffers(recurse=False):
            known[id(buffer)] = torch.empty_like(buffer, device="meta")
        if isinstance(module, RowEmbedding):
            known[id(module.table[0])] = torch.empty_like(module.table[0], device="meta")
    return copy.deepcopy(model, known)


def _blank(shape: Shape, masked: bool) -> Batch:
    zeros = np.zeros(shape, dtype=np.int64)
    return Batch(
        input_ids=zeros,
        attention_mask=np.ones(shape, dtype=np.int64) if masked else None,
        labels=zeros,
        num_labelled=zeros.size,
        num_tokens=zeros.size,
    )
