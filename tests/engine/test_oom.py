"""Law 4: out-of-memory under all its names, and nothing else."""

import gc
import weakref

import pytest
import torch

from bertfit.engine.oom import SPELLINGS, Done, OutOfMemory, attempt, is_out_of_memory
from bertfit.memory.gauges import HostGauge

# As the libraries print them: torch 2.14, cuDNN 8 and 9, numpy 2.
TRUE = [
    torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 3.81 GiB"
    ),
    torch.OutOfMemoryError("Allocation on device 0 would exceed allowed memory. (out of memory)"),
    torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be ..."),
    RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`"),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
    RuntimeError("Unable to find a valid cuDNN algorithm to run convolution"),
    RuntimeError("FIND was unable to find an engine to execute this computation"),
    RuntimeError("MPS backend out of memory (MPS allocated: 5.05 GB, other allocations: 4 GB)"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    RuntimeError("alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you tried to"),
    RuntimeError("std::bad_alloc"),
    MemoryError(),
    MemoryError("Unable to allocate 7.28 TiB for an array with shape (1000000000000,)"),
]
FALSE = [
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: unspecified launch failure"),
    RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"),
    RuntimeError("CUDA error: no kernel image is available for execution on the device"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
    RuntimeError("the film ran out of memory"),
    ValueError("CUDA error: out of memory"),
    OSError("[Errno 28] No space left on device"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("error", TRUE, ids=lambda e: f"{type(e).__name__} {str(e)[:40]}")
def test_law_4_every_name_of_out_of_memory_is_known(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", FALSE, ids=lambda e: f"{type(e).__name__} {str(e)[:40]}")
def test_law_4_nothing_else_is_taken_for_it(error: BaseException) -> None:
    assert not is_out_of_memory(error)

    def fails() -> None:
        raise error

    with pytest.raises(type(error)):
        attempt(fails, HostGauge())


def test_every_spelling_is_seen_in_an_example_and_has_a_source() -> None:
    for spelling in SPELLINGS:
        assert spelling.source
        assert any(isinstance(e, spelling.kind) and spelling.text in str(e) for e in TRUE), spelling


def test_the_host_allocator_of_this_torch_says_it_as_listed() -> None:
    done = attempt(lambda: torch.empty(1 << 60, dtype=torch.uint8), HostGauge())
    assert isinstance(done, OutOfMemory) and "DefaultCPUAllocator" in done.message


class Keeper:
    """Remembers weak references to what failed attempts held."""

    def __init__(self) -> None:
        self.references: list[weakref.ref[torch.Tensor]] = []
        self.cache_freed = 0

    def free_cached(self) -> None:
        assert all(reference() is None for reference in self.references), "freed too early"
        self.cache_freed += 1

    def num_alloc_retries(self) -> int:
        return 0

    def peak_reserved_bytes(self) -> int:
        return 0


@pytest.mark.parametrize("cyclic", [False, True])
def test_the_failed_attempt_is_gone_before_the_cache_is_freed(cyclic: bool) -> None:
    card = Keeper()

    def fails() -> None:
        held = torch.ones(1000, requires_grad=True)
        graph = (held * 2).exp()
        card.references += [weakref.ref(held), weakref.ref(graph)]
        try:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        except torch.OutOfMemoryError as error:
            if cyclic:  # a frame that holds its own exception: only the collector ends that
                kept = error  # noqa: F841
            raise

    gc.disable()
    try:
        assert isinstance(attempt(fails, card), OutOfMemory)
    finally:
        gc.enable()
    assert card.cache_freed == 1
    assert len(card.references) == 2


def test_done_carries_the_value() -> None:
    assert attempt(lambda: 3, HostGauge()) == Done(value=3)
