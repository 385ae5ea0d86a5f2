"""What a step asks of a card, in pieces that any step is made of, for micro-batches of any shape.

The very step is traced (`memory.trace`) with two micro-batches of one shape; `planning.shapes` says
from four traces what it is for other shapes.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import nn

from bertfit.config import Precision
from bertfit.engine.optim import Update
from bertfit.engine.packing import Dropout
from bertfit.engine.precision import LossScale
from bertfit.engine.step import train_step
from bertfit.memory.kernels import Chip
from bertfit.memory.trace import Recorder, record
from bertfit.models.rows import RowEmbedding
from bertfit.planning.levers import Shape
from bertfit.planning.program import MarkedBatches
from bertfit.planning.shapes import NUM_TRACES, Template, fit, neighbours, region_of
from bertfit.types import Batch

MakeUpdate = Callable[[nn.Module, torch.device, Precision], Update]
# A block by its number in one trace, or what it is where it outlives a part of the step.
Key: TypeAlias = int | tuple[str, int]
# Blocks of a trace that outlive a part of it.
Names: TypeAlias = dict[int, tuple[str, int]]
# (block, bytes asked for), or (block, RETURNED).
Events: TypeAlias = list[tuple[Key, int]]

RETURNED = -1
# An expanded shape takes half a megabyte, and some milliseconds to make again.
KEPT_SHAPES = 64
_CARD = torch.device("cuda")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The events of a step with micro-batches of one shape, in the pieces that steps are made of.

    Attributes:
        first: a micro-batch that makes the gradients; and the workspaces of cuBLAS, if need be.
        later: one that adds to them.
        update: norm, clipping and the optimizer.
        places: block -> phase and module, for messages.
    """

    first: Events
    later: Events
    update: Events
    places: list[tuple[str, str]]


class StepEvents:
    """The events of the steps of one job, learnt as they are asked for.

    Args:
        model: what is trained; only its shapes are looked at.
        make_update: moves a model to a device and makes its optimizer for a precision.
        longest: tokens of the longest window.
        precision: what is computed with on the card.
        chip: whose kernels run.
        autocast_cache: as in `engine.step.train_step`.

    Attributes:
        num_traces: how often the step was traced so far.
    """

    def __init__(
        self,
        model: nn.Module,
        make_update: MakeUpdate,
        longest: int,
        *,
        precision: Precision,
        chip: Chip,
        autocast_cache: bool = True,
    ) -> None:
        self._model, self._make_update, self._longest = model, make_update, longest
        self._precision, self._chip = precision, chip
        self._autocast_cache = autocast_cache
        self._templates: dict[object, tuple[Template, Names] | None] = {}
        self._known: dict[object, Parts] = {}
        self.num_traces = 0

    def setup(self) -> Events:
        """Return how weights and optimizer state are made."""
        trace, named = self._trace((1, min(self._longest, 8)), False)
        return _part(trace, named, 0, trace.marks[0][0])

    def parts(self, shape: Shape, masked: bool) -> Parts:
        """Return the pieces of a step with micro-batches of one shape, with a mask or without."""
        kind = (masked, self._num_checkpointed())
        known = self._known.pop((shape, kind), None)
        if known is None:
            known = self._new_parts(shape, masked, (region_of(shape), kind))
            if len(self._known) == KEPT_SHAPES:
                del self._known[next(iter(self._known))]  # the one not asked for the longest
        self._known[shape, kind] = known
        return known

    def _new_parts(self, shape: Shape, masked: bool, region: object) -> Parts:
        if region not in self._templates:
            self._templates[region] = self._learn(shape, masked)
        learnt = self._templates[region]
        if learnt is None:
            return self._traced(shape, masked)
        template, named = learnt
        return _split(*template.expand(shape), named)

    def _traced(self, shape: Shape, masked: bool) -> Parts:
        trace, named = self._trace(shape, masked)
        return _split(trace, [position for position, __ in trace.marks], named)

    def _learn(self, shape: Shape, masked: bool) -> tuple[Template, Names] | None:
        shapes = neighbours(shape, NUM_TRACES, self._longest)
        if len(shapes) < NUM_TRACES:
            return None
        (first, named), *others = [self._trace(other, masked) for other in shapes]
        template = fit([first, *(trace for trace, __ in others)], shapes)
        return None if template is None else (template, named)

    def _num_checkpointed(self) -> int:
        return sum(bool(getattr(m, "gradient_checkpointing", False)) for m in self._model.modules())

    def _trace(self, shape: Shape, masked: bool) -> tuple[Recorder, Names]:
        """Trace a step of two micro-batches, and name the blocks that outlive a part of it."""
        self.num_traces += 1
        batch = _blank(shape, masked)
        model = blank_twin(self._model)
        with record(self._chip) as trace:
            update = self._make_update(model.train(), _CARD, self._precision)
            named: Names = {
                block: ("state", number) for number, block in enumerate(trace.live.values())
            }
            trace.mark("ready")
            result = train_step(
                model,
                update,
                MarkedBatches([batch, batch], trace.mark),
                device=_CARD,
                precision=self._precision,
                loss_scale=LossScale().scale if self._precision == "fp16" else 1.0,
                autocast_cache=self._autocast_cache,
            )
            del result
            trace.mark("end")
            for number, parameter in enumerate(update.parameters):
                block = None if parameter.grad is None else trace.block_of(parameter.grad)
                if block is not None:
                    named[block] = ("gradient", number)
        return trace, named


def _split(trace: Recorder, borders: list[int], named: Names) -> Parts:
    """Cut the trace of `StepEvents._trace` at its marks."""
    __, first, later, update, end = borders
    returned = {~entry for entry in trace.stream if entry < 0}
    # The workspaces of cuBLAS are made with the first product and stay.
    stays = [
        entry
        for entry in trace.stream[first:later]
        if entry >= 0 and entry not in returned and entry not in named
    ]
    keys = {**named, **{block: ("workspace", number) for number, block in enumerate(stays)}}
    return Parts(
        first=_part(trace, keys, first, later),
        later=_part(trace, keys, later, update),
        update=_part(trace, keys, update, end),
        places=trace.places,
    )


def _part(trace: Recorder, keys: Names, start: int, stop: int) -> Events:
    return [
        (keys.get(entry, entry), trace.sizes[entry])
        if entry >= 0
        else (keys.get(~entry, ~entry), RETURNED)
        for entry in trace.stream[start:stop]
    ]


def blank_twin(model: nn.Module) -> nn.Module:
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
    twin = copy.deepcopy(model, known)
    for module in twin.modules():
        if type(module) is Dropout:  # of a processor
            module.__class__ = nn.Dropout  # type: ignore[assignment]
    return twin


def _blank(shape: Shape, masked: bool) -> Batch:
    zeros = np.zeros(shape, dtype=np.int64)
    return Batch(
        input_ids=zeros,
        attention_mask=np.ones(shape, dtype=np.int64) if masked else None,
        labels=zeros,
        num_labelled=zeros.size,
        num_tokens=zeros.size,
    )
