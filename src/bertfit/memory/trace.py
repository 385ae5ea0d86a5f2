"""Runs a program on tensors without bytes and writes down what it would ask of a CUDA card.

Works on any build of torch, with or without a card: CUDA is stood in for, never called. The
program itself is the caller's: it is given nothing and runs as it would on a card.
"""

import contextlib
from collections.abc import Iterator
from traceback import walk_tb
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from bertfit.errors import ModelError
from bertfit.language import _
from bertfit.memory import (  # noqa: F401  (they register)
    trace_attention,
    trace_attention_rules,
    trace_autocast,
    trace_convolution_rules,
    trace_index_rules,
    trace_rules,
)
from bertfit.memory.kernels import Chip
from bertfit.memory.trace_functions import META, CudaFace
from bertfit.memory.trace_ops import OpTrace
from bertfit.memory.trace_recorder import Recorder, Slot

__all__ = ["Chip", "Recorder", "Slot", "record"]


@contextlib.contextmanager
def record(card: Chip) -> Iterator[Recorder]:
    """Trace what runs inside the block.

    Tensors on `meta` that were made outside stand for memory of the host.

    Args:
        card: whose kernels are stood in for.

    Raises:
        ModelError: a model does something whose memory is not known, or stops without values.
    """
    recorder = Recorder()
    ops = OpTrace(recorder, card)
    face = CudaFace(recorder, ops)
    with contextlib.ExitStack() as stack:
        for patch in _patches(face):
            stack.enter_context(patch)
        stack.enter_context(_hooks(recorder, ops))
        stack.enter_context(ops)
        stack.enter_context(face)
        try:
            yield recorder
        except _FAULTS as error:
            if recorder.phase in ("forward", "backward") and _through_a_model(error):
                raise ModelError(_stopped(recorder.module, error)) from error
            raise
        finally:
            recorder.closed = True


# What code raises that meets what it cannot use.
_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


def _through_a_model(error: BaseException) -> bool:
    """Say whether code of neither torch nor bertfit was running: a model's own."""
    frames = (frame.f_globals.get("__name__", "") for frame, __ in walk_tb(error.__traceback__))
    return any(name.partition(".")[0] not in ("torch", "bertfit") for name in frames)


def _stopped(module: str, error: BaseException) -> str:
    reason = " ".join(str(error).split()) or "-"
    return _(
        "This model cannot be followed without values: {module} stops with {kind}: {reason}. "
        "bertfit gives it token ids, a mask and labels; what wants more, or decides by values, has "
        "no estimate. `bertfit train` tries out what fits instead; or take another model "
        "(docs/models.md)."
    ).format(
        module=module or _("the model"),
        kind=type(error).__name__,
        reason=reason if len(reason) <= 200 else reason[:197] + "...",
    )


def _patches(face: CudaFace) -> list[contextlib.AbstractContextManager[object]]:
    """Answers of torch that would tell that no card is there."""
    group = torch._C._group_tensors_by_device_and_dtype
    clear = torch.clear_autocast_cache
    capability = face.ops.card.compute_capability

    def grouped(lists: list[list[Tensor | None]], with_indices: bool = False) -> object:
        found: dict[Any, Any] = group(lists, with_indices)
        return {
            (value[0][0][0].device if device == META else device, dtype): value
            for (device, dtype), value in found.items()
        }

    def clear_both() -> None:
        face.cache.clear()
        clear()

    return [
        mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        mock.patch.object(torch.cuda, "get_device_capability", lambda *a, **k: capability),
        mock.patch.object(torch.cuda, "is_bf16_supported", lambda *a, **k: capability >= (8, 0)),
        # Inside an operation the stand-in is off and the device shows; it is no part of the check.
        mock.patch.dict(
            torch.utils.checkpoint._allowed_determinism_checks_to_fns,
            {"default": lambda x: {"shape": x.shape, "dtype": x.dtype}},
        ),
        mock.patch.object(torch._C, "_group_tensors_by_device_and_dtype", grouped),
        mock.patch.object(torch, "clear_autocast_cache", clear_both),
        mock.patch.object(torch.cuda, "Stream", _Queue),
        mock.patch.object(torch.cuda, "Event", _Queue),
        mock.patch.object(torch.cuda, "current_stream", _Queue),
        mock.patch.object(torch.cuda, "stream", contextlib.nullcontext),
    ]


class _Queue:
    """A stream or an event of a card: what waits for it never waits long.

    The replay knows one stream. A program that copies on another does so through buffers that it
    makes once, so that no block is returned on one stream while the other needs it.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Take what the real ones take."""

    def wait(self, *args: object) -> None:
        """Wait for nothing."""

    record = synchronize = wait_event = wait_stream = wait


@contextlib.contextmanager
def _hooks(recorder: Recorder, ops: OpTrace) -> Iterator[None]:
    """Follow which module runs and which phase it is."""
    stack: list[tuple[str, str]] = []

    def enter(module: nn.Module, args: object) -> None:
        if not stack and not recorder.names:
            recorder.names = {id(part): name for name, part in module.named_modules()}
        stack.append((recorder.module, recorder.phase))
        if not ops.in_backward:  # a checkpoint's second forward belongs to the backward
            recorder.phase = "forward"
        recorder.enter_module(recorder.names.get(id(module), ""))

    def leave(module: nn.Module, args: object, out: object) -> None:
        module_before, phase_before = stack.pop() if stack else ("", "")
        recorder.phase = phase_before if stack or ops.in_backward else "step"
        recorder.enter_module(module_before)

    def begin_update(optimizer: Optimizer, args: object, kwargs: object) -> None:
        recorder.phase = "optimizer"
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    recorder.categorize(parameter.grad, "gradient")

    def end_update(optimizer: Optimizer, args: object, kwargs: object) -> None:
        recorder.phase = "step"
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    recorder.categorize(value, "optimizer_state")

    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave),
        register_optimizer_step_pre_hook(begin_update),
        register_optimizer_step_post_hook(end_update),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
