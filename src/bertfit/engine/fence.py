"""The fence around a job: what the user allows, checked before the start and held afterwards.

On a card torch's allocator is capped at the budget less the CUDA context. On a processor nothing
can be capped; a job that cannot fit is refused all the same.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from bertfit.config import OptimizerName, Precision
from bertfit.engine.oom import Card, Done, attempt, first_line
from bertfit.engine.optim import STATE_BYTES
from bertfit.engine.weights import stored_bytes
from bertfit.errors import BudgetError, ConfigError
from bertfit.language import _
from bertfit.memory.host import available_bytes as memory_left
from bertfit.units import format_bytes, format_floor

T = TypeVar("T")

_FP32_BYTES = 4


def check_budget(budget_bytes: int, total_bytes: int, context_bytes: int, name: str) -> None:
    """Refuse a budget that no job on a card can have.

    Args:
        budget_bytes: what the user allows.
        total_bytes: memory of the card, or of the machine.
        context_bytes: what the CUDA context takes before the first tensor.
        name: of the card.

    Raises:
        ConfigError: the budget is above what the card has.
        BudgetError: the context alone takes it.
    """
    if budget_bytes > total_bytes:
        raise ConfigError(
            _(
                "--budget {budget}: {name} has {total}. Give at most that, or leave --budget out "
                "to use all of it."
            ).format(budget=format_bytes(budget_bytes), name=name, total=format_bytes(total_bytes))
        )
    if budget_bytes <= context_bytes:
        raise BudgetError(
            _(
                "--budget {budget}: the CUDA context of {name} alone takes {context}, before any "
                "model. Give more than that."
            ).format(
                budget=format_bytes(budget_bytes), name=name, context=format_bytes(context_bytes)
            )
        )


def floor_bytes(
    model: nn.Module,
    precision: Precision,
    optimizer: OptimizerName = "adamw",
    *,
    host_state: bool = False,
) -> int:
    """Return what training holds at the least: weights, gradients, moments, 16-bit copies.

    Activations are not in it, so the truth is above it. With state on the host only the weights
    are left, as they are multiplied with.
    """
    if host_state:
        return stored_bytes(model, precision)
    weights = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    copies = 0 if precision == "fp32" else 2 * weights
    state = int(trained * STATE_BYTES[optimizer])
    return weights * _FP32_BYTES + trained * _FP32_BYTES + state + copies


def snapshot_bytes(model: nn.Module, optimizer_bytes: int | None = None) -> int:
    """Return the host memory of the copy that checkpoints are written from (`jobs.snapshots`).

    It is what training changes: trained weights, buffers that are saved, optimizer state.

    Args:
        model: with its frozen parts frozen.
        optimizer_bytes: of the optimizer's state; None stands for AdamW in fp32.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if optimizer_bytes is None:
        # Two moments of each weight, and for each parameter the count of its steps.
        optimizer_bytes = sum(_FP32_BYTES * (2 * p.numel() + 1) for p in trained)
    held = model.state_dict(keep_vars=True).values()
    saved = (t for t in held if t.requires_grad or not isinstance(t, nn.Parameter))
    return optimizer_bytes + sum(int(t.nbytes) for t in saved)


def check_floor(budget_bytes: int, needed_bytes: int, context_bytes: int) -> None:
    """Refuse a budget that does not hold the model and its optimizer.

    Raises:
        BudgetError: with the floor.
    """
    floor = needed_bytes + context_bytes
    if budget_bytes < floor:
        raise BudgetError(
            _(
                "--budget {budget} is too small: weights, gradients and optimizer state take "
                "{needed}, so {floor} is the least, before any text. Give more, or take a smaller "
                "model."
            ).format(
                budget=format_bytes(budget_bytes),
                needed=_with_context(needed_bytes, context_bytes),
                floor=format_floor(floor),
            )
        )


def check_least(
    budget_bytes: int, model: nn.Module, precision: Precision, context_bytes: int
) -> None:
    """Refuse a budget that does not hold the weights as they are multiplied with.

    Raises:
        BudgetError: with what they take.
    """
    needed = stored_bytes(model, precision)
    if budget_bytes < needed + context_bytes:
        raise BudgetError(
            _(
                "--budget {budget} is too small: the weights alone take {needed}, so {floor} is "
                "the least, before any text. Give more, or take a smaller model."
            ).format(
                budget=format_bytes(budget_bytes),
                needed=_with_context(needed, context_bytes),
                floor=format_floor(needed + context_bytes),
            )
        )


def _with_context(needed_bytes: int, context_bytes: int) -> str:
    """Name what is needed, and beside it the context of a card; a processor has none."""
    needed = format_bytes(needed_bytes)
    if not context_bytes:
        return needed
    return _("{needed} and the CUDA context {context}").format(
        needed=needed, context=format_bytes(context_bytes)
    )


def check_host(needed_bytes: int, available_bytes: int | None = None) -> None:
    """Refuse a job that the machine's memory cannot hold, beside what the process holds already.

    Raises:
        BudgetError: with what is there.
    """
    available = memory_left() if available_bytes is None else available_bytes
    if needed_bytes > available:
        raise BudgetError(
            _(
                "This machine has {available} of memory left, and the job needs at least {needed} "
                "more of it. Close other programs, take a smaller model, or another machine."
            ).format(available=format_bytes(available), needed=format_bytes(needed_bytes))
        )


def take(make: Callable[[], T], card: Card, needed_bytes: int) -> T:
    """Make what a job holds from start to end, or say that it does not fit.

    Args:
        make: moves the model and makes its optimizer's state.
        card: whose memory it is.
        needed_bytes: `floor_bytes`, for the message.

    Raises:
        BudgetError: it does not fit.
    """
    done = attempt(make, card)
    if isinstance(done, Done):
        return done.value
    raise BudgetError(
        _(
            "The model and its optimizer, {needed} before any text, do not fit ({reason}). Give a "
            "larger --budget, close other programs on the card, or take a smaller model."
        ).format(needed=format_bytes(needed_bytes), reason=first_line(done.message))
    )


def set_expandable_segments(wanted: bool) -> None:
    """Have torch's allocator grow its segments page by page, or not, from its next one on.

    Windows has no such segments; torch then warns and goes on without.
    """
    setting = f"expandable_segments:{wanted}"
    torch._C._accelerator_setAllocatorSettings(setting)


@contextmanager
def fence(device: torch.device, budget_bytes: int | None, context_bytes: int) -> Iterator[None]:
    """Hold this process to a budget while the block runs; nothing happens without a card.

    The cap stands for reserved memory; the context is outside torch's view and is counted off.
    """
    if device.type != "cuda" or budget_bytes is None:
        yield
        return
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction((budget_bytes - context_bytes) / total, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
