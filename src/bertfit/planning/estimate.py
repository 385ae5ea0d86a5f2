"""Know the peak before the run: trace the real step, replay it in the simulated allocator."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from bertfit.memory.allocator import AllocationFailure, CachingAllocator
from bertfit.memory.blocks import Block, round_size
from bertfit.memory.kernels import Chip
from bertfit.memory.trace import Recorder, record
from bertfit.planning import program
from bertfit.planning.host import host_bytes
from bertfit.planning.levers import Settings, TrainSettings
from bertfit.types import DeviceSpec, MemoryEstimate

MARGIN = 0.01  # of what is reserved; see `required_bytes`
MAX_CYCLES = 6

BuildModel = Callable[[], nn.Module]
"""Gives a token classifier whose parameters lie on `meta`: shapes without bytes."""

_CARD = torch.device("cuda")


@dataclass(kw_only=True)
class Simulation:
    """What a traced program does to the allocator of a card.

    Attributes:
        allocator: the card's state at the end.
        trace: every event, with what it was for.
        stopped_at: position in the stream where memory ended, or None.
        peak_at: position of the highest allocated bytes.
        timeline: phase, its highest allocated bytes, reserved bytes at its end.
        host_bytes: what the job holds of the host's memory.
    """

    allocator: CachingAllocator
    trace: Recorder
    stopped_at: int | None = None
    peak_at: int = 0
    timeline: list[tuple[str, int, int]] = field(default_factory=list)
    host_bytes: int = 0
    _held: dict[int, Block] = field(default_factory=dict)
    _position: int = 0
    _phase: str = ""
    _phase_peak: int = 0

    @property
    def failure(self) -> AllocationFailure | None:
        """Why memory ended, if it did."""
        return self.allocator.failure

    def advance(self, end: int | None = None) -> None:
        """Replay what the trace has got since the last call, or up to a position."""
        allocator, trace, held = self.allocator, self.trace, self._held
        stream, sizes, places = trace.stream, trace.sizes, trace.places
        peak = allocator.peak_allocated_bytes
        end = len(stream) if end is None else end
        for position in range(self._position, end):
            entry = stream[position]
            if entry < 0:
                allocator.free(held.pop(~entry))
                continue
            phase = places[entry][0]
            if phase != self._phase:
                self._close_phase(phase)
            block = allocator.malloc(sizes[entry])
            if block is None:
                self.stopped_at = position
                return
            held[entry] = block
            allocated = allocator.allocated_bytes
            if allocated > peak:
                peak, self.peak_at = allocated, position
            if allocated > self._phase_peak:
                self._phase_peak = allocated
        self._position = end

    def _close_phase(self, phase: str) -> None:
        if self._phase:
            row = (self._phase, self._phase_peak, self.allocator.reserved_bytes)
            self.timeline.append(row)
        self._phase, self._phase_peak = phase, self.allocator.allocated_bytes

    def finish(self) -> None:
        """Close the timeline."""
        self._close_phase("")

    def by_category(self) -> dict[str, int]:
        """Add up what is live at the peak, in whole blocks."""
        trace = self.trace
        kinds = trace.final_categories()
        live: dict[int, int] = {}
        for entry in trace.stream[: self.peak_at + 1]:
            if entry < 0:
                del live[~entry]
            else:
                live[entry] = round_size(trace.sizes[entry])
        totals: dict[str, int] = {}
        for block, size in live.items():
            totals[kinds[block]] = totals.get(kinds[block], 0) + size
        return dict(sorted(totals.items(), key=lambda item: -item[1]))


def simulate(
    build_model: BuildModel,
    settings: Settings,
    device: DeviceSpec,
    *,
    capacity_bytes: int | None = None,
) -> Simulation:
    """Trace a job until it is steady and replay it.

    Args:
        build_model: gives the model, on `meta`.
        settings: the levers.
        device: the card.
        capacity_bytes: what the allocator may get; None is without end.
    """
    chip = Chip(
        compute_capability=device.compute_capability, multiprocessors=device.multiprocessors
    )
    allocator = CachingAllocator(capacity_bytes, expandable_segments=settings.expandable_segments)
    model, layers = program.prepare(build_model(), settings)
    with record(chip) as trace:
        simulation = Simulation(allocator=allocator, trace=trace)
        peak, steady = -1, 0
        for number, _done in enumerate(program.run(model, layers, settings, _CARD)):
            trace.mark("round")
            simulation.advance()
            if simulation.stopped_at is not None or number >= MAX_CYCLES:
                break
            steady = steady + 1 if allocator.peak_reserved_bytes == peak else 0
            peak = allocator.peak_reserved_bytes
            if steady >= 1 and number >= 2:
                break
    simulation.finish()
    simulation.host_bytes = host_bytes(model, settings, trace.bytes_of("optimizer_state"))
    return simulation


def estimate_memory(
    build_model: BuildModel, settings: Settings, device: DeviceSpec
) -> MemoryEstimate:
    """Return what a job needs of a card.

    `peak_reserved_bytes` is the best value. `required_bytes` adds the card's context and 1% of
    margin and is what must be free.

    Args:
        build_model: gives the model, on `meta`.
        settings: the levers.
        device: the card; only its kernels, multiprocessors and context are looked at.

    Raises:
        ModelError: the model does something whose memory is not known.
        ConfigError: settings that the model cannot have.
    """
    simulation = simulate(build_model, settings, device)
    return summarize(simulation, device)


def least_bytes(build_model: BuildModel, settings: TrainSettings, device: DeviceSpec) -> int:
    """Return less than what a training job reserves, with little work: no step is traced.

    That is what lies on the card before the first step, the workspaces of its products, and the
    largest gradient.

    Args:
        build_model: gives the model, on `meta`.
        settings: the levers; the steps are not looked at.
        device: the card.

    Raises:
        ConfigError: settings that the model cannot have.
    """
    chip = Chip(
        compute_capability=device.compute_capability, multiprocessors=device.multiprocessors
    )
    model, __ = program.prepare(build_model(), settings)
    with record(chip) as trace:
        update = program.place(model.train(), settings, _CARD)
        held = sum(trace.sizes[block] for block in trace.live.values())
        del update
    held += 2 * chip.cublas_workspace_bytes  # one for each direction
    return held + max((p.nbytes for p in model.parameters() if p.requires_grad), default=0)


def required_bytes(reserved: int, device: DeviceSpec) -> int:
    """Return what must be free on a card: what is reserved, its context, and the margin."""
    return reserved + device.context_bytes + _margin(reserved)


def _margin(reserved: int) -> int:
    return int(reserved * MARGIN) + 1


def summarize(simulation: Simulation, device: DeviceSpec) -> MemoryEstimate:
    """Turn a simulation into the record that planner and report read."""
    allocator, trace = simulation.allocator, simulation.trace
    reserved = allocator.peak_reserved_bytes
    block = trace.stream[simulation.peak_at] if trace.stream else 0
    phase, module = trace.places[block if block >= 0 else ~block] if trace.places else ("", "")
    return MemoryEstimate(
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_reserved_bytes=reserved,
        context_bytes=device.context_bytes,
        margin_bytes=_margin(reserved),
        required_bytes=required_bytes(reserved, device),
        host_bytes=simulation.host_bytes,
        pinned_bytes=trace.pinned_bytes,  # batches are copied from pageable memory
        by_category=simulation.by_category(),
        peak_phase=phase,
        peak_module=module,
        timeline=tuple(simulation.timeline),
    )
