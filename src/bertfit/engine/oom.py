"""Out-of-memory under all its names, and the way out of it (law 4, law 3).

What is not in `SPELLINGS` is never retried. Whoever retries goes through `attempt`, which leaves
the `except` block before anything is freed: the exception keeps the frames of the failed work
alive, and they keep its tensors.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from bertfit.errors import BudgetError
from bertfit.language import _

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """One way in which a library says that memory ran out.

    Attributes:
        kind: exception type.
        text: part of the message that tells it from others; empty where the type says it all.
        source: who raises it.
    """

    kind: type[BaseException]
    text: str
    source: str


SPELLINGS = (
    Spelling(
        kind=torch.OutOfMemoryError,
        text="",
        source="c10/cuda/CUDACachingAllocator.cpp and the allocators of HIP and XPU",
    ),
    Spelling(
        kind=RuntimeError,
        text="CUDA error: out of memory",
        source="cudaErrorMemoryAllocation by c10/cuda/CUDAException.cpp: a kernel's stack, a "
        "module that is loaded late, a stream or an event; an AcceleratorError since torch 2.8",
    ),
    Spelling(
        kind=RuntimeError,
        text="CUDA driver error: out of memory",
        source="CUDA_ERROR_OUT_OF_MEMORY by C10_CUDA_DRIVER_CHECK: expandable segments",
    ),
    Spelling(
        kind=RuntimeError,
        text="CUBLAS_STATUS_ALLOC_FAILED",
        source="aten/src/ATen/cuda/Exceptions.h: cublasCreate finds no room for its own workspace",
    ),
    Spelling(
        kind=RuntimeError,
        text="CUDNN_STATUS_ALLOC_FAILED",
        source="aten/src/ATen/cudnn/Exceptions.h, cuDNN up to 8",
    ),
    Spelling(
        kind=RuntimeError,
        text="CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        source="cudnnStatus_t 4004, cuDNN from 9",
    ),
    Spelling(
        kind=RuntimeError,
        text="CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        source="cudnnStatus_t 4003, cuDNN from 9",
    ),
    Spelling(
        kind=RuntimeError,
        text="Unable to find a valid cuDNN algorithm to run convolution",
        source="aten/src/ATen/native/cudnn/Conv_v7.cpp: no algorithm's workspace could be had",
    ),
    Spelling(
        kind=RuntimeError,
        text="unable to find an engine to execute this computation",
        source="aten/src/ATen/native/cudnn/Conv_v8.cpp: every plan failed, by memory or otherwise",
    ),
    Spelling(
        kind=RuntimeError,
        text="MPS backend out of memory",
        source="aten/src/ATen/mps/MPSAllocator.mm",
    ),
    Spelling(
        kind=RuntimeError,
        text="DefaultCPUAllocator: can't allocate memory",
        source="c10/core/impl/alloc_cpu.cpp, POSIX",
    ),
    Spelling(
        kind=RuntimeError,
        text="DefaultCPUAllocator: not enough memory",
        source="c10/core/impl/alloc_cpu.cpp, Windows",
    ),
    Spelling(
        kind=RuntimeError,
        text="std::bad_alloc",
        source="torch/csrc/Exceptions.h: a C++ container of torch found no room",
    ),
    Spelling(
        kind=MemoryError,
        text="",
        source="CPython, numpy and pybind11 for what malloc refuses",
    ),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an exception is one of `SPELLINGS`."""
    return any(isinstance(error, s.kind) and s.text in str(error) for s in SPELLINGS)


def first_line(message: str) -> str:
    """Return the facts of an error message; torch's go on with advice for programmers."""
    facts = message.strip().partition(" If reserved but unallocated")[0]
    return facts.splitlines()[0].rstrip(".") if facts else "MemoryError"


@contextmanager
def ended_in_words() -> Iterator[None]:
    """Turn memory that ends inside the block, where nothing is retried, into an error for the user.

    Raises:
        BudgetError: it ended.
    """
    message = None
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        message = str(error)
    if message is not None:
        raise BudgetError(
            _(
                "Memory ended in work that cannot be done in smaller pieces ({reason}). Close "
                "other programs, take a smaller model or fewer texts, or a machine with more "
                "memory. What was saved before is whole."
            ).format(reason=first_line(message))
        )


class Card(Protocol):
    """The memory that work is done in: a card, a simulated one, or the host's."""

    def free_cached(self) -> None:
        """Give what is cached and unused back to whoever else may need it."""

    def num_alloc_retries(self) -> int:
        """How often the allocator had to empty its cache to serve a request."""

    def peak_reserved_bytes(self) -> int:
        """The most that was reserved so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """Work that failed for want of memory; only its text is left of it."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Generic[T]):
    """Work that was done."""

    value: T


def attempt(work: Callable[[], T], card: Card) -> Done[T] | OutOfMemory:
    """Run work once; if memory ends, let go of all it held and say so.

    When `OutOfMemory` is returned nothing of the failed work is alive: not the exception, not its
    frames, not the graph of a backward half done, and the cache is back with the driver.

    Raises:
        BaseException: whatever else the work raises, unchanged.
    """
    message = None
    try:
        return Done(value=work())
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        message = str(error) or type(error).__name__
    # Past the except block: the exception, its traceback and the frames in it are gone. Cycles
    # through them (a frame that holds its own exception) need the collector.
    gc.collect()
    card.free_cached()
    return OutOfMemory(message=message)
