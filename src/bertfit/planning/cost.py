"""How long a step takes on a card: each operation at the card's rates, and what crosses the bus.

Seconds are estimates that order the candidates; where a card is present the best are timed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertfit.planning.levers import Shape
from bertfit.planning.sample import Sample, Vector, features, solve
from bertfit.types import DeviceSpec

# Shares of the published peaks that matrix products and elementwise kernels of an encoder reach.
# Chosen by hand between three figures for bert-large, fine-tuned at 384 tokens (tokens/s measured:
# ours): see docs/plan.md. Source: NVIDIA DeepLearningExamples, PyTorch/LanguageModeling/BERT.
MATMUL_SHARE = 0.5
BANDWIDTH_SHARE = 0.55
# What Python, autograd and the driver take for one operation. An estimate: the forward and
# backward of bert-base are about 950 operations and take 15 ms however small the batch is.
LAUNCH_SECONDS = 15e-6
# PCIe 3.0 x16 from pinned memory gives about 12 GB/s; laptops have half of the lanes.
BUS_BANDWIDTH = 10e9
# Two channels of DDR4. AdamW reads and writes 28 bytes for each weight, a sum of gradients 10.
HOST_BANDWIDTH = 20e9
ADAMW_BYTES, ADD_BYTES = 28, 10


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a card attains, per second."""

    half_flops: float
    fp32_flops: float
    bandwidth: float


def rates_of(device: DeviceSpec) -> Rates:
    """Return shares of a card's published peaks."""
    return Rates(
        half_flops=device.peak_flops * MATMUL_SHARE,
        fp32_flops=(device.fp32_flops or device.peak_flops / 4) * MATMUL_SHARE,
        bandwidth=device.memory_bandwidth * BANDWIDTH_SHARE,
    )


@dataclass(frozen=True, kw_only=True)
class _Part:
    """M operations that run one after the other.

    Attributes:
        flops: (M, 3) FLOPs of each, as multiples of `features`.
        moved_bytes: (M, 3) bytes read and written, likewise.
        is_half: (M,) whether it multiplies 16-bit numbers.
        layers: (M,) the layer whose forward it is part of, -1 for none.
    """

    flops: Vector
    moved_bytes: Vector
    is_half: NDArray[np.bool_]
    layers: NDArray[np.int64]

    def seconds(self, shape: Shape, rates: Rates, checkpointed_layers: int) -> float:
        products = features(shape)
        rate = np.where(self.is_half, rates.half_flops, rates.fp32_flops)
        each = np.maximum(
            self.flops @ products / rate, self.moved_bytes @ products / rates.bandwidth
        )
        again = (self.layers >= 0) & (self.layers < checkpointed_layers)
        launches = (len(each) + again.sum()) * LAUNCH_SECONDS
        # The host runs ahead of the card: the slower of the two sets the pace.
        return float(max(each.sum() + each[again].sum(), launches))


class StepCost:
    """The time of steps that differ in their micro-batches and in the neutral levers.

    Args:
        samples: of the step, with weights and optimizer on the card.
        device: the card.
        is_half: whether linear layers multiply 16-bit numbers.
    """

    def __init__(self, samples: Sequence[Sample], device: DeviceSpec, *, is_half: bool) -> None:
        self.rates = rates_of(device)
        borders = [_borders(sample) for sample in samples]
        self._first, self._later, self._update = (
            _part(samples, [(b[number], b[number + 1]) for b in borders]) for number in range(3)
        )
        weights = samples[0].num_trained
        crossing = weights * (2 if is_half else 4) / BUS_BANDWIDTH
        # Gradients leave while the backward goes on, and are added up on the host meanwhile.
        self._host_micro_batch = max(crossing, weights * ADD_BYTES / HOST_BANDWIDTH)
        self._host_update = crossing + weights * ADAMW_BYTES / HOST_BANDWIDTH
        # What enters a layer, once each way, for each token: copied on the stream that computes.
        self._layer_input = 2 * samples[0].layer_input_bytes / BUS_BANDWIDTH
        # Every tensor is copied on its own, and the host waits for the last.
        self._host_launches = samples[0].num_tensors * LAUNCH_SECONDS
        self._known: dict[tuple[Shape, bool, int], float] = {}

    def seconds(
        self, step: Sequence[Shape], checkpointed_layers: int = 0, *, host_state: bool = False
    ) -> float:
        """Return the seconds of one step with these micro-batches.

        Args:
            step: its micro-batches.
            checkpointed_layers: so many of the first layers are computed twice.
            host_state: weights and optimizer live on the host.
        """
        total = self._update_seconds()
        if host_state:
            total = self._host_update + 2 * self._host_launches
        for number, shape in enumerate(step):
            # On the host gradients are never added up on the card.
            is_first = number == 0 or host_state
            key = shape, is_first, checkpointed_layers
            if key not in self._known:
                part = self._first if is_first else self._later
                self._known[key] = part.seconds(shape, self.rates, checkpointed_layers)
            computing = self._known[key]
            if host_state:
                leaving = checkpointed_layers * shape[0] * shape[1] * self._layer_input
                computing = max(
                    computing + leaving + self._host_launches, self._host_micro_batch + leaving
                )
            total += computing
        return total

    def _update_seconds(self) -> float:
        return self._update.seconds((1, 1), self.rates, 0)


def _borders(sample: Sample) -> tuple[int, int, int, int]:
    """Return where the first and second micro-batch and the update begin, and the end."""
    phases = [phase for phase, __ in sample.work.places]
    first = phases.index("forward")
    second = phases.index("forward", phases.index("backward"))
    update = len(phases) - phases[::-1].index("backward")
    return first, second, update, len(phases)


def _part(samples: Sequence[Sample], ranges: Sequence[tuple[int, int]]) -> _Part:
    works = [sample.work for sample in samples]
    cut = list(zip(works, (slice(*r) for r in ranges), strict=True))
    assert len({r[1] - r[0] for r in ranges}) == 1, "the operations depend on the shape"
    places = samples[0].work.places[cut[0][1]]
    return _Part(
        flops=solve(samples, [np.array(work.flops[part], float) for work, part in cut]),
        moved_bytes=solve(samples, [np.array(work.moved_bytes[part], float) for work, part in cut]),
        is_half=np.array(works[0].is_half[cut[0][1]], bool),
        layers=np.array(
            [samples[0].layer_of(module) if phase == "forward" else -1 for phase, module in places]
        ),
    )
