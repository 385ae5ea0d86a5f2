"""The rules of operations that look rows up, and of what their backward sorts.

Each follows the CUDA implementation of PyTorch 2.14 that it names.
"""

import torch
from torch import Tensor
from torch._ops import OpOverload

from bertfit.memory import index_kernels
from bertfit.memory.kernels import SizeRule
from bertfit.memory.trace_ops import Arguments, Keywords, OpTrace, rule

aten = torch.ops.aten

_MASKS = (torch.bool, torch.uint8)


@rule(aten.embedding.default)
def _embedding(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    weight, indices = args[0], args[1]
    flat = t.contiguous(indices)
    out = t.new((*indices.shape, weight.shape[1]), weight.dtype)
    del flat
    return out


@rule(aten.embedding_dense_backward.default)
def _embedding_backward(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    grad, indices, num_weights = args[0], args[1], args[2]
    indices = t.contiguous(indices)
    grad = t.contiguous(grad)
    shape = (num_weights, grad.shape[-1])
    if indices.numel() <= index_kernels.EMBEDDING_SORT_ABOVE:
        return t.new(shape, grad.dtype)
    half = grad.dtype != torch.float32

    def take(part: str) -> Tensor:
        fixed = (
            ("part", part),
            ("chip", t.card),
            ("num_weights", num_weights),
            ("width", shape[1]),
            ("half", half),
        )
        varying = (("indices", indices.numel()),)
        return t.sized(SizeRule(index_kernels.embedding_bytes, fixed, varying))

    ordered = [take("index"), take("index")]
    numbers = take("index")
    take("sort")
    del numbers
    out = t.new(shape, grad.dtype)
    held = [take("index"), t.new((), torch.int64)]
    numbers = take("index")
    take("unique")
    del numbers
    held += [take("segments"), take("segments")]
    take("scan")
    held += [t.new((), torch.int64), take("parts"), take("sums"), take("weight")]
    while held:
        held.pop()
    while ordered:
        ordered.pop()
    return out


def _on_card(t: OpTrace, index: Tensor) -> Tensor:
    """Move positions that lie on the host: `x[..., [-1]]` makes such."""
    if index.is_meta and t.recorder.on_card(index):
        return index
    moved = t.new(index.shape, index.dtype)
    if not index.is_meta:
        t.recorder.values.know_copy(moved, index)
    return moved


def _where(t: OpTrace, func: OpOverload, mask: Tensor) -> list[Tensor]:
    """Turn a mask into positions, one tensor for each of its dimensions; they share a block.

    Source: aten/src/ATen/native/IndexingUtils.h, `expandTensors`.
    """
    found = _find(t, mask, int(t.value(func, mask).count_nonzero()))
    return [found.select(1, at) for at in range(mask.ndim)]


def _find(t: OpTrace, x: Tensor, count: int) -> Tensor:
    """Find what is not zero: a count, then what CUB needs to make it and to pick.

    Source: aten/src/ATen/native/cuda/Nonzero.cu, `nonzero_cuda_out_impl`.
    """
    x = t.contiguous(x)
    counted = t.new((), torch.int32)
    items = (("items", x.numel()),)
    chip = (("chip", t.card),)
    t.recorder.slot(SizeRule(index_kernels.count_bytes, chip, items))
    found = t.new((x.ndim, count), torch.int64).t()
    t.recorder.slot(SizeRule(index_kernels.select_bytes, chip, items))
    del counted
    return found


@rule(aten.nonzero.default)
def _nonzero(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Find nothing outside a model where values are not known: there we look for rare faults."""
    x = args[0]
    if t.recorder.values.of(x) is None and t.recorder.phase not in ("forward", "backward"):
        return _find(t, x, 0)
    return _find(t, x, int(t.value(func, x).count_nonzero()))


@rule(aten._local_scalar_dense.default)
def _scalar(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    return t.value(func, args[0]).item()


@rule(aten.index.Tensor)
def _index(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Copy indices whose strides differ.

    Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp, `AdvancedIndex::AdvancedIndex`.
    """
    indices = _positions(t, func, args[1])
    copies = _alike(t, indices)
    out = t.note_all(func(args[0], indices), args)
    del copies, indices
    return out


def _positions(t: OpTrace, func: OpOverload, given: list[Tensor | None]) -> list[Tensor | None]:
    """Turn masks into positions, and bring all of them to the card."""
    found: list[Tensor | None] = []
    for index in given:
        if index is not None and index.dtype in _MASKS:
            found += _where(t, func, index)
        else:
            found.append(None if index is None else _on_card(t, index))
    return found


def _alike(t: OpTrace, indices: list[Tensor | None]) -> list[Tensor]:
    """Bring positions to one shape, and copy them where their strides differ."""
    given = [index for index in indices if index is not None]
    shape = torch.broadcast_shapes(*(i.shape for i in given))  # type: ignore[no-untyped-call]
    alike = [index.expand(shape) for index in given]
    if any(index.stride() != alike[0].stride() for index in alike):
        alike = [t.contiguous(index) for index in alike]
    return alike


@rule(aten.scatter_add.default)
def _scatter_add(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """In place in `gather_backward` (FunctionsManual.cpp), which a dispatch mode turns off."""
    if t.in_engine():
        return args[0]
    return t.note_all(func(*args, **kwargs), args)


@rule(
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index_put.default,
)
def _index_put(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Sort the indices where values are added up.

    Source: aten/src/ATen/native/cuda/Indexing.cu, `index_put_with_sort_kernel`. Where autograd's
    engine adds it works in place (`index_backward`), which a dispatch mode turns off.
    """
    target, given, value = args[:3]
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    in_place = func._opname.endswith("_") or (t.in_engine() and accumulate)
    out = target if in_place else t.like(target)
    masked = any(index is not None and index.dtype in _MASKS for index in given)
    # One number of the host is filled in, `canDispatchToMaskedFill`.
    if masked and not accumulate and value.numel() == 1 and _is_number(t, value):
        return out
    if value.dtype != target.dtype:  # as torch says it
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, "
            f"got {target.dtype} for the destination and {value.dtype} for the source."
        )
    value = _on_card(t, value)
    indices = _positions(t, func, given)
    if accumulate:
        shapes = (index.shape for index in indices if index is not None)
        count = torch.broadcast_shapes(*shapes).numel()  # type: ignore[no-untyped-call]
        if count:
            sort = index_kernels.sorted_embedding_backward(
                t.card, indices=count, num_weights=1 << 31, width=1, half=False
            ).sort
            t.temporary(8 * count, 8 * count, 8 * count, sort)
    else:
        copies = _alike(t, indices)
        del copies
    del value, indices
    return out


def _is_number(t: OpTrace, value: Tensor) -> bool:
    """Say whether a value was a number in Python: torch keeps it on the host."""
    block = t.recorder.block_of(value)
    return block is None or t.recorder.ops[block] == "scalar_tensor"


@rule(aten.sort.default, aten.sort.stable)
def _sort(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Give values and positions; rows of up to 4,096 are sorted in place.

    Source: aten/src/ATen/native/cuda/Sort.cpp, `sort_cuda_kernel`, for one row of int64.
    """
    x = args[0]
    if x.ndim != 1 or x.dtype != torch.int64:
        raise t.unknown(func)
    values, positions = t.like(x), t.like(x)
    numbers = t.like(x)
    if x.numel() > _SORTED_IN_PLACE:
        t.recorder.slot(SizeRule(index_kernels.sort_bytes, (), (("items", x.numel()),)))
    del numbers
    return values, positions


_SORTED_IN_PLACE = 4096


@rule(aten.topk.default)
def _topk(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Give values and positions: what is picked is sorted in place.

    Source: aten/src/ATen/native/cuda/TensorTopK.cpp, for rows that one block of threads reads.
    """
    if args[0].shape[-1] > _SORTED_IN_PLACE:
        raise t.unknown(func)
    return t.note_all(func(*args, **kwargs), args)
