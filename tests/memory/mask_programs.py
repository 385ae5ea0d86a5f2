"""Programs that pick by masks, recorded on the CUDA build; the stub runtime finds no rows."""

from collections.abc import Callable

import torch
from torch import Tensor


def pick(device: torch.device, batch: int, length: int) -> None:
    """Read rows by a mask, write rows by it, and train through both."""
    mask = torch.zeros(batch, length, dtype=torch.bool).to(device)
    weight = torch.zeros(32, 32).to(device).requires_grad_()
    x = torch.zeros(batch, length, 32).to(device)
    y = x @ weight
    out = torch.zeros_like(y)
    out[mask] = y[mask] @ weight
    out[mask] = weight[0]
    out.sum().backward()
    found = mask.nonzero(as_tuple=True)
    assert len(found[0]) == 0
    x[:, [-1, 0]].sum()


def spread(device: torch.device) -> None:
    """Take softmax over rows that are not contiguous, forward and backward."""
    x = torch.zeros(6, 40, 24).to(device).requires_grad_()
    turned: Tensor = x.transpose(1, 2)
    (turned.softmax(-1).transpose(1, 2) * x).sum().backward()
    turned.log_softmax(-1).transpose(1, 2).exp().sum().backward()


PROGRAMS: dict[str, Callable[[torch.device], None]] = {
    "few_masked": lambda device: pick(device, 4, 60),
    "many_masked": lambda device: pick(device, 40, 700),
    "softmax_of_a_view": spread,
}
