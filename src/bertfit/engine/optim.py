"""The optimizer with clipping and the guard against non-finite steps inside, and the schedule."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bertfit.config import OptimizerName
from bertfit.engine.adafactor import Adafactor
from bertfit.engine.compact_adamw import BLOCK_SIZE, CompactAdamW


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Linear warm-up from zero, then linear decay to zero."""

    num_steps: int
    warmup_steps: float

    def factor(self, step: int) -> float:
        """Return the factor on the peak learning rate of a step, counted from 0.

        `warmup_steps` below 1 is a share of all steps, as in transformers 5.
        """
        warmup = self.warmup_steps
        if warmup < 1:
            warmup = warmup * self.num_steps
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return max(0.0, (self.num_steps - step) / max(1.0, self.num_steps - warmup))


def parameter_groups(
    model: nn.Module,
    head: Iterable[nn.Parameter],
    *,
    learning_rate: float,
    head_learning_rate: float,
    weight_decay: float,
) -> list[dict[str, Any]]:
    """Sort the trainable parameters by learning rate and decay.

    Biases and the weights of norms (every parameter of one dimension) are not decayed.
    """
    in_head = {id(p) for p in head}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            rate = head_learning_rate if id(parameter) in in_head else learning_rate
            decay = weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault((rate, decay), []).append(parameter)
    return [
        {"params": parameters, "lr": rate, "peak_lr": rate, "weight_decay": decay}
        for (rate, decay), parameters in groups.items()
    ]


class UpdateBroken(Exception):
    """Memory ended while the weights were changed: some are of this step, some are not.

    Not an out-of-memory to be retried, so not of its kind.
    """


class Update:
    """The optimizer, its clipping and its guard.

    Clipping, the loss scale and the check for non-finite gradients go through the `grad_scale` and
    `found_inf` inputs of torch's fused optimizers, which ours have too: no pass over the gradients
    of their own, and the host is not asked. The state is made at once, so that the update does not
    grow what a run holds.

    Args:
        groups: from `parameter_groups`.
        max_grad_norm: 0 does not clip.
        optimizer: what makes the update.

    Attributes:
        begun: whether an update was begun since the gradients were dropped; from then on the step
            cannot be run again.
        parameters: what is trained, in the model.
        masters: what is changed for each of them: itself, or the weight that it is rounded from.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        max_grad_norm: float,
        optimizer: OptimizerName = "adamw",
    ) -> None:
        self.optimizer = _optimizer(groups, optimizer)
        self.max_grad_norm = max_grad_norm
        self.begun = False
        self.masters: list[nn.Parameter] = [
            p for group in self.optimizer.param_groups for p in group["params"]
        ]
        self.parameters = self.masters

    def master(self, parameter: nn.Parameter) -> Tensor:
        """Return the weight that is updated for a parameter of the model, trained or not."""
        return parameter

    def publish(self) -> None:
        """Tell the model that the masters were changed from outside; here they are its own."""

    def unrounded(self) -> AbstractContextManager[None]:
        """Give the model the weights as they are to be saved while the block runs."""
        return nullcontext()

    def clear(self) -> None:
        """Drop all gradients."""
        self.begun = False
        self.optimizer.zero_grad(set_to_none=True)

    def set_rate(self, factor: float) -> float:
        """Set every learning rate to `factor` times its peak; return the first one."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
        return float(self.optimizer.param_groups[0]["lr"])

    def apply(self, loss: Tensor, loss_scale: float) -> tuple[Tensor, Tensor]:
        """Clip and update, unless loss or gradient is not finite.

        Args:
            loss: () float32, the loss of the step.
            loss_scale: factor that the gradients carry.

        Returns:
            The gradient norm before clipping and 1.0 where the update was refused, both () float32.
        """
        gradients = [p.grad for p in self.masters if p.grad is not None]
        if not gradients:  # no token of the step was labelled
            return torch.zeros_like(loss), torch.zeros_like(loss)
        # The fused kernels want their scale in float32, also where weights are 16-bit.
        norm = nn.utils.get_total_norm(gradients, foreach=True).float()
        refused = (~(torch.isfinite(norm) & torch.isfinite(loss))).float()
        scale = torch.full_like(norm, loss_scale)
        if self.max_grad_norm > 0:
            # clip_grad_norm_ multiplies by max_norm / (norm + 1e-6) where that is below 1.
            scale = torch.maximum(scale, (norm + 1e-6 * loss_scale) / self.max_grad_norm)
        self.optimizer.grad_scale = scale  # type: ignore[attr-defined]
        self.optimizer.found_inf = refused  # type: ignore[attr-defined]
        norm = norm / loss_scale
        self.begun = True
        self.optimizer.step()
        return norm, refused


class _ForeachAdamW(torch.optim.AdamW):
    """torch's AdamW as others run it by default, to be compared with; it asks the host."""

    grad_scale: Tensor
    found_inf: Tensor

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient, unless the gradients are refused."""
        if bool(self.found_inf):
            return
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        torch._foreach_div_([g for g in gradients if g is not None], self.grad_scale)
        scale, found_inf = self.grad_scale, self.found_inf
        del self.grad_scale, self.found_inf  # torch's own step refuses them
        super().step()
        self.grad_scale, self.found_inf = scale, found_inf


# Bytes of state for each weight of a large matrix; the counts of steps and the rows and columns of
# Adafactor are a few more.
STATE_BYTES: Mapping[OptimizerName, float] = {
    "adamw": 8,
    "adamw-foreach": 8,
    "adamw-bf16": 4,
    "adamw-8bit": 2 + 2 * 4 / BLOCK_SIZE,
    "adafactor": 0,
    "sgd": 0,
}


def _optimizer(groups: list[dict[str, Any]], name: OptimizerName) -> torch.optim.Optimizer:
    """Make an optimizer with its state."""
    if name == "adamw-8bit":
        return CompactAdamW(groups, storage="8bit")
    if name == "adamw-bf16":
        return CompactAdamW(groups, storage="bf16")
    if name == "adafactor":
        return Adafactor(groups)
    if name == "sgd":
        return torch.optim.SGD(groups, fused=True)
    foreach = name == "adamw-foreach"
    optimizer: torch.optim.AdamW = (
        _ForeachAdamW(groups, foreach=True) if foreach else torch.optim.AdamW(groups, fused=True)
    )
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            # torch keeps the steps of its foreach form on the host.
            device = "cpu" if foreach else parameter.device
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=device),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }
    return optimizer
