"""Where a job works: a device, the gauge of its memory, and the step that runs there."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor, nn

from bertfit.config import Precision
from bertfit.engine.device import choose_device
from bertfit.engine.optim import Update
from bertfit.engine.precision import choose_precision
from bertfit.engine.step import StepResult, gradients, train_step
from bertfit.memory.device import present_device
from bertfit.memory.gauges import Gauge, gauge_of
from bertfit.types import Batch, DeviceSpec

MakeUpdate = Callable[[nn.Module, torch.device, Precision], Update]


def _nothing(model: nn.Module, make_update: MakeUpdate, longest: int) -> None:
    """Stand where a simulated card counts weights and optimizer state."""


def _unknown(steps: Iterable[Sequence[Batch]]) -> None:
    """Stand where what steps need is not known."""


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """A device and its memory.

    Attributes:
        device: where tensors are.
        name: of the card, or `cpu`.
        gauge: reads its memory.
        total_bytes: of the card, or of the machine.
        context_bytes: taken before the first tensor; 0 without a card.
        precision: what is computed with.
        spec: the card, real or simulated, whose memory there is to keep to; None without one.
        load: told the model, what makes its optimizer, and the tokens of the longest window.
        step: runs one optimizer step.
        gradients: runs forward and backward of a step.
        forecast: told the micro-batches of steps, says what they will need of the card; None where
            there is none.
    """

    device: torch.device
    name: str
    gauge: Gauge
    total_bytes: int
    context_bytes: int
    precision: Precision
    spec: DeviceSpec | None = None
    load: Callable[[nn.Module, MakeUpdate, int], None] = _nothing
    step: Callable[..., StepResult] = train_step
    gradients: Callable[..., Tensor] = gradients
    forecast: Callable[[Iterable[Sequence[Batch]]], int | None] = _unknown

    @property
    def is_card(self) -> bool:
        """Whether there is a card's memory to keep to."""
        return self.spec is not None


def choose_workplace(asked: str | None, precision: Precision | None) -> Workplace:
    """Return the asked workplace, or the fastest that is here.

    Raises:
        ConfigError: there is no such device, or it cannot compute with that precision.
    """
    device = choose_device(asked)
    chosen = choose_precision(precision, device)
    if device.type == "cuda":
        spec = present_device(device.index or 0)
        assert spec is not None, "choose_device has seen the card"
        return Workplace(
            device=device,
            name=spec.name,
            gauge=gauge_of(device, spec.context_bytes),
            total_bytes=spec.total_bytes,
            context_bytes=spec.context_bytes,
            precision=chosen,
            spec=spec,
        )
    return Workplace(
        device=device,
        name=device.type,
        gauge=gauge_of(device),
        total_bytes=psutil.virtual_memory().total,
        context_bytes=0,
        precision=chosen,
    )
