"""Bytes that CUDA kernels take beside their outputs: pure arithmetic, no torch.

Every formula names the file of PyTorch 2.14 that it was derived from. A card is its compute
capability and its number of multiprocessors.
"""

from dataclasses import dataclass

# aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize: `:4096:2:16:8`, and 32 MiB
# from compute capability 9.0 on. One per cuBLAS handle and stream.
CUBLAS_WORKSPACE_BYTES = 4096 * 1024 * 2 + 16 * 1024 * 8
CUBLAS_WORKSPACE_BYTES_HOPPER = 4096 * 8 * 1024

# CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability": resident
# threads per multiprocessor.
_MAX_THREADS = {
    (7, 5): 1024,
    (8, 6): 1536,
    (8, 7): 1536,
    (8, 9): 1536,
    (12, 0): 1536,
    (12, 1): 1536,
}

# aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_forward.h, kAlignLSE.
EFFICIENT_LSE_ALIGNMENT = 32

# aten/src/ATen/native/cuda/MultiTensorApply.cuh, kChunkSize.
FOREACH_CHUNK = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What of a card decides sizes."""

    compute_capability: tuple[int, int]
    multiprocessors: int

    @property
    def max_threads(self) -> int:
        """Resident threads per multiprocessor."""
        return _MAX_THREADS.get(self.compute_capability, 2048)

    @property
    def cublas_workspace_bytes(self) -> int:
        """What PyTorch allocates for each cuBLAS handle at its first use."""
        if self.compute_capability >= (9, 0):
            return CUBLAS_WORKSPACE_BYTES_HOPPER
        return CUBLAS_WORKSPACE_BYTES


def ceil_div(a: int, b: int) -> int:
    """Divide and round up."""
    return -(-a // b)


def round_up(a: int, to: int) -> int:
    """Round up to a multiple."""
    return -(-a // to) * to


def _last_pow2(n: int) -> int:
    return 1 << max(0, n.bit_length() - 1)


def reduction(
    card: Card,
    *,
    kept: int,
    reduced: int,
    fastest_reduced: bool,
    element_bytes: int,
    accumulator_bytes: int = 4,
    vector: int = 4,
    contiguous: bool = True,
    max_threads: int = 512,
    input_vector: int = 4,
) -> tuple[int, ...]:
    """Return the staging buffer and the semaphores of a reduction over many blocks.

    Source: aten/src/ATen/native/cuda/Reduce.cuh, `setReduceConfig` and `ReduceConfig`.

    Args:
        card: where it runs.
        kept: number of outputs.
        reduced: number of inputs for each output.
        fastest_reduced: the reduced dimension is the one with the smallest stride.
        element_bytes: of the input; unused where the layout already says enough.
        accumulator_bytes: of `arg_t`; 8 for pairs such as value and index, or for int64.
        vector: outputs that one thread handles, at most (4, 2 or 1 by divisibility).
        contiguous: the smallest stride is one element.
        max_threads: `MAX_REDUCE_THREADS` of the dtype.
        input_vector: elements that a thread loads at once.
    """
    if not kept or not reduced:
        return ()
    output_vec = 1
    width, height = (reduced, kept) if fastest_reduced else (kept, reduced)
    if contiguous:
        if fastest_reduced and width >= 128:
            width //= input_vector
        elif not fastest_reduced:
            output_vec = vector
            width //= output_vec
    threads = max_threads // output_vec
    width_pow2 = _last_pow2(width) if width < threads else threads
    height_pow2 = _last_pow2(height) if height < threads else threads
    block_width = min(width_pow2, 32)
    block_height = min(height_pow2, threads // block_width)
    block_width = min(width_pow2, threads // block_height)
    num_threads = block_width * block_height
    step_input = step_output = 1
    if fastest_reduced:
        step_input *= block_width
    else:
        step_output *= block_width
    split_across_warps = ceil_div(reduced, step_input) >= min(block_height * 16, 256)
    if split_across_warps:
        step_input *= block_height
    else:
        step_output *= block_height
    values = ceil_div(reduced, step_input)
    grid = ceil_div(kept // output_vec, step_output)
    target = card.multiprocessors * (card.max_threads // num_threads)
    if not split_across_warps or values < 256 or grid > target:
        return ()
    low, high = ceil_div(values, 256), ceil_div(values, 16)
    blocks = min(max(ceil_div(target, grid), low), high)
    if blocks <= 1:
        return ()
    staging = accumulator_bytes * kept * blocks
    if not fastest_reduced:
        staging *= block_width * output_vec
    return staging, 4 * grid
