"""AdamW with clipping and the non-finite guard folded into its fused kernel, and the schedule."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


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
) -> list[dict[str, object]]:
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
    `found_inf` inputs of torch's fused AdamW: no pass over the gradients of their own, and the
    host is not asked. The state is made at once, so that the update allocates nothing later.

    Attributes:
        begun: whether an update was begun since the gradients were dropped; from then on the step
            cannot be run again.
    """

    def __init__(self, groups: list[dict[str, object]], *, max_grad_norm: float) -> None:
        self.optimizer = torch.optim.AdamW(groups, fused=True)
        self.max_grad_norm = max_grad_norm
        self.begun = False
        self.parameters: list[nn.Parameter] = [
            p for group in self.optimizer.param_groups for p in group["params"]
        ]
        for parameter in self.parameters:
            self.optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }

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
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if not gradients:  # no token of the step was labelled
            return torch.zeros_like(loss), torch.zeros_like(loss)
        norm = nn.utils.get_total_norm(gradients, foreach=True)
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
