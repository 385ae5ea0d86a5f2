"""Three traced steps of a job, from which its time and its memory at any shape follow roughly."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bertfit.memory.kernels import Chip
from bertfit.memory.trace import Recorder, record
from bertfit.memory.work import Work
from bertfit.models.model_config import max_positions
from bertfit.planning import program
from bertfit.planning.estimate import BuildModel
from bertfit.planning.levers import Shape, TrainSettings, encoder_layers
from bertfit.types import DeviceSpec

_CARD = torch.device("cuda")

Vector = NDArray[np.float64]
Steps = tuple[tuple[Shape, ...], ...]
SettingsOf = Callable[[Steps], TrainSettings]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One traced step of two micro-batches of one shape.

    Attributes:
        shape: of both.
        trace: its memory.
        work: its operations; empty where they were not asked for.
        layers: module of an encoder layer -> its number.
        width: H of the encoder.
        num_trained: weights that are trained.
        num_tensors: in so many tensors.
    """

    shape: Shape
    trace: Recorder
    work: Work
    layers: dict[str, int]
    width: int
    num_trained: int
    num_tensors: int

    @property
    def layer_input_bytes(self) -> int:
        """What goes from layer to layer for each token: fp32, which autocast leaves as it is."""
        return 4 * self.width

    def layer_of(self, module: str) -> int:
        """Return the layer that a module is part of; -1 for none."""
        while module:
            if module in self.layers:
                return self.layers[module]
            module = module.rpartition(".")[0]
        return -1


def features(shape: Shape) -> Vector:
    """Return what sizes, FLOPs and bytes are multiples of: 1, tokens, tokens times length."""
    batch, length = shape
    return np.array([1.0, batch * length, batch * length * length])


def _shapes(positions: int | None) -> tuple[Shape, ...]:
    """Return what is traced for a model of so many positions; None is any number.

    Windows of a multiple of 128 tokens where there are positions for them: kernels round lengths up
    to that. So many that activations outweigh the gradient of any one weight, as they do where
    memory is short; it costs no time.
    """
    length = 128 if positions is None else min(128, positions // 2)
    length -= length % 8 if length > 8 else 0  # else one length is padded and the other is not
    batch = 32 * 128 // length
    return ((batch, length), (2 * batch, length), (batch, 2 * length))


def sample_step(
    build_model: BuildModel,
    settings_of: SettingsOf,
    device: DeviceSpec,
    *,
    with_work: bool = True,
) -> list[Sample]:
    """Trace a step at three shapes.

    Args:
        build_model: gives the model, on `meta`.
        settings_of: the levers, for given micro-batches; nothing is computed twice.
        device: the card.
        with_work: note the operations too, not memory alone.
    """
    chip = Chip(
        compute_capability=device.compute_capability, multiprocessors=device.multiprocessors
    )
    samples = []
    for shape in _shapes(max_positions(build_model().config)):
        settings = settings_of(((shape, shape),))
        model, extra = program.prepare(build_model(), settings)
        with record(chip) as trace:
            work = Work(trace)
            with work if with_work else nullcontext():
                next(program.run(model, extra, settings, _CARD))
        numbers = {id(layer): number for number, layer in enumerate(encoder_layers(model))}
        trained = [p for p in model.parameters() if p.requires_grad]
        samples.append(
            Sample(
                shape=shape,
                trace=trace,
                work=work,
                layers={
                    name: numbers[id(part)]
                    for name, part in model.named_modules()
                    if id(part) in numbers
                },
                width=int(model.config.hidden_size),  # type: ignore[union-attr, arg-type]
                num_trained=sum(p.numel() for p in trained),
                num_tensors=len(trained),
            )
        )
    return samples


def solve(samples: Sequence[Sample], values: list[Vector]) -> Vector:
    """Find the multiples of `features` that three samples show: (M, 3) for values of (M,) each."""
    table = np.stack([features(sample.shape) for sample in samples])
    found: Vector = np.linalg.solve(table, np.stack(values)).T.astype(np.float64)
    return found
