"""Runs a program on tensors without bytes and writes down what it would ask of a CUDA card.

Works on any build of torch, with or without a card: CUDA is stood in for, never called. The
program itself is the caller's: it is given nothing and runs as it would on a card.
"""

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from bertfit.memory import trace_attention, trace_autocast, trace_rules  # noqa: F401  (they register)
from bertfit.memory.kernels import Card
from bertfit.memory.trace_functions import CUDA, CudaFace
from bertfit.memory.trace_ops import OpTrace
from bertfit.memory.trace_recorder import Recorder

__all__ = ["Card", "Recorder", "record"]


@contextlib.contextmanager
def record(card: Card, *, mask_is_full: bool = False) -> Iterator[Recorder]:
    """Trace what runs inside the block.

    Tensors on `meta` that were made outside stand for memory of the host.

    Args:
        card: whose kernels are stood in for.
        mask_is_full: the answer when the program asks the card whether a mask is all ones.
    """
    recorder = Recorder()
    ops = OpTrace(recorder, card)
    face = CudaFace(recorder, ops, reads=mask_is_full)
    face.cache = trace_autocast.WeightCache()
    with contextlib.ExitStack() as stack:
        for patch in _patches(face):
            stack.enter_context(patch)
        stack.enter_context(_hooks(recorder))
        stack.enter_context(ops)
        stack.enter_context(face)
        try:
            yield recorder
        finally:
            recorder.closed = True


def _patches(face: CudaFace) -> list[contextlib.AbstractContextManager[object]]:
    """Answers of torch that would tell that no card is there."""
    group = torch._C._group_tensors_by_device_and_dtype
    clear = torch.clear_autocast_cache
    has_bf16 = face.ops.card.compute_capability >= (8, 0)

    def grouped(lists: object, with_indices: bool = False) -> object:
        found = group(lists, with_indices)
        return {
            (CUDA if device is not None and device.type == "meta" else device, dtype): value
            for (device, dtype), value in found.items()
        }

    def clear_both() -> None:
        face.cache.clear()
        clear()

    return [
        mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        mock.patch.object(torch.cuda, "is_bf16_supported", lambda *a, **k: has_bf16),
        # Inside an operation the stand-in is off and the device shows; it is no part of the check.
        mock.patch.dict(
            torch.utils.checkpoint._allowed_determinism_checks_to_fns,
            {"default": lambda x: {"shape": x.shape, "dtype": x.dtype}},
        ),
        mock.patch.object(torch._C, "_group_tensors_by_device_and_dtype", grouped),
        mock.patch.object(torch, "clear_autocast_cache", clear_both),
    ]


@contextlib.contextmanager
def _hooks(recorder: Recorder) -> Iterator[None]:
    from torch.nn.modules.module import (
        register_module_forward_hook,
        register_module_forward_pre_hook,
    )

    stack: list[str] = []

    def enter(module: nn.Module, args: object) -> None:
        stack.append(recorder.module)
        recorder.enter_module(recorder.names.get(id(module), type(module).__name__))

    def leave(module: nn.Module, args: object, out: object) -> None:
        recorder.enter_module(stack.pop() if stack else "")

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
