"""Weights kept as the device multiplies them: inference casts them once, not in every batch."""

import torch
from torch import nn

from bertfit.config import Precision

_STORED = {"bf16": torch.bfloat16, "fp16": torch.float16}


def store_as_multiplied(model: nn.Module, precision: Precision) -> None:
    """Keep the weights of linear layers in the precision that autocast casts them to.

    Under autocast the result is the same to the bit: the same cast, done once. Embeddings and
    norms stay in float32, as autocast leaves them. Not for a model that is trained on.
    """
    dtype = _STORED.get(precision)
    if dtype is None:
        return
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.to(dtype)


def store_all(model: nn.Module, precision: Precision) -> None:
    """Keep every weight in a 16-bit precision: half the bytes, and fewer digits than autocast."""
    model.to(_STORED[precision])
