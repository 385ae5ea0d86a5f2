"""A card made of RAM: a job runs on the processor, and memory is counted as on a card.

Before every step its events on the card (`memory.trace` of the very step, `planning.shapes` for any
shape) are replayed in the card's allocator. Where a request cannot be met the step fails as it
would there, with nothing computed; else it runs on the processor, whose results are the results.
Scoring the dev data is not counted: it needs less than the step before it.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Concatenate, ParamSpec, Self, TypeVar

import psutil
import torch
from torch import Tensor, nn

from bertfit.config import Precision
from bertfit.engine.optim import Update
from bertfit.memory.allocator import CachingAllocator
from bertfit.memory.blocks import Block
from bertfit.memory.gauges import Reading
from bertfit.memory.kernels import Chip
from bertfit.planning.estimate import required_bytes
from bertfit.planning.levers import Shape
from bertfit.planning.step_events import RETURNED, Events, Key, MakeUpdate, StepEvents
from bertfit.types import Batch, DeviceSpec
from bertfit.units import format_bytes

P = ParamSpec("P")
T = TypeVar("T")


class SimulatedCard:
    """A card of which only the allocator is real; also the gauge of its memory.

    Args:
        spec: the card.
        budget_bytes: what the job may take of it, context counted; None is all.
        precision: what the job would compute with on the card.
        expandable_segments: as in `PYTORCH_ALLOC_CONF`.

    Attributes:
        limit_bytes: what the job may take, context counted.
        allocator: counts what it takes.
        events: what the job's steps ask of it, once it is known.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        *,
        budget_bytes: int | None = None,
        precision: Precision = "fp32",
        expandable_segments: bool = False,
        autocast_cache: bool = True,
    ) -> None:
        self.spec, self.precision = spec, precision
        self._autocast_cache = autocast_cache
        self._expandable_segments = expandable_segments
        self._clear(budget_bytes)
        self._chip = Chip(
            compute_capability=spec.compute_capability, multiprocessors=spec.multiprocessors
        )
        self.events: StepEvents | None = None
        self._process = psutil.Process()

    def emptied(self, budget_bytes: int | None = None) -> Self:
        """Return a card of the kind that holds nothing and knows the steps that this one does."""
        other = copy.copy(self)
        other._clear(budget_bytes)
        return other

    def _clear(self, budget_bytes: int | None) -> None:
        self.limit_bytes = self.spec.total_bytes if budget_bytes is None else budget_bytes
        self.allocator = CachingAllocator(
            self.spec.total_bytes - self.spec.context_bytes,
            card_bytes=self.spec.total_bytes,
            reserved_limit_bytes=self.limit_bytes - self.spec.context_bytes,
            expandable_segments=self._expandable_segments,
        )
        self._held: dict[Key, Block] = {}

    # --- what the job does on it

    def know(self, model: nn.Module, make_update: MakeUpdate, longest: int) -> None:
        """Take note of what will be trained, and count nothing yet.

        Args:
            model: the model; only its shapes are looked at.
            make_update: makes the optimizer of a model.
            longest: tokens of the longest window.
        """
        self.events = StepEvents(
            model,
            make_update,
            longest,
            precision=self.precision,
            chip=self._chip,
            autocast_cache=self._autocast_cache,
        )

    def load(self, model: nn.Module, make_update: MakeUpdate, longest: int) -> None:
        """Put weights and optimizer state on the card; see `know`.

        Raises:
            torch.OutOfMemoryError: the card is too small.
        """
        self.know(model, make_update, longest)
        self.hold_state()

    def hold_state(self) -> None:
        """Take the memory of weights and optimizer state.

        Raises:
            torch.OutOfMemoryError: the card is too small.
        """
        assert self.events is not None, "know() comes first"
        self._play(self.events.setup())

    def forecast(self, steps: Iterable[Sequence[Batch]]) -> int:
        """Return what steps will need of the card: reserved, context and margin.

        They are counted on another card of the kind. Where memory ends on it, steps will be cut
        smaller until they fit, and all of the budget is the answer.

        Args:
            steps: the micro-batches of each.
        """
        other = self.emptied(self.limit_bytes)
        try:
            other.hold_state()
            for batches in steps:
                other.charge(batches, with_update=True)
        except torch.OutOfMemoryError:
            return self.limit_bytes
        return min(self.limit_bytes, required_bytes(other.peak_reserved_bytes(), self.spec))

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
            peak_bytes=self.peak_reserved_bytes() + self.spec.context_bytes,
        )

    # --- replaying

    def charge(self, batches: Sequence[Batch], *, with_update: bool) -> None:
        """Count a step.

        Raises:
            torch.OutOfMemoryError: the card would have raised it.
        """
        assert self.events is not None, "know() comes first"
        self._drop_gradients()
        parts = None
        for batch in batches:
            if batch.labels is None or not batch.num_labelled:
                continue
            is_first = parts is None
            parts = self.events.parts(*_on_a_card(batch))
            self._play(parts.first if is_first else parts.later, parts.places)
        if parts is not None and with_update:
            self._play(parts.update, parts.places)

    def _play(self, events: Events, places: list[tuple[str, str]] | None = None) -> None:
        """Replay a part; what it leaves is kept by name, the rest goes with its end."""
        local: dict[Key, Block] = {}
        try:
            for key, size in events:
                blocks = local if isinstance(key, int) else self._held
                if size == RETURNED:
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


def _on_a_card(batch: Batch) -> tuple[Shape, bool]:
    """Return the shape of a batch on a card, which pads, and whether it has a mask there."""
    lengths = batch.packed_lengths
    if not lengths:
        shape = (batch.input_ids.shape[0], batch.input_ids.shape[1])
        return shape, batch.attention_mask is not None
    shape = (len(lengths), max(lengths))
    return shape, batch.num_tokens < shape[0] * shape[1]
