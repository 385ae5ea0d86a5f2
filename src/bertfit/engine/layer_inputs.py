"""Inputs of layers that are computed twice, on the host until the backward needs them.

Of such a layer only its input is kept. A card that is too small for the optimizer's state has no
place to keep it either.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint


def keep_inputs_on_host(layers: Sequence[nn.Module]) -> None:
    """Have the inputs of layers leave the card between forward and backward.

    The numbers are the same. A layer whose model runs its checkpoints, as old ones of transformers
    do, is left as it is.

    Args:
        layers: with activation checkpointing switched on.
    """
    own = [layer for layer in layers if hasattr(layer, "_gradient_checkpointing_func")]
    inputs = _HostInputs(len(own))
    for layer in own:
        layer._gradient_checkpointing_func = inputs.checkpoint  # type: ignore[assignment]


def leave_inputs_on_card(layers: Sequence[nn.Module]) -> None:
    """Let go of the memory of `keep_inputs_on_host`; no layer runs a checkpoint until one is set.

    Args:
        layers: of an encoder.
    """
    for layer in layers:
        vars(layer).pop("_gradient_checkpointing_func", None)


class _HostInputs:
    """Rows of pinned memory, each as long as the largest input so far.

    One block holds a row for each layer, for torch rounds pinned blocks up to a power of two.
    Copies run on the stream that computes: beside it they would need the input, and its memory,
    for longer.
    """

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._free: list[Tensor] = []
        self._row_bytes = 0

    def __deepcopy__(self, memo: object) -> "_HostInputs":
        return _HostInputs(self._num_layers)

    def checkpoint(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a layer and forget all but its input, the first argument, which leaves."""
        shape = args[0].shape
        waits = True

        def leave(tensor: Tensor) -> "Tensor | _Kept":
            nonlocal waits
            if not waits or tensor.shape != shape or not _is_on_card(tensor):
                return tensor
            waits = False
            return _Kept(tensor, self._row(tensor.numel() * tensor.element_size()))

        with saved_tensors_hooks(leave, _come_back):
            return checkpoint(function, *args, use_reentrant=False)

    def _row(self, size: int) -> "tuple[Tensor, list[Tensor]]":
        """Take a row, and say where it goes back to."""
        if size > self._row_bytes:
            self._free, self._row_bytes = [], 0  # the old rows go before new ones come
        if not self._free:
            longest = max(size, self._row_bytes)
            self._free += _pinned(self._num_layers, longest)
            self._row_bytes = longest  # only now: where memory ended, a smaller size is next
        return self._free.pop(), self._free


def _is_on_card(tensor: Tensor) -> bool:
    return tensor.device.type != "cpu"


def _pinned(count: int, size: int) -> list[Tensor]:
    return list(torch.empty((count, size), dtype=torch.uint8, pin_memory=True))


class _Kept:
    """An input on the host. Its row is free again when the graph, or the failed step, is gone."""

    def __init__(self, tensor: Tensor, taken: tuple[Tensor, list[Tensor]]) -> None:
        self._row, self._home = taken
        self.device = tensor.device
        size = tensor.numel() * tensor.element_size()
        self.place = self._row[:size].view(tensor.dtype).view(tensor.shape)
        self.place.copy_(tensor, non_blocking=True)

    def __del__(self) -> None:
        self._home.append(self._row)


def _come_back(kept: Tensor | _Kept) -> Tensor:
    if isinstance(kept, Tensor):
        return kept
    back = torch.empty(kept.place.shape, dtype=kept.place.dtype, device=kept.device)
    return back.copy_(kept.place, non_blocking=True)
