"""Adafactor: of every weight matrix it remembers one number per row and one per column.

torch's own Adafactor reads two numbers per parameter and step back to the host, which would stop
the card each time (law 8), and has no guard against gradients that are not finite.
"""

from typing import Any

import torch
from torch import Tensor, nn

# transformers 5.24, `Adafactor`, and the defaults of the paper.
EPSILON = 1e-30
DECAY_POWER = -0.8
CLIP_RMS = 1.0


class Adafactor(torch.optim.Optimizer):
    """Adafactor with steps as large as the learning rate says, and without momentum.

    It divides the gradients by `grad_scale`, and changes neither weights nor state where
    `found_inf` is not zero; the host is not asked. The state is made at once.

    Source: Shazeer and Stern 2018, https://arxiv.org/abs/1804.04235; computes what
        `transformers.Adafactor(scale_parameter=False, relative_step=False)` does.

    Args:
        groups: float32 parameters with `lr` and `weight_decay`.
    """

    grad_scale: Tensor
    found_inf: Tensor

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = _new_state(parameter)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        refused = self.found_inf > 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(group, parameter, parameter.grad, refused)

    def _update(
        self, group: dict[str, Any], parameter: nn.Parameter, gradient: Tensor, refused: Tensor
    ) -> None:
        state, rate = self.state[parameter], group["lr"]
        gradient.div_(self.grad_scale)
        state["step"].add_(1 - self.found_inf)
        share = state["step"] ** DECAY_POWER  # of the new gradient in what is remembered
        if gradient.ndim > 1:
            rows = _remember(state["row"], _mean_square(gradient, -1), share, refused)
            columns = _remember(state["column"], _mean_square(gradient, -2), share, refused)
            rows = (rows / rows.mean(-1, keepdim=True)).rsqrt_()
            step = rows[..., :, None] * columns.rsqrt()[..., None, :]
            step.mul_(gradient)
        else:
            squares = gradient.square().add_(EPSILON)
            step = _remember(state["exp_avg_sq"], squares, share, refused).rsqrt()
            step.mul_(gradient)
        rms = torch.linalg.vector_norm(step) / step.numel() ** 0.5
        step.mul_(rate / (rms / CLIP_RMS).clamp(min=1.0))
        step.masked_fill_(refused, 0.0)
        if group["weight_decay"]:
            parameter.mul_(1 - rate * group["weight_decay"] * (1 - self.found_inf))
        parameter.sub_(step)


def _new_state(parameter: nn.Parameter) -> dict[str, Tensor]:
    shape, dtype = parameter.shape, torch.float32
    state = {"step": parameter.new_zeros((), dtype=dtype)}
    if parameter.ndim > 1:
        state["row"] = parameter.new_zeros(shape[:-1], dtype=dtype)
        state["column"] = parameter.new_zeros((*shape[:-2], shape[-1]), dtype=dtype)
    else:
        state["exp_avg_sq"] = parameter.new_zeros(shape, dtype=dtype)
    return state


def _mean_square(gradient: Tensor, dim: int) -> Tensor:
    """Return the mean square along a dimension, without the squares of the whole gradient."""
    norm: Tensor = torch.linalg.vector_norm(gradient, dim=dim)
    return norm.square_().div_(gradient.shape[dim]).add_(EPSILON)


def _remember(average: Tensor, new: Tensor, share: Tensor, refused: Tensor) -> Tensor:
    """Mix a share of new numbers into an average, unless the step is refused; return it."""
    average.copy_(torch.where(refused, average, average.lerp(new, share)))
    return average
