"""Windows of several lengths as one sequence on a processor: no work is done on padding.

Everything that looks at one token at a time (linear layers, norms, the head) sees the tokens of all
windows one after the other, and no padding. Attention takes them in blocks of windows of nearly one
length, so windows never see each other; only attention pads, and only inside a block.

transformers hands the blocks through to the attention function as a keyword argument; without
blocks that function is its `sdpa`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertfit.data.batches import cheapest_ranges
from bertfit.models.attention import use_attention
from bertfit.models.model_config import first_position
from bertfit.types import Batch

ATTENTION = "bertfit"

# What a block costs beside its scores, in scores of one head: a dozen calls more, in every layer.
# E5-small, bf16, steps of 16 CLUENER texts: 0.450, 0.446, 0.436 s with 2,500, 5,000 and 10,000.
BLOCK_COST_SCORES = 10_000

# The products of a prediction have few shapes: each is of at most so many tokens, and lengths are
# multiples of 8, above 64 four an octave.
GROUP_TOKENS = 512

# Encoders whose attention goes through transformers' interface, reads nothing but query, key and
# value, and takes the positions from `position_ids`. tests/engine/test_packing.py holds each to its
# padded logits. Not among them: relative positions (DeBERTa, MPNet), local layers (ModernBERT).
FAMILIES = frozenset(
    {"bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie", "roberta-prelayernorm"}
)


def can_pack(model: nn.Module) -> bool:
    """Say whether the model computes packed batches as it computes padded ones."""
    config: Any = model.config
    return (
        config.model_type in FAMILIES
        and config._attn_implementation in ("sdpa", ATTENTION)
        and getattr(config, "position_embedding_type", None) in (None, "absolute")
        and not getattr(config, "is_decoder", False)
    )


def prepare_packing(model: nn.Module) -> None:
    """Let the model take packed batches; it goes on taking padded ones."""
    use_attention(model, ATTENTION, _attend)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBlock:
    """Windows that attend together: n windows of up to t tokens, for h heads.

    Attributes:
        shape: n and t.
        tokens: where its tokens lie among all, from and up to.
        padded: (n * h * t) int64. The row of its tokens' (tokens * h, size) that goes to each place
            of the padded (n, h, t, size). For padding one behind the last if `has_zeros`, else
            the last of the window.
        real: (tokens * h) int64, the place of each row.
        bias: (n, 1, 1, t) float32, added to the scores: minus infinity on padding. None without.
        groups: how many windows go into each product; together n.
        has_zeros: padding is zeros, as gradients need it; else it repeats the last token of the
            window, which spares a copy of all rows: nothing looks at it.
    """

    shape: tuple[int, int]
    tokens: slice
    padded: Tensor
    real: Tensor
    bias: Tensor | None
    groups: tuple[int, ...]
    has_zeros: bool


def attention_blocks(
    lengths: Sequence[int], heads: int, *, few_shapes: bool = False
) -> tuple[AttentionBlock, ...]:
    """Cut windows of falling lengths into the blocks that are the least work.

    Args:
        lengths: tokens of the windows.
        heads: of the model.
        few_shapes: for prediction, whose batches come without end: products of few shapes.
    """
    blocks, start = [], 0
    widths = [_few_lengths(length) if few_shapes else length for length in lengths]
    for first, last in cheapest_ranges([width**2 for width in widths], BLOCK_COST_SCORES):
        groups = _few_groups(last - first, widths[first]) if few_shapes else (last - first,)
        here = np.asarray(lengths[first:last])
        blocks.append(_block(here, widths[first], heads, start, groups, has_zeros=not few_shapes))
        start = blocks[-1].tokens.stop
    return tuple(blocks)


def _few_lengths(length: int) -> int:
    """Round a length up to one of few; a block of it is padded to that."""
    multiple = max(8, 1 << (length - 1).bit_length() >> 3)
    return -(-length // multiple) * multiple


def _few_groups(count: int, longest: int) -> tuple[int, ...]:
    """Cut windows into groups of one size, and what is left into powers of two."""
    most = max(1, GROUP_TOKENS // longest)
    full, rest = divmod(count, most)
    powers = (1 << bit for bit in reversed(range(rest.bit_length())))
    return (most,) * full + tuple(power for power in powers if rest & power)


def _block(
    lengths: NDArray[np.int64],
    longest: int,
    heads: int,
    start: int,
    groups: tuple[int, ...],
    *,
    has_zeros: bool,
) -> AttentionBlock:
    total = int(lengths.sum())
    starts = (np.cumsum(lengths) - lengths)[:, None, None]
    lengths = lengths[:, None, None]
    token, head = np.arange(longest), np.arange(heads)[:, None]
    is_real = np.broadcast_to(token < lengths, (len(lengths), heads, longest)).reshape(-1)
    place = starts + np.minimum(token, lengths - 1)
    padded = (place * heads + head).reshape(-1)  # (n, h, t)
    real = np.empty(total * heads, dtype=np.int64)
    real[padded[is_real]] = is_real.nonzero()[0]
    if has_zeros:
        padded[~is_real] = total * heads
    bias = None
    if not is_real.all():
        bias = torch.from_numpy(np.where(token < lengths, 0, -np.inf)[:, None]).float()
    return AttentionBlock(
        shape=(len(lengths), longest),
        tokens=slice(start, start + total),
        padded=torch.from_numpy(padded),
        real=torch.from_numpy(real),
        bias=bias,
        groups=groups,
        has_zeros=has_zeros,
    )


def packed_inputs(model: nn.Module, batch: Batch) -> dict[str, Any]:
    """Return what a packed batch adds to the arguments of the model."""
    config: Any = model.config
    first = first_position(config)
    positions = np.full(batch.input_ids.shape, first)
    start = 0
    for length in batch.packed_lengths:
        positions[0, start : start + length] += np.arange(length)
        start += length
    return {
        "position_ids": torch.from_numpy(positions),
        "packed_blocks": attention_blocks(
            batch.packed_lengths, config.num_attention_heads, few_shapes=batch.labels is None
        ),
    }


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    dropout: float,
    blocks: tuple[AttentionBlock, ...],
) -> Tensor:
    """Attend inside every window: (1, heads, S, size) three times to (1, S, heads, size)."""
    if query.requires_grad:
        done: Tensor = _Attention.apply(query, key, value, scale, dropout, blocks)
        return done
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    out = query.new_empty(query.shape)
    out[blocks[-1].tokens.stop :] = 0
    for block in blocks:
        q, k, v = (_padded(x, block) for x in (query, key, value))
        if _is_faster_by_products(q):
            scores = _products(q, k.transpose(1, 2), block, scale)
            if q.shape[1] <= 96:  # beyond, twice the bytes cost more than bfloat16's slower softmax
                scores = scores.float()
            weights = _biased(scores, block).softmax(-1).to(v.dtype)
            _put(out, _products(weights, v, block), block)
        else:
            shape = (block.shape[0], -1, *q.shape[1:])
            bias = None if block.bias is None else block.bias.to(q.dtype)
            q, k, v = (x.view(shape) for x in (q, k, v))
            _put(out, F.scaled_dot_product_attention(q, k, v, bias, scale=scale), block)
    return out.unsqueeze(0)


def _is_faster_by_products(query: Tensor) -> bool:
    """Say whether two batched products and a softmax take less time than SDPA without gradients.

    2,048 tokens, 12 heads of 32, two cores with AVX512-BF16: 1.8 and 4.0 ms for windows of 40
    tokens, 5.0 and 7.2 for 128, 10.5 and 7.6 for 256; in float32 they never gain much.
    """
    return query.dtype == torch.bfloat16 and query.shape[1] <= 192


def _products(left: Tensor, right: Tensor, block: AttentionBlock, scale: float = 1.0) -> Tensor:
    """Return scale * left . right of every head: (n * h, i, j), (n * h, j, k) -> (n * h, i, k)."""
    heads = left.shape[0] // block.shape[0]
    out = left.new_empty(left.shape[0], left.shape[1], right.shape[2])
    first = 0
    for group in block.groups:
        part = slice(first, first + group * heads)
        out[part].baddbmm_(left[part], right[part], beta=0, alpha=scale)
        first = part.stop
    return out


def _biased(scores: Tensor, block: AttentionBlock) -> Tensor:
    """Add the bias of a block to its scores (n * h, t, t), in place."""
    if block.bias is not None:
        windows, tokens = block.shape
        scores.view(windows, -1, tokens, tokens).add_(block.bias)
    return scores


class _Attention(torch.autograd.Function):
    """Attention of every block, with dropout on its weights.

    SDPA with dropout on a processor draws every element by itself, which takes longer than all
    else in it; and one node for all blocks spares autograd hundreds of small ones.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        dropout: float,
        blocks: tuple[AttentionBlock, ...],
    ) -> Tensor:
        assert all(block.has_zeros for block in blocks), "gradients of a batch without labels"
        query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
        out = query.new_zeros(query.shape)
        saved: list[Tensor] = []
        for block in blocks:
            q, k, v = (_padded(x, block) for x in (query, key, value))
            scores = torch.bmm(q, k.transpose(1, 2))
            if scores.element_size() < 4:  # the softmax wants the digits
                scores = scores.float()
            weights = _biased(scores.mul_(scale), block).softmax(-1).to(q.dtype)
            kept = keep_mask(weights, dropout) if dropout else torch.ones_like(weights)
            dropped = weights * kept
            _put(out, torch.bmm(dropped, v), block)
            saved += [q, k, v, weights, kept, dropped]
        ctx.save_for_backward(*saved)
        ctx.blocks, ctx.scale = blocks, scale
        return out.unsqueeze(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0][0]
        of_query, of_key, of_value = (gradient.new_zeros(gradient.shape) for __ in range(3))
        for number, block in enumerate(ctx.blocks):
            q, k, v, weights, kept, dropped = ctx.saved_tensors[6 * number : 6 * number + 6]
            g = _padded(gradient, block)
            _put(of_value, torch.bmm(dropped.transpose(1, 2), g), block)
            of_weights = torch.bmm(g, v.transpose(1, 2)).mul_(kept)
            of_scores = _softmax_backward(of_weights, weights, -1, weights.dtype).mul_(ctx.scale)
            _put(of_query, torch.bmm(of_scores, k), block)
            _put(of_key, torch.bmm(of_scores.transpose(1, 2), q), block)
        return (
            *(x.transpose(0, 1).unsqueeze(0) for x in (of_query, of_key, of_value)),
            None,
            None,
            None,
        )


_softmax_backward = torch.ops.aten._softmax_backward_data


def _padded(tokens: Tensor, block: AttentionBlock) -> Tensor:
    """Take a block out of (S, h, size): (n * h, t, size); padding as the block says."""
    __, heads, size = tokens.shape
    rows = tokens[block.tokens].reshape(-1, size)
    if block.has_zeros and block.bias is not None:
        rows = torch.cat([rows, rows.new_zeros(1, size)])
    windows, longest = block.shape
    return rows.index_select(0, block.padded).view(windows * heads, longest, size)


def _put(place: Tensor, rows: Tensor, block: AttentionBlock) -> None:
    """Put the real tokens of a block's (n * h, t, size) into (S, h, size)."""
    size = place.shape[-1]
    target = place[block.tokens].view(-1, size)
    torch.index_select(rows.reshape(-1, size), 0, block.real, out=target)


def keep_mask(like: Tensor, dropout: float) -> Tensor:
    """Return zeros with a chance of `dropout`, else 1 / (1 - dropout): shape and dtype of `like`.

    Sixteen bits of torch's generator decide on each element, so the chance is off by at most
    1 / 131,072. Four elements a draw: seven times as fast as `bernoulli_`, which draws for each.
    """
    count = like.numel()
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[:count].view(like.shape)
    # Straight into the dtype that is multiplied with: a bool in between takes three times as long.
    kept = torch.ge(bits, round(dropout * 65536) - 32768, out=torch.empty_like(like))
    return kept.mul_(1 / (1 - dropout))


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, dropout: float) -> Tensor:
        kept = keep_mask(states, dropout)
        ctx.save_for_backward(kept)
        return states * kept

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        return gradients[0] * kept, None


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` with the draws of `keep_mask`."""

    def forward(self, input: Tensor) -> Tensor:
        """(...) to (...), as `torch.nn.Dropout`."""
        if not self.training or not 0 < self.p < 1:
            return super().forward(input)
        done: Tensor = _Dropped.apply(input, self.p)
        return done


def draw_fast(model: nn.Module) -> None:
    """Put `Dropout` in the place of every `torch.nn.Dropout` of a model on a processor."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = Dropout
