"""The rules of convolutions that PyTorch computes itself, sentence by sentence of a batch.

Source: aten/src/ATen/native/Convolution.cpp of PyTorch 2.14, and the kernels that it chooses. Those
of cuDNN take what it finds good on the card, which is not known: they have no rule.
"""

from typing import Literal

import torch
from torch import Tensor
from torch._ops import OpOverload

from bertfit.language import N_
from bertfit.memory.trace_ops import Arguments, Keywords, OpTrace, rule
from bertfit.memory.trace_rules import reduction

aten = torch.ops.aten

_CUDNN = N_("cuDNN chooses on the card what it takes")


def _backend(
    t: OpTrace, func: OpOverload, x: Tensor, weight: Tensor, args: Arguments
) -> Literal["depthwise", "products"]:
    """Return which of PyTorch's own kernels compute a convolution.

    Source: `_select_conv_backend` and `use_cudnn_depthwise`.

    Args:
        t: for the error.
        func: likewise.
        x: (B, channels, T), or with two dimensions in place of T.
        weight: (channels out, channels of a group, kernel).
        args: stride, padding, dilation, transposed, output padding, groups.

    Raises:
        ModelError: it is cuDNN's, or of a kind that no encoder has.
    """
    _stride, _padding, dilation, transposed, _more, groups = args
    cudnn = torch.backends.cudnn.enabled
    because = _CUDNN if cudnn else None
    if transposed or x.ndim not in (3, 4):
        raise t.unknown(func, because)
    if 1 < groups == x.shape[1] and not weight.shape[0] % groups:
        if cudnn and x.dtype == torch.float16 and groups >= 32:
            raise t.unknown(func, because)
        return "depthwise"
    if cudnn or any(d != 1 for d in dilation):
        raise t.unknown(func, because)
    return "products"


@rule(aten.convolution.default)
def _convolution(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    x, weight, groups = args[0], args[1], args[8]
    backend = _backend(t, func, x, weight, args[3:])
    shape = func(*args, **kwargs).shape
    x = t.contiguous(x)
    weight = t.contiguous(weight)
    if backend == "depthwise":
        return t.new(shape, x.dtype)
    stride, padding = args[3:5]
    moved = weight.shape[2:].numel() > 1 or any(n != 1 for n in stride) or any(padding)
    if groups == 1:
        return _products(t, x, weight, shape, moved)
    sizes = (shape[0], shape[1] // groups, *shape[2:])
    outs = []
    for group in range(groups):
        part = _part(t, x, 1, groups, group)
        outs.append(_products(t, part, _part(t, weight, 0, groups, group), sizes, moved))
        del part
    return t.new(shape, x.dtype)


def _part(t: OpTrace, x: Tensor, dim: int, groups: int, group: int) -> Tensor:
    """Return what belongs to one group, contiguous; `subtensor`."""
    size = x.shape[dim] // groups
    return t.contiguous(x.narrow(dim, group * size, size))


def _products(t: OpTrace, x: Tensor, weight: Tensor, shape: tuple[int, ...], moved: bool) -> Tensor:
    """Multiply the columns of one sentence after the other by the weights.

    Source: aten/src/ATen/native/cuda/ConvolutionMM2d.cu, `slow_conv2d_forward`.

    Args:
        t: where it is noted.
        x: the input.
        weight: of the convolution.
        shape: of the output.
        moved: the input cannot serve as its own columns.
    """
    out = t.new(shape, x.dtype)
    columns = _columns(t, weight, out) if moved else None
    t.blas()
    del columns
    return out


def _columns(t: OpTrace, weight: Tensor, out: Tensor) -> Tensor:
    """Take the buffer for what each output of one sentence is computed from."""
    return t.new((weight.shape[1:].numel(), *out.shape[2:]), out.dtype)


@rule(aten.convolution_backward.default)
def _convolution_backward(
    t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords
) -> object:
    grad, x, weight = args[:3]
    groups, wanted = args[9], args[10]
    backend = _backend(t, func, x, weight, args[4:10])
    if weight.ndim == 3:
        x = t.contiguous(x)
    if backend == "depthwise":
        return _depthwise_backward(t, grad, x, weight, wanted)
    x, weight = t.contiguous(x), t.contiguous(weight)
    if groups == 1:
        return _products_backward(t, grad, x, weight, wanted)
    parts = []
    for group in range(groups):
        grad_part, x_part = (_part(t, whole, 1, groups, group) for whole in (grad, x))
        weight_part = _part(t, weight, 0, groups, group)
        parts.append(_products_backward(t, grad_part, x_part, weight_part, wanted))
        del grad_part, x_part
    sizes = (x.shape, weight.shape, weight.shape[:1])
    return [
        t.new(size, grad.dtype) if want else None for size, want in zip(sizes, wanted, strict=True)
    ]


def _products_backward(
    t: OpTrace, grad: Tensor, x: Tensor, weight: Tensor, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    """Source: aten/src/ATen/native/cuda/ConvolutionMM2d.cu, `slow_conv2d_backward_out_cuda`."""
    grad_x = grad_weight = grad_bias = columns = None
    grad = t.contiguous(grad)
    if wanted[0]:
        grad_x = t.new(x.shape, grad.dtype)
        columns = _columns(t, weight, grad)
        t.blas()
    if wanted[2]:
        grad_bias = _bias_gradient(t, grad)
    if wanted[1]:
        grad_weight = t.new(weight.shape, grad.dtype)
        if columns is None:
            columns = _columns(t, weight, grad)
        t.blas()
    return grad_x, grad_weight, grad_bias


def _depthwise_backward(
    t: OpTrace, grad: Tensor, x: Tensor, weight: Tensor, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    """Source: aten/src/ATen/native/cuda/DepthwiseConv2d.cu, `conv_depthwise2d_backward_cuda`."""
    grad_x = grad_weight = grad_bias = None
    whole = t.contiguous(grad)
    if wanted[1]:
        of_weight = t.contiguous(x)
        grad_weight = t.new(weight.shape, weight.dtype)
        del of_weight
    if wanted[0]:
        t.contiguous(weight)
        grad_x = t.new(x.shape, x.dtype)
    del whole
    if wanted[2]:
        grad_bias = _bias_gradient(t, grad)
    return grad_x, grad_weight, grad_bias


def _bias_gradient(t: OpTrace, grad: Tensor) -> Tensor:
    """Sum over sentences and places."""
    total = t.new(grad.shape[1:2], grad.dtype)
    reduction(t, grad, [d for d in range(grad.ndim) if d != 1])
    return total


@rule(aten.im2col.default, aten.col2im.default)
def _unfold(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Lay out what each output is computed from, or add it up again.

    Source: aten/src/ATen/native/cuda/Im2Col.cu and Col2Im.cu: the output is made in the size of the
    input and then resized, which keeps a block that is large enough.
    """
    x = args[0]
    shape = func(*args, **kwargs).shape
    first = t.new(x.shape, x.dtype)
    whole = t.contiguous(x)
    out = first.flatten()[: shape.numel()].view(shape) if shape.numel() <= x.numel() else None
    if out is None:
        out = t.new(shape, x.dtype)
    del whole
    return out
