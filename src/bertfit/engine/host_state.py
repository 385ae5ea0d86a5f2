"""AdamW, its state and the fp32 weights on the host; a card then holds what it multiplies with.

Under autocast a linear layer multiplies with a 16-bit copy of its fp32 weight, its gradient is of
16 bits, and fp32 sums collect it. Here the 16-bit copy is all that the card has, and weight, sum
and moments lie on the host: the same numbers in another place. Each gradient leaves the card as
soon as the backward has made it, so no more than the largest of them is ever there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bertfit.config import OptimizerName, Precision
from bertfit.engine.optim import STATE_BYTES, Update
from bertfit.engine.transfer import transfer_of
from bertfit.engine.weights import store_as_multiplied

_FP32_BYTES = 4


class HostUpdate(Update):
    """An `Update` whose weights, gradients and moments lie on the host.

    The step is the same for whoever runs it. Once a step, in `apply`, the host waits for the card,
    which the plain update does not: it has the gradients to wait for.

    Args:
        model: on the host, in fp32. It is moved, its linear layers in the dtype of `precision`.
        groups: of its parameters, see `engine.optim.parameter_groups`.
        device: where the model is to compute.
        precision: fp32, or what is autocast to.
        max_grad_norm: 0 does not clip.
        optimizer: what makes the update.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: list[dict[str, Any]],
        *,
        device: torch.device,
        precision: Precision,
        max_grad_norm: float,
        optimizer: OptimizerName = "adamw",
    ) -> None:
        # Frozen weights too: what is saved has all its digits.
        self._master = {p: nn.Parameter(p.detach().float(), False) for p in model.parameters()}
        store_as_multiplied(model, precision)
        model.to(device)
        mastered = [{**group, "params": self._masters_of(group)} for group in groups]
        super().__init__(mastered, max_grad_norm=max_grad_norm, optimizer=optimizer)
        self.parameters = [p for group in groups for p in group["params"]]
        self._sums = [torch.zeros_like(master) for master in self.masters]
        self._transfer = transfer_of(device)
        for at, parameter in enumerate(self.parameters):
            leave = partial(self._leave, at)
            parameter.register_post_accumulate_grad_hook(leave)  # type: ignore[no-untyped-call]

    def _masters_of(self, group: dict[str, Any]) -> list[nn.Parameter]:
        return [self._master[p] for p in group["params"]]

    def master(self, parameter: nn.Parameter) -> Tensor:
        """Return the fp32 weight on the host that a parameter was rounded from."""
        return self._master[parameter]

    def publish(self) -> None:
        """Round the weights on the host and put them on the device."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            self._transfer.to_device(master.detach(), parameter.detach())

    @contextmanager
    def unrounded(self) -> Iterator[None]:
        """Give the model the weights of the host while the block runs."""
        held = {parameter: parameter.data for parameter in self._master}
        try:
            for parameter, master in self._master.items():
                parameter.data = master.data
            yield
        finally:
            for parameter, data in held.items():
                parameter.data = data

    def clear(self) -> None:
        """Drop all gradients, those on their way too."""
        self._transfer.wait()
        super().clear()
        for parameter in self.parameters:
            parameter.grad = None  # of a backward that ended between a gradient and its hook

    def apply(self, loss: Tensor, loss_scale: float) -> tuple[Tensor, Tensor]:
        """Clip and update on the host, then give the device the new weights; see `Update`."""
        self._transfer.wait()
        norm, refused = super().apply(loss.cpu(), loss_scale)
        if self.begun and not bool(refused):
            self.publish()
        return norm.to(loss.device), refused.to(loss.device)

    def _leave(self, at: int, parameter: Tensor) -> None:
        """Send a gradient that has just been made to the host, and drop it here."""
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None, "the hook runs after it was made"
        master, total = self.masters[at], self._sums[at]
        self._transfer.to_host(gradient, total, add=master.grad is not None)
        master.grad = total


def held_bytes(model: nn.Module, optimizer: OptimizerName = "adamw") -> int:
    """Return what `HostUpdate` holds on the host, the weights that lie there already counted.

    Args:
        model: with its frozen parts frozen.
        optimizer: what makes the update; its counts of steps are left out.
    """
    weights = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return _FP32_BYTES * (weights + trained) + int(STATE_BYTES[optimizer] * trained)


def make_update(
    model: nn.Module,
    groups: list[dict[str, Any]],
    *,
    device: torch.device,
    precision: Precision,
    max_grad_norm: float,
    optimizer: OptimizerName = "adamw",
    host_state: bool = False,
) -> Update:
    """Move a model to its device and make its optimizer, with its state.

    Args:
        model: on the host.
        groups: of its parameters, see `engine.optim.parameter_groups`.
        device: where the model is to compute.
        precision: fp32, or what is autocast to.
        max_grad_norm: 0 does not clip.
        optimizer: what makes the update.
        host_state: fp32 weights, gradients and optimizer state stay on the host.
    """
    if host_state:
        return HostUpdate(
            model,
            groups,
            device=device,
            precision=precision,
            max_grad_norm=max_grad_norm,
            optimizer=optimizer,
        )
    model.to(device)
    return Update(groups, max_grad_norm=max_grad_norm, optimizer=optimizer)
