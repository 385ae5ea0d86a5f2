"""A model made ready to predict: weights as the device multiplies them, no work on padding."""

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertfit.config import Precision
from bertfit.data.batches import cut, pack, pad
from bertfit.engine.packing import can_pack, prepare_packing
from bertfit.engine.prepacked import can_prepack, store_prepacked
from bertfit.engine.weights import store_as_multiplied
from bertfit.models.fourier import replace_fourier
from bertfit.types import Batch, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How windows become batches.

    Attributes:
        pad_id: fills up shorter windows.
        packed: all windows are one sequence; see `engine.packing`.
    """

    pad_id: int
    packed: bool = False

    def cut(self, windows: Sequence[Window], budget_tokens: int) -> list[list[Window]]:
        """Cut windows into batches of at most so many tokens, longest first."""
        parts = cut(windows, budget_tokens, packed=self.packed)
        if self.packed and len(parts) > 1:
            parts[-2:] = _evened(parts[-2], parts[-1], budget_tokens)
        return parts

    def batch(self, windows: Sequence[Window]) -> Batch:
        """Make a batch without labels of windows, the longest first."""
        made = pack(windows, few_lengths=True) if self.packed else pad(windows, self.pad_id)
        return replace(made, labels=None, num_labelled=0)


def _evened(
    full: list[Window], rest: list[Window], budget_tokens: int
) -> tuple[list[Window], list[Window]]:
    """Share two batches out evenly where the second is under half the budget.

    What is left of a chunk has any length, and every new length costs memory for good.
    """
    tokens = np.cumsum([len(window.input_ids) for window in [*full, *rest]])
    first = int(np.searchsorted(tokens, tokens[-1] / 2, side="right"))
    is_short = 2 * (tokens[-1] - tokens[len(full) - 1]) < budget_tokens
    if is_short and first and tokens[-1] - tokens[first - 1] <= budget_tokens:
        return [*full, *rest][:first], [*full, *rest][first:]
    return full, rest


def read_as(device: torch.device, precision: Precision) -> torch.dtype:
    """Return what the weights may be read as for a model that `make_ready` gets."""
    return torch.bfloat16 if can_prepack(precision, device) else torch.float32


def make_ready(model: nn.Module, device: torch.device, precision: Precision) -> Precision:
    """Store a model on its device as it is multiplied there; it cannot be trained on then.

    Args:
        model: of transformers, in float32 or what `read_as` says.
        device: where to run.
        precision: of its matrix products.

    Returns:
        What is left to autocast to: fp32 where the whole model is in bfloat16 already.
    """
    replace_fourier(model)
    left = precision
    if can_prepack(precision, device):
        store_prepacked(model)
        left = "fp32"
    else:
        store_as_multiplied(model, precision)
    if device.type == "cpu" and can_pack(model):
        prepare_packing(model)
    model.to(device).eval()
    _give_back()
    return left


def _give_back() -> None:
    """Give what loading and reordering freed back to the system; the C library would keep it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:  # of glibc
        trim(0)


def batching_of(model: nn.Module, device: torch.device, pad_id: int) -> Batching:
    """Return how windows become batches of a model that is ready."""
    return Batching(pad_id=pad_id, packed=device.type == "cpu" and can_pack(model))


def first_rows(batch: Batch) -> NDArray[np.int64]:
    """Return where each window of a batch begins among all its tokens, padding counted: (B,)."""
    windows, tokens = batch.input_ids.shape
    lengths = np.asarray(batch.packed_lengths or [tokens] * windows)
    starts: NDArray[np.int64] = np.cumsum(lengths) - lengths
    return starts
