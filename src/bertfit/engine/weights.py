"""Weights kept as the device multiplies them: cast once, not in every batch."""

import torch
from torch import nn

from bertfit.config import Precision

_STORED = {"bf16": torch.bfloat16, "fp16": torch.float16}


def store_as_multiplied(model: nn.Module, precision: Precision) -> None:
    """Keep the weights of linear layers in the precision that autocast casts them to.

    Under autocast the result is the same to the bit: the same cast, done once. Embeddings and
    norms stay in float32, as autocast leaves them. A model that is trained on needs the weights in
    fp32 elsewhere: see `engine.host_state`.
    """
    dtype = _STORED.get(precision)
    if dtype is None:
        return
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.to(dtype)


def stored_bytes(model: nn.Module, precision: Precision) -> int:
    """Return what the weights of a model take after `store_as_multiplied`."""
    total = sum(p.nbytes for p in model.parameters())
    if precision not in _STORED:
        return total
    linear = {p for m in model.modules() if isinstance(m, nn.Linear) for p in m.parameters()}
    return total - sum(p.nbytes - 2 * p.numel() for p in linear)


def store_all(model: nn.Module, precision: Precision) -> None:
    """Keep every weight in a 16-bit precision: half the bytes, and fewer digits than autocast."""
    model.to(_STORED[precision])
