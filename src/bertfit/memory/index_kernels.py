"""Bytes that looking up, sorting, counting and running sums take on a card: mostly CUB's.

Pure arithmetic, no torch. CUB's sizes were fitted to the requests of torch 2.14 (CUDA 13) on the
stub runtime.
"""

from dataclasses import dataclass

from bertfit.memory.kernels import Chip, ceil_div, round_up

# aten/src/ATen/native/cuda/Embedding.cu: up to this many indices there is one kernel without
# sorting; past it EmbeddingBackwardKernel.cu sorts them and sums segments of ten rows.
EMBEDDING_SORT_ABOVE = 3072
EMBEDDING_ROWS_PER_SEGMENT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedEmbeddingBackward:
    """Sizes of what `embedding_backward_cuda_kernel` allocates, in bytes.

    The temporary storage of CUB's sort, unique and scan was fitted to the requests of torch
    2.14 (CUDA 13) on the stub runtime: exact from 3,073 to 100,000 indices.

    Attributes:
        index: one int64 per index; five such buffers.
        sort: CUB's radix sort.
        unique: CUB's `unique_by_key`.
        scan: CUB's exclusive sum over the segments.
        segments: one int64 per segment that can be; two such buffers.
        parts: one int64 per part of a segment.
        sums: rows of partial sums, or what the path for few weights takes in their place.
        weight: fp32 sums of the few weights of a 16-bit type; 0 else.
    """

    index: int
    sort: int
    unique: int
    scan: int
    segments: int
    parts: int
    sums: int
    weight: int


def sorted_embedding_backward(
    chip: Chip, *, indices: int, num_weights: int, width: int, half: bool
) -> SortedEmbeddingBackward:
    """Return what the sorted backward of an embedding takes beside the gradient.

    Args:
        chip: where it runs.
        indices: how many rows were looked up; more than `EMBEDDING_SORT_ABOVE`.
        num_weights: rows of the table.
        width: columns of the table.
        half: the gradient has 16 bits.
    """
    segments = min(indices, num_weights)
    parts = indices // EMBEDDING_ROWS_PER_SEGMENT + segments
    # Few weights with long segments: the sums go to the weights at once.
    few = num_weights < 4 * chip.multiprocessors
    few = few and indices // EMBEDDING_ROWS_PER_SEGMENT > 3 * num_weights
    return SortedEmbeddingBackward(
        index=8 * indices,
        sort=_radix_sort(indices, ceil_div(num_weights.bit_length(), 8)),
        unique=_tile_states(indices, 320),
        scan=_tile_states(segments, 896),
        segments=8 * segments,
        parts=8 * parts,
        sums=8 * parts if few else 4 * parts * width,
        weight=4 * num_weights * width if few and half else 0,
    )


def _tile_states(items: int, items_per_tile: int, state_bytes: int = 16) -> int:
    """Return CUB's look-back state, for each tile and for a warp more."""
    return round_up(state_bytes * (ceil_div(items, items_per_tile) + 32), 256) + 511


# Bytes of an item -> items of a tile and bytes of its state, from the requests of torch 2.14 (CUDA
# 13) on the stub runtime: exact from 5 to 3,000,000 items.
_SCANS = {8: (896, 16), 4: (1920, 8), 2: (7680, 16)}


def scan_bytes(*, item_bytes: int, items: int) -> int:
    """Return what CUB takes for running sums over one row.

    Source: aten/src/ATen/native/cuda/ScanUtils.cuh, `scan_dim`; several rows take nothing.
    """
    return _tile_states(items, *_SCANS[item_bytes])


def sort_bytes(*, items: int) -> int:
    """Return what CUB takes to sort int64 with their positions; see `sorted_embedding_backward`."""
    return _radix_sort(items, key_bytes=8)


def _radix_sort(items: int, key_bytes: int) -> int:
    buffers = 2 * round_up(8 * items, 256) if key_bytes > 1 else 0
    return 1024 * ceil_div(items, 3840) + 2048 * key_bytes + 511 + buffers


def embedding_bytes(
    *, part: str, chip: Chip, num_weights: int, width: int, half: bool, indices: int
) -> int:
    """Return one size of `SortedEmbeddingBackward`, in the form that a `SizeRule` takes."""
    sizes = sorted_embedding_backward(
        chip, indices=indices, num_weights=num_weights, width=width, half=half
    )
    return int(getattr(sizes, part))


# Items of a tile of `DeviceSelect::Flagged`, exact from 1 to 10,000,000 items; other cards are
# like the first.
_SELECT_TILES = {(8, 0): 2304, (9, 0): 4224, (10, 0): 3520, (12, 0): 3520}
_SELECT_TILE = 640


def count_bytes(*, chip: Chip, items: int) -> int:
    """Return what CUB takes to count the items that are not zero.

    Source: aten/src/ATen/native/cuda/Nonzero.cu; `DeviceReduce::Sum` in blocks of 256 threads, one
    pass for up to 4,096 items.
    """
    if items <= 4096:
        return 1
    blocks = 5 * chip.multiprocessors * (chip.max_threads // 256)
    return 4 * blocks // 256 * 256 + 511


def select_bytes(*, chip: Chip, items: int) -> int:
    """Return what CUB takes to pick the positions of the items that are not zero.

    Source: aten/src/ATen/native/cuda/Nonzero.cu.
    """
    tile = _SELECT_TILES.get(chip.compute_capability, _SELECT_TILE)
    return _tile_states(items, tile, state_bytes=8)
