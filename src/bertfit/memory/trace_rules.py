"""The rules of operations that take more than their outputs, or whose CUDA form differs.

Each follows the CUDA implementation of PyTorch 2.14 that it names; allocation order matters, for
the allocator's choice of blocks depends on it.
"""

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from bertfit.memory import index_kernels, kernels
from bertfit.memory.kernels import SizeRule
from bertfit.memory.trace_dtypes import check_same_dtype
from bertfit.memory.trace_ops import PLAIN, POINTWISE, Arguments, Keywords, OpTrace, rule

aten = torch.ops.aten

# Kernels that allocate their outputs and nothing else.
PLAIN.update(
    {
        aten.empty.memory_format,
        aten.empty_strided.default,
        aten.empty_like.default,
        aten.new_empty.default,
        aten.zeros.default,
        aten.zeros_like.default,
        aten.ones.default,
        aten.ones_like.default,
        aten.new_zeros.default,
        aten.new_ones.default,
        aten.scalar_tensor.default,
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        aten.clone.default,
        aten._to_copy.default,
        aten.copy_.default,
        aten.fill_.Tensor,
        aten.zero_.default,
        aten.cat.default,
        aten.gather.default,
        aten.index_select.default,
        aten.native_dropout_backward.default,
        aten.threshold_backward.default,
        aten.hardswish.default,
        aten.hardswish_backward.default,
        aten.hardsigmoid_backward.default,
        aten.hardtanh_backward.default,
        aten.leaky_relu_backward.default,
        aten.elu_backward.default,
        aten._prelu_kernel.default,
        aten._prelu_kernel_backward.default,
        aten.tril.default,
        aten.triu.default,
        aten._unsafe_view.default,
        aten.select_backward.default,
        aten.slice_backward.default,
        aten.repeat.default,
        aten.constant_pad_nd.default,
        aten.new_empty_strided.default,
        aten.softplus_backward.default,
        aten.histc.default,
        aten.floor_divide.default,
        aten.index_add_.default,
        aten.avg_pool2d.default,
        aten.avg_pool2d_backward.default,
        aten.max_pool2d_with_indices.default,  # values and positions, DilatedMaxPool2d.cu
        aten.max_pool2d_with_indices_backward.default,
        aten.linspace.default,
        aten.eye.default,
        aten.eye.m,
        aten.roll.default,
        aten.flip.default,
        aten.masked_fill.Tensor,
        aten.masked_fill_.Tensor,
        aten.scatter.src,
        aten.scatter.value,
        aten.scatter_.src,
        aten.scatter_.value,
        aten.index_add.default,
        aten.index_fill.int_Scalar,
        aten.bernoulli.default,
        aten.bernoulli_.float,
        aten.rand.default,
        aten.randn.default,
        aten.normal_.default,
        aten.uniform_.default,
        aten.log_sigmoid_backward.default,
        aten.select_scatter.default,
        aten.slice_scatter.default,
        aten.bucketize.Tensor,
    }
)

POINTWISE.update(
    {
        aten.mul.Tensor,
        aten.mul.Scalar,
        aten.div.Tensor,
        aten.sub.Tensor,
        aten.gelu.default,
        aten.gelu_backward.default,
        aten.tanh.default,
        aten.tanh_backward.default,
        aten.native_dropout_backward.default,
        aten.where.self,
        aten.pow.Tensor_Scalar,
        aten.neg.default,
    }
)


@rule(aten.native_dropout.default)
def _native_dropout(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    x: Tensor = args[0]
    mask = t.like(x, torch.bool)
    return t.like(x), mask


@rule(aten.native_layer_norm.default)
def _layer_norm(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    x, shape = args[0], args[1]
    assert isinstance(x, Tensor) and isinstance(shape, list | tuple)
    x = t.contiguous(x)
    out = t.like(x)
    stats = [*x.shape[: x.ndim - len(shape)], *[1] * len(shape)]
    half = x.dtype in (torch.float16, torch.bfloat16)
    dtype = torch.float32 if half else x.dtype
    return out, t.new(stats, dtype), t.new(stats, dtype)


@rule(aten.native_layer_norm_backward.default)
def _layer_norm_backward(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu, `LayerNormBackwardKernelImpl`."""
    grad, x, *_stats, weight, bias, wanted = args
    x = t.contiguous(x)
    grad_input = t.like(x) if wanted[0] else None
    sums = [
        t.like(parameter) if want and parameter is not None else None
        for want, parameter in ((wanted[1], weight), (wanted[2], bias))
    ]
    grad = t.contiguous(grad)  # behind the outputs, until the kernel ends
    width = weight.numel() if weight is not None else x.shape[-1]
    blocks = kernels.layer_norm_blocks(t.card, rows=x.numel() // width, width=width)
    if blocks:
        partial = [None if s is None else t.new((blocks, width), s.dtype) for s in sums]
        for at, part in enumerate(partial):
            if part is not None:
                total = t.new((width,), part.dtype)
                reduction(t, part, [0])
                sums[at] = total
    return grad_input, *sums


@rule(aten._softmax.default, aten._log_softmax.default)
def _softmax(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Source: aten/src/ATen/native/cuda/SoftMax.cu, `host_softmax`."""
    x, half_to_float = args[0], args[2]
    out = t.new(x.shape, torch.float32 if half_to_float else x.dtype)
    t.contiguous(x)
    return out


@rule(aten.nll_loss_forward.default)
def _nll_loss(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    x = args[0]
    reduction = args[3]
    out = t.new(() if reduction or x.ndim == 1 else (x.shape[0],), x.dtype)
    return out, t.new((), x.dtype)


@rule(aten.nll_loss_backward.default)
def _nll_loss_backward(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    return t.like(args[1])


@rule(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
def _matmul(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    # Not left to torch, which takes a decomposition in Python for the shape of `addmm`.
    left, right = args[-2:]
    check_same_dtype(left, right)
    if (*left.shape[:-2], left.shape[-1]) != right.shape[:-1]:
        raise RuntimeError(
            f"shapes cannot be multiplied ({tuple(left.shape)} and {tuple(right.shape)})"
        )
    out = t.new((*left.shape[:-1], right.shape[-1]), left.dtype)
    if left.numel() and right.numel():
        t.blas()
    return out


def reduction(t: OpTrace, x: Tensor, dims: list[int]) -> None:
    """Take what a reduction over many blocks takes, see `kernels.reduction`."""
    dims = [d % x.ndim for d in dims] if x.ndim else []
    kept = reduced = 1
    for d, n in enumerate(x.shape):
        if d in dims:
            reduced *= n
        else:
            kept *= n
    strides = [(x.stride(d), d) for d in range(x.ndim) if x.shape[d] > 1]
    if not strides:
        return
    stride, fastest = min(strides)
    t.recorder.slot(
        SizeRule(
            kernels.reduction,
            (("card", t.card), ("fastest_reduced", fastest in dims), ("contiguous", stride == 1)),
            (("kept", kept), ("reduced", reduced), ("fastest", x.shape[fastest])),
        )
    )


_WITH_DIMS = {aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default}
# aten/src/ATen/native/ReduceOpsUtils.h, `make_reduction_from_ty`: whole numbers are cast before.
_SUMS = {aten.sum.default, aten.sum.dim_IntList}
_NORMS = {aten.linalg_vector_norm.default: 2, aten.norm.ScalarOpt_dim: 2, aten.norm.Scalar: 9}
_WITH_DIM = {aten.argmax.default, aten.max.dim, aten.min.dim, aten.all.dim, aten.any.dim}


@rule(
    *_WITH_DIMS,
    *_WITH_DIM,
    *_NORMS,
    aten.sum.default,
    aten.mean.default,
    aten.all.default,
    aten.any.default,
    aten.max.default,
    aten.min.default,
)
def _reduce(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    x = args[0]
    dims = list(range(x.ndim))
    if func in _WITH_DIMS and len(args) > 1 and args[1]:
        dims = list(args[1])
    elif func in _WITH_DIM and len(args) > 1 and args[1] is not None:
        dims = [args[1]]
    elif func in _NORMS and len(args) > _NORMS[func] and args[_NORMS[func]]:
        dims = list(args[_NORMS[func]])
    out: Any = t.note_all(func(*args, **kwargs))
    if func in _SUMS and not x.is_floating_point() and x.dtype != out.dtype:
        x = t.like(x, out.dtype)
    reduction(t, x, dims)
    return out


@rule(aten._foreach_norm.Scalar)
def _foreach_norm(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Source: aten/src/ATen/native/cuda/ForeachReduceOp.cu, `foreach_tensor_norm_cuda`."""
    tensors = args[0]
    chunks = max(kernels.ceil_div(x.numel(), kernels.FOREACH_CHUNK) for x in tensors)
    partial = t.new((len(tensors) * chunks,), torch.float32)
    out = [t.new((), x.dtype) for x in tensors]
    del partial
    return out


@rule(
    aten._fused_adamw_.default,
    aten._fused_adamw_.tensor_lr,
    aten._fused_adam_.default,
    aten._fused_sgd_.default,
    aten._amp_foreach_non_finite_check_and_unscale_.default,
)
def _in_place_lists(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    return None


@rule(aten._amp_update_scale_.default)
def _first_in_place(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    return args[0]


@rule(aten.stack.default)
def _stack(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    return t.note_all(func(*args, **kwargs))


@rule(aten.add.Tensor)
def _add(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Add in place where autograd sums gradients that nobody else holds.

    Source: torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`. Under a dispatch mode
    autograd itself never does it, so it is done here.
    """
    old = args[0]
    if t.in_engine() and isinstance(old, Tensor) and _held_once(old):
        return old
    return t.pointwise(func, args, kwargs)


def _held_once(tensor: Tensor) -> bool:
    # The buffer of the engine, the argument list, and the two names in Python.
    return (
        tensor._use_count() <= 5  # type: ignore[attr-defined]
        and torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) <= 2
        and torch.ops.aten.is_non_overlapping_and_dense.default(tensor)
    )


@rule(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def _softmax_backward(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Source: aten/src/ATen/native/cuda/SoftMax.cu, `host_softmax_backward`.

    Softmax gives it grad * output.
    """
    grad, output = args[0], args[1]
    out = t.new(grad.shape, args[3])
    if func == aten._softmax_backward_data.default:
        grad = grad * output
        t.recorder.note(grad)
    copies = t.contiguous(grad), t.contiguous(output)
    del copies
    return out


@rule(aten.cumsum.default, aten.cumprod.default)
def _cumulate(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Source: aten/src/ATen/native/ReduceOps.cpp, `impl_func_cum_ops`: the input is cast first."""
    x, dim = args[0], args[1]
    out: Any = t.note_all(func(*args, **kwargs), args)
    cast = t.like(x, out.dtype) if x.dtype != out.dtype else None
    if x.ndim and x.numel() == x.shape[dim]:  # one row
        size = ("item_bytes", out.element_size())
        t.recorder.slot(SizeRule(index_kernels.scan_bytes, (size,), (("items", x.numel()),)))
    del cast
    return out


@rule(aten._safe_softmax.default)
def _safe_softmax(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Source: aten/src/ATen/native/transformers/attention.cpp, `_safe_softmax`."""
    x = args[0]
    out = t.like(x)
    masked = t.like(x, torch.bool)
    rows = t.new((*x.shape[:-1], 1), torch.bool)
    zero = t.new((), x.dtype)
    del zero, rows, masked  # it is filled in place
    return out


@rule(aten._grouped_mm.default)
def _grouped_matmul(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Multiply group by group into parts of the output.

    Source: aten/src/ATen/native/cuda/GroupedBlas.cpp, `_grouped_mm_fallback`. In bf16 cards of
    compute capability 9.0 and 10.0 have one kernel, whose buffers are not known.
    """
    left, right, offsets = args[:3]
    fast = t.card.compute_capability in ((9, 0), (10, 0))
    if fast and left.dtype == right.dtype == torch.bfloat16:
        raise t.unknown(func)
    size = [*left.shape[:-1], right.shape[-1]]
    if left.ndim == right.ndim == 2:
        size.insert(0, offsets.shape[0])
    elif right.ndim == 2:
        del size[0]
    # `create_grouped_gemm_output_tensor`: rows begin at multiples of 16 bytes.
    rows = t.new((*size[:-1], kernels.round_up(size[-1], 16 // left.element_size())), left.dtype)
    t.blas()
    return rows[..., : size[-1]]


@rule(aten.linalg_solve_triangular.default)
def _solve_triangular(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Solve small systems together, by two lists of pointers.

    Source: aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp, `triangular_solve_kernel`.
    """
    left, right = args[:2]
    count, size = left.shape[:-2].numel(), left.shape[-1]
    if left.shape[:-2] != right.shape[:-2] or size > 64:
        raise t.unknown(func)
    out = t.new((*right.shape[:-2], right.shape[-1], right.shape[-2]), right.dtype)
    t.blas()
    if count > 8 or size < 64:
        t.temporary(8 * count, 8 * count)
    return out.mT
