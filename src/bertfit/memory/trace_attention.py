"""Scaled dot product attention as a CUDA card would do it: which kernel, and what it is given.

Source: aten/src/ATen/native/transformers/attention.cpp and cuda/sdp_utils.cpp of PyTorch 2.14.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bertfit.memory.trace_autocast import active, cast_all
from bertfit.memory.trace_functions import Call, CudaFace, handles
from bertfit.memory.trace_ops import Arguments, Keywords

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """A call of scaled dot product attention on a card.

    Attributes:
        query: (B, A, T, size).
        key: (B, A, S, size), or fewer heads where they are grouped.
        value: (B, A, S, value size), likewise.
        mask: as it is given.
        capability: of the card.
        dropout: of the weights.
        causal: no token sees the ones behind it.
        grouped: several heads of queries share one of keys.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    capability: tuple[int, int]
    dropout: float = 0.0
    causal: bool = False
    grouped: bool = False

    @property
    def heads(self) -> tuple[int, int]:
        """The sizes of a head of the keys and of one of the values."""
        return self.query.shape[-1], self.value.shape[-1]

    @property
    def dense(self) -> bool:
        """Whether the numbers of a head lie side by side."""
        return all(x.stride(-1) == 1 for x in (self.query, self.key, self.value))

    @property
    def trains(self) -> bool:
        """Whether a backward will follow."""
        tensors = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)

    @property
    def fits_fused(self) -> bool:
        """Whether a fused kernel takes such shapes at all."""
        query, key, value = self.query, self.key, self.value
        if not query.ndim == key.ndim == value.ndim == 4:
            return False
        heads, shared = query.shape[1], key.shape[1]
        # One head of keys serves all queries without being asked to.
        same_heads = shared == value.shape[1] and (
            shared in (1, heads) or (self.grouped and heads % shared == 0)
        )
        same_batch = query.shape[0] == key.shape[0] == value.shape[0]
        return same_heads and same_batch and query.shape[2] > 0 and key.shape[2] > 0


def choose_kernel(call: AttentionCall) -> str:
    """Return `flash`, `efficient` or `math`: what PyTorch 2.14 takes where cuDNN is not asked."""
    half = call.query.dtype in _HALF
    modern = call.capability >= (8, 0)
    head, value_head = call.heads
    if call.query.dtype == torch.bfloat16 and not modern:
        return "math"
    if not call.fits_fused:
        return "math"
    if (
        half
        and modern
        and call.mask is None
        and head == value_head <= 256
        and (call.dense or head == 1)
        and not (call.causal and call.query.shape[-2] != call.key.shape[-2])
        and not (call.trains and _too_wide(head, call.dropout, call.capability))
    ):
        return "flash"
    tensor_cores = modern or (half and call.capability >= (7, 0))
    alignment = 4 if modern else 1
    if tensor_cores:
        alignment = max(alignment, 128 // (16 if half else 32))
    if head % alignment or value_head % alignment or not call.dense:
        return "math"
    return "efficient"


def prefers_cudnn(call: AttentionCall) -> bool:
    """Say whether cuDNN comes first: on compute capability 9.x and 10.x, mostly without dropout."""
    if (
        call.capability[0] not in (9, 10)
        or call.query.dtype not in _HALF
        or not call.fits_fused
        or call.key.shape[2] == 1
        or call.dropout * 16 != int(call.dropout * 16)
        or not call.dense
        or (call.mask is not None and call.mask.requires_grad)
    ):
        return False
    head, value_head = call.heads
    most = max(head, value_head)
    if head % 8 or value_head % 8 or most > 256:
        return False
    return most <= 128 or not call.trains or head == value_head == 256


def _too_wide(head: int, dropout: float, capability: tuple[int, int]) -> bool:
    """Say whether flash attention's backward wants more shared memory than a card has."""
    small = (8, 6) <= capability <= (8, 9) or (12, 0) <= capability <= (12, 1)
    return small and head > 192 and (head <= 224 or dropout > 0)


def _as_bias(mask: Tensor | None, dtype: torch.dtype, face: CudaFace) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    zero = torch.zeros((), dtype=dtype, device="meta")
    low = torch.zeros((), dtype=dtype, device="meta")
    return torch.where(mask, zero, low)


def _aligned(mask: Tensor) -> Tensor:
    """Pad the rows of a bias to 8 elements, as `preprocess_mask` does."""
    if all(mask.stride(d) % 8 == 0 for d in range(mask.ndim - 1)) and mask.stride(-1) == 1:
        return mask
    length = mask.shape[-1]
    return F.pad(mask, (0, -length % 8))[..., :length]


def _math(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Attention out of single operations, `_scaled_dot_product_attention_math`; fp32 inside."""
    dtype = query.dtype
    # As in C++, what has a name lives until the end: the fp32 copies too.
    wide = query, key, value
    if dtype in _HALF:
        wide = query.float(), key.float(), value.float()
    if causal:
        length = query.shape[-2], key.shape[-2]
        bias = (
            wide[0]
            .new_zeros(length)
            .masked_fill_(
                wide[0].new_ones(length, dtype=torch.bool).tril().logical_not(), float("-inf")
            )
        )
    factor = (query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    scaled = wide[0] * factor
    weights = torch.matmul(scaled, wide[1].transpose(-2, -1) * factor)
    if bias is not None:
        weights.add_(bias)
    weights = torch._safe_softmax(weights, -1)
    if dropout:
        weights = torch.native_dropout(weights, dropout, True)[0]
    # The weights are a second result, which nobody reads; gcc evaluates it first.
    unread = weights.to(dtype)
    out = torch.matmul(weights, wide[2]).to(dtype)
    del unread
    return out


@handles(F.scaled_dot_product_attention)
def _attention(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | kwargs
    q, k, v, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    dropout, causal = given.get("dropout_p", 0.0), given.get("is_causal", False)
    scale = given.get("scale")
    if active():
        q, k, v, mask = cast_all(face, (q, k, v, mask), torch.get_autocast_dtype("cuda"))
    call = AttentionCall(
        query=q,
        key=k,
        value=v,
        mask=mask,
        capability=face.ops.card.compute_capability,
        dropout=dropout,
        causal=causal,
        grouped=given.get("enable_gqa", False),
    )
    kernel = choose_kernel(call)
    # In somebody else's loop: its workspace is not known, and what comes second stands for it.
    allowed = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    is_cudnn = allowed and prefers_cudnn(call)
    face.recorder.attention_kernels.add("cudnn" if is_cudnn else kernel)
    if kernel == "flash":
        size = q.shape[-1]
        if size % 8:
            scale = size**-0.5 if scale is None else scale
            q, k, v = (F.pad(x, (0, -size % 8)) for x in (q, k, v))
        out = torch.ops.aten._scaled_dot_product_flash_attention(
            q, k, v, dropout, causal, False, scale=scale
        )[0]
        return out[..., :size] if size % 8 else out
    mask = _as_bias(mask, q.dtype, face)
    if kernel == "efficient":
        grad = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        if mask is not None:
            mask = _aligned(mask).expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, mask, grad, dropout, causal, scale=scale
        )[0]
    return _math(q, k, v, mask, dropout, causal, scale)
