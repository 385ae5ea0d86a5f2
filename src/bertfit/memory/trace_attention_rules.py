"""The rules of the fused attention kernels: what they give back, keep and take meanwhile.

Source: aten/src/ATen/native/transformers/cuda/attention.cu and attention_backward.cu, flash_attn/
flash_api.cpp of PyTorch 2.14.
"""

import contextlib

import torch
from torch import Tensor
from torch._ops import OpOverload

from bertfit.memory import kernels
from bertfit.memory.kernels import SizeRule
from bertfit.memory.trace_ops import Arguments, Keywords, OpTrace, rule
from bertfit.memory.trace_rules import reduction

aten = torch.ops.aten


def _padded(*, rows: int, length: int, multiple: int, width: int = 1) -> SizeRule:
    return SizeRule(
        kernels.padded_bytes,
        (("multiple", multiple), ("width", width)),
        (("rows", rows), ("length", length)),
    )


@rule(aten._scaled_dot_product_efficient_attention.default)
def _efficient(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    q, v, wanted = args[0], args[2], args[4]
    batch, heads, length, size = q.shape
    dropout = args[5] if len(args) > 5 else 0.0
    if dropout:  # the generator's state is read on the host
        seed, offset = (torch.empty((), dtype=torch.int64) for _ in range(2))
    else:
        seed, offset = t.new((), torch.int64), t.new((), torch.int64)
    out = t.new((batch, length, heads, v.shape[-1]), q.dtype)
    saved = kernels.round_up(length, kernels.EFFICIENT_LSE_ALIGNMENT) if wanted else 0
    lse = t.new((batch, heads, saved), torch.float32)
    if wanted:
        multiple = kernels.EFFICIENT_LSE_ALIGNMENT
        t.recorder.explain(lse, _padded(rows=batch * heads, length=length, multiple=multiple))
    if max(size, v.shape[-1]) > kernels.EFFICIENT_HEAD_IN_REGISTERS and q.dtype != torch.float32:
        t.temporary(out.numel() * 4)  # the output in fp32, kernel_forward.h
    return out.transpose(1, 2), lse, seed, offset


@rule(aten._scaled_dot_product_efficient_attention_backward.default)
def _efficient_backward(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    grad, q, k, v, bias, out = args[:6]
    batch, heads, length, size = q.shape
    whole = t.contiguous(grad.transpose(1, 2))  # a copy where a sum's gradient is expanded
    grad_q = t.new((batch, length, heads, size), q.dtype)
    grad_k = t.new((batch, k.shape[2], k.shape[1], size), q.dtype)
    grad_v = t.new((batch, k.shape[2], k.shape[1], v.shape[-1]), q.dtype)
    grad_bias = None
    if bias is not None and args[10][3]:  # a bias that is learnt: T5's by distance
        columns = kernels.round_up(bias.shape[-1], 16)
        grad_bias = t.new((*bias.shape[:-1], columns), bias.dtype)[..., : bias.shape[-1]]
    each = _for_each_head(t, heads, grad_k, grad_v)
    half = q.dtype != torch.float32
    dropout = args[9] if len(args) > 9 else 0.0
    kernel = kernels.efficient_backward(
        t.card, head=max(size, v.shape[-1]), half=half, dropout=bool(dropout)
    )
    delta = _row_sums(t, whole.transpose(1, 2), out, in_kernel=kernel.computes_delta)
    workspace = t.sized(
        SizeRule(
            kernels.efficient_workspace,
            (("kernel", kernel), ("heads", heads), ("head", size)),
            (("batch", batch), ("length", length), ("keys", k.shape[2])),
        ),
    )
    del delta, workspace
    _add_up(t, each, grad_k.shape[2])
    del whole
    return grad_q.transpose(1, 2), grad_k.transpose(1, 2), grad_v.transpose(1, 2), grad_bias


def _for_each_head(t: OpTrace, heads: int, *grads: Tensor) -> list[Tensor]:
    """Make gradients of every head of the queries, where several share one of the keys."""
    if all(grad.shape[2] == heads for grad in grads):
        return []
    return [t.new((*g.shape[:2], heads, g.shape[3]), g.dtype) for g in grads]


def _add_up(t: OpTrace, grads: list[Tensor], heads: int) -> None:
    """Sum the gradients of heads that share one of the keys."""
    for grad in grads:
        reduction(t, grad.view(*grad.shape[:2], heads, -1, grad.shape[3]), [3])


def _row_sums(t: OpTrace, grad: Tensor, out: Tensor, *, in_kernel: bool) -> Tensor:
    """Give (grad * out).sum(-1) in fp32, made by the kernel or by operations before it."""
    batch, heads, length, size = grad.shape
    if in_kernel:
        return t.new((batch, heads, length), torch.float32)
    copies = []
    if grad.dtype != torch.float32:
        copies = [t.like(grad, torch.float32), t.like(out, torch.float32)]
    product = t.new((batch, length, heads, size), torch.float32)
    copies.clear()
    total = t.new((batch, length, heads), torch.float32)
    delta = t.new((batch, heads, length), torch.float32)
    del total, product
    return delta


@rule(aten._scaled_dot_product_flash_attention.default)
def _flash(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    q, k = args[:2]
    batch, heads, length, size = q.shape
    dropout = args[3] if len(args) > 3 else 0.0
    out = t.like(q.transpose(1, 2))
    lse = t.new((batch, heads, length), torch.float32)
    parts = SizeRule(
        kernels.flash_parts,
        (("chip", t.card), ("heads", heads), ("head", size)),
        (("batch", batch), ("length", length), ("keys", k.shape[2])),
    )
    with contextlib.nullcontext() if dropout else t.recorder.held_slot(parts):
        state, unused = t.new((2,), torch.int64), t.new((), torch.int64)
        if dropout:
            state = t.new((2,), torch.int64)  # a new one, then the first is dropped
    return out.transpose(1, 2), lse, None, None, length, k.shape[2], state, unused, None


@rule(aten._scaled_dot_product_flash_attention_backward.default)
def _flash_backward(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    q, k, v = args[1:4]
    batch, heads, length, size = q.shape
    rounded = kernels.round_up(length, 128)
    whole = [t.contiguous(x.transpose(1, 2)) for x in (args[0], args[4])]
    grad_q, grad_k, grad_v = (t.like(x.transpose(1, 2)) for x in (q, k, v))
    softmax_d = t.new((batch, heads, rounded), torch.float32)
    width = kernels.flash_width(size)
    accumulator = t.new((batch, rounded, heads, width), torch.float32)
    t.recorder.explain(softmax_d, _padded(rows=batch * heads, length=length, multiple=128))
    t.recorder.explain(
        accumulator, _padded(rows=batch * heads, length=length, multiple=128, width=width)
    )
    each = _for_each_head(t, heads, grad_k, grad_v)
    _add_up(t, each, grad_k.shape[2])
    del each, accumulator, softmax_d, whole
    return grad_q.transpose(1, 2), grad_k.transpose(1, 2), grad_v.transpose(1, 2)
