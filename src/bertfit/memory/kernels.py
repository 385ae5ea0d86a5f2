"""Bytes that CUDA kernels take beside their outputs: pure arithmetic, no torch.

Every formula names the file of PyTorch 2.14 that it was derived from. A card is its compute
capability and its number of multiprocessors.
"""

import math
from collections.abc import Callable, Iterable
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
# kKeepOutputInRF: heads up to this size need no fp32 accumulator in memory.
EFFICIENT_HEAD_IN_REGISTERS = 128

# aten/src/ATen/native/cuda/MultiTensorApply.cuh, kChunkSize.
FOREACH_CHUNK = 65536


@dataclass(frozen=True, slots=True)
class SizeRule:
    """How a size follows from numbers, where it is no plain product of batch and length.

    Attributes:
        function: gives bytes, or the bytes of each of several blocks.
        fixed: arguments that do not depend on the shape of the batch.
        varying: arguments that may.
    """

    function: Callable[..., int | tuple[int, ...]]
    fixed: tuple[tuple[str, object], ...]
    varying: tuple[tuple[str, int], ...]

    def sizes(self, varying: Iterable[tuple[str, int]] | None = None) -> tuple[int, ...]:
        """Return the bytes, for these or for other varying arguments."""
        arguments = dict(self.varying if varying is None else varying)
        found = self.function(**dict(self.fixed), **arguments)
        return found if isinstance(found, tuple) else (found,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
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
    card: Chip,
    *,
    kept: int,
    reduced: int,
    fastest: int,
    fastest_reduced: bool,
    accumulator_bytes: int = 4,
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
        fastest: size of the dimension with the smallest stride.
        fastest_reduced: that dimension is a reduced one.
        accumulator_bytes: of `arg_t`; 8 for pairs such as value and index, or for int64.
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
            output_vec = 4 if fastest % 4 == 0 else 2 if fastest % 2 == 0 else 1
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


# Cards whose blocks have 100 KiB of shared memory at most; larger kernels are left out there.
_SMALL_SHARED_MEMORY = {(8, 6), (8, 7), (8, 9), (12, 0), (12, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficientBackward:
    """The kernel that memory-efficient attention's backward launches.

    Attributes:
        queries: rows of a block, `kBlockSizeI`.
        keys: columns of a block, `kBlockSizeJ`.
        most_head: the head size it was compiled for, `kMaxK`.
        half: for 16-bit types.
        volta: compiled for compute capability 7.0.
    """

    queries: int
    keys: int
    most_head: int
    half: bool
    volta: bool = False

    @property
    def keeps_output(self) -> bool:
        """Whether the gradients of keys and values stay in registers, `kOutputInRF`."""
        return self.half and self.most_head <= self.queries

    @property
    def computes_delta(self) -> bool:
        """Whether no separate pass makes the row sums, `kKernelComputesDelta`."""
        return self.half and (self.keeps_output or not self.volta)

    def workspace_bytes(
        self, *, batch: int, heads: int, queries: int, keys: int, head: int, value_head: int
    ) -> int:
        """Return the bytes of `workspace_size`, with the default choice of key splits."""
        splits = ceil_div(keys, self.keys)
        if batch * heads >= 256 and keys <= 2 * self.keys:
            splits = 1
        staged = self.half and not self.keeps_output
        if staged:
            splits = min(splits, 200 // (batch * heads))
        splits = max(splits, 1)
        floats = 0
        if staged:
            columns = round_up(head, self.queries) + round_up(value_head, self.queries)
            floats += splits * self.keys * columns
        tiles = ceil_div(queries, self.queries) * ceil_div(head, self.keys)
        floats += tiles * (4 + self.queries * self.keys)
        return batch * heads * round_up(floats, 4) * 4


def efficient_backward(chip: Chip, *, head: int, half: bool, dropout: bool) -> EfficientBackward:
    """Return the first kernel of PyTorch's list that fits head size and shared memory.

    Source: mem_eff_attention/kernels/cutlassB.h for the list; which of them fit was read from the
    names of the kernels that PyTorch 2.14 launches, for every compute capability.
    """
    small = chip.compute_capability in _SMALL_SHARED_MEMORY
    modern = chip.compute_capability >= (8, 0)
    most = next(size for size in (32, 64, 128, 65536) if head <= size)
    queries = keys = 64
    if most > 64:
        if half and modern and most == 128:
            if head <= 96 and chip.compute_capability in ((8, 6), (8, 9)) and not dropout:
                queries, most = 128, 96
            elif not small:
                queries = keys = 128
        elif half or (modern and not small):
            queries = 128
    return EfficientBackward(
        queries=queries,
        keys=keys,
        most_head=most,
        half=half,
        volta=chip.compute_capability[0] == 7 and chip.compute_capability[1] < 5,
    )


def layer_norm_blocks(chip: Chip, *, rows: int, width: int) -> int:
    """Return over how many blocks of rows LayerNorm's backward sums weight and bias gradients.

    0 where one pass does it. Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu,
    `LaunchGammaBetaBackwardCUDAKernel`.
    """
    if rows <= 64 * 1024 or width // 32 >= chip.multiprocessors // 2:
        return 0
    return min(64 * 1024 // 2 // ceil_div(width, 32), ceil_div(rows, 32))


def padded_bytes(*, rows: int, length: int, multiple: int, width: int = 1) -> int:
    """Return the bytes of fp32 rows whose length is padded to a multiple."""
    return 4 * rows * round_up(length, multiple) * width


def efficient_workspace(
    *, kernel: EfficientBackward, heads: int, head: int, batch: int, length: int, keys: int
) -> int:
    """Return `EfficientBackward.workspace_bytes`, in the form that a `SizeRule` takes."""
    return kernel.workspace_bytes(
        batch=batch, heads=heads, queries=length, keys=keys, head=head, value_head=head
    )


def flash_splits(chip: Chip, *, blocks: int, key_blocks: int) -> int:
    """Return over how many parts of the keys flash attention without dropout is spread.

    Source: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp,
    `num_splits_heuristic`: the fewest within 85% of the best use of the card.

    Args:
        chip: where it runs.
        blocks: of queries, over all heads and windows.
        key_blocks: blocks of keys of one window.
    """
    seats = 2 * chip.multiprocessors
    if 5 * blocks >= 4 * seats:
        return 1
    use = {}
    for splits in range(1, min(128, seats, key_blocks) + 1):
        if splits == 1 or ceil_div(key_blocks, splits) != ceil_div(key_blocks, splits - 1):
            waves = blocks * splits / seats
            use[splits] = waves / math.ceil(waves)
    enough = 0.85 * max(use.values())
    return next(splits for splits, share in use.items() if share >= enough)


def flash_width(head: int) -> int:
    """Return the head size that flash attention's fp32 buffers have, `head_size_rounded`."""
    return round_up(head, 32 if head <= 128 else 64)


def flash_parts(
    *, chip: Chip, heads: int, head: int, batch: int, length: int, keys: int
) -> tuple[int, ...]:
    """Return the bytes of the row sums and outputs of all parts of the keys; none for one part.

    Source: `set_params_splitkv` in the same file.
    """
    columns = 256 if head <= 64 else 128 if head <= 128 else 64
    blocks = batch * heads * ceil_div(length, 64)
    splits = flash_splits(chip, blocks=blocks, key_blocks=ceil_div(keys, columns))
    if splits == 1:
        return ()
    rows = 4 * splits * batch * heads * length
    return rows, rows * flash_width(head)
