"""Windows of several lengths as one sequence on a processor: no work is done on padding.

A packed batch holds blocks of windows of nearly one length, one after the other. Everything that
looks at one token at a time (linear layers, norms, the head) sees a single long sequence; attention
is computed block by block, so windows never see each other. Only attention pads, and only inside a
block.

transformers hands the blocks through to the attention function as a keyword argument; without
blocks that function is its `sdpa`.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertfit.models.attention import use_attention
from bertfit.models.encoder import first_position
from bertfit.types import Batch

ATTENTION = "bertfit"

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


def packed_inputs(model: nn.Module, batch: Batch) -> dict[str, Any]:
    """Return what a packed batch adds to the arguments of the model."""
    first = first_position(model.config)
    positions = [np.tile(np.arange(first, first + t), n) for n, t in batch.blocks]
    mask, blocks, start = batch.attention_mask, [], 0
    for windows, tokens in batch.blocks:
        end = start + windows * tokens
        real = None if mask is None else mask[0, start:end].reshape(windows, 1, 1, tokens)
        is_full = real is None or bool(real.all())
        blocks.append((windows, tokens, None if is_full else torch.from_numpy(real == 1)))
        start = end
    return {
        "position_ids": torch.from_numpy(np.concatenate(positions)[None]),
        "packed_blocks": tuple(blocks),
    }


_Block = tuple[int, int, Tensor | None]
"""n windows of t tokens, and (n, 1, 1, t) bool, true for real tokens; None where all are."""


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    dropout: float,
    blocks: tuple[_Block, ...],
) -> Tensor:
    """Attend inside every window: (1, heads, S, size) three times to (1, S, heads, size)."""
    if dropout:
        done: Tensor = _DroppedAttention.apply(query, key, value, scale, dropout, blocks)
        return done
    parts, start = [], 0
    for windows, tokens, mask in blocks:
        end = start + windows * tokens
        q, k, v = (
            x[0, :, start:end].view(-1, windows, tokens, x.shape[-1]).transpose(0, 1)
            for x in (query, key, value)
        )
        if _is_faster_by_products(q):
            done = _products(q, k, v, mask, scale)
        else:
            done = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        parts.append(done.transpose(1, 2).flatten(0, 1))
        start = end
    return torch.cat(parts).unsqueeze(0)


def _is_faster_by_products(query: Tensor) -> bool:
    """Say whether two batched products and a softmax take less time than SDPA without gradients.

    2,048 tokens, 12 heads of 32, two cores with AVX512-BF16: 1.8 and 4.0 ms for windows of 40
    tokens, 5.0 and 7.2 for 128, 10.5 and 7.6 for 256; in float32 they never gain much.
    """
    return query.dtype == torch.bfloat16 and query.shape[2] <= 192 and not torch.is_grad_enabled()


def _products(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Attend by matrix products: (n, heads, t, size) three times to the same."""
    windows, heads, tokens, __ = query.shape
    q, k, v = (x.flatten(0, 1) for x in (query, key, value))
    scores = torch.bmm(q, k.transpose(1, 2))
    if tokens <= 96:  # beyond, twice the bytes cost more than bfloat16's slower softmax
        scores = scores.float()
    scores.mul_(scale)
    if mask is not None:
        scores.view(windows, heads, tokens, tokens).masked_fill_(~mask, float("-inf"))
    return torch.bmm(scores.softmax(-1).to(v.dtype), v).view(query.shape)


class _DroppedAttention(torch.autograd.Function):
    """Attention of every block with dropout on its weights.

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
        blocks: tuple[_Block, ...],
    ) -> Tensor:
        heads, total, size = query.shape[1:]
        out = query.new_empty((total, heads, size))
        saved: list[Tensor] = []
        start = 0
        for windows, tokens, mask in blocks:
            end = start + windows * tokens
            q, k, v = (_rows(x[0].transpose(0, 1)[start:end], windows) for x in (query, key, value))
            scores = _wide(torch.bmm(q, k.transpose(1, 2))).mul_(scale)
            if mask is not None:
                scores.view(windows, heads, tokens, tokens).masked_fill_(~mask, float("-inf"))
            weights = scores.softmax(-1).to(q.dtype)
            kept = keep_mask(weights, dropout)
            _put(out[start:end], torch.bmm(weights * kept, v), windows)
            saved += [q, k, v, weights, kept]
            start = end
        ctx.save_for_backward(*saved)
        ctx.blocks, ctx.scale = blocks, scale
        return out.unsqueeze(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0][0]
        of_query, of_key, of_value = (torch.empty_like(gradient) for __ in range(3))
        saved, start = ctx.saved_tensors, 0
        for number, (windows, tokens, __) in enumerate(ctx.blocks):
            end = start + windows * tokens
            q, k, v, weights, kept = saved[5 * number : 5 * number + 5]
            g = _rows(gradient[start:end], windows)
            _put(of_value[start:end], torch.bmm((weights * kept).transpose(1, 2), g), windows)
            of_weights = _wide(torch.bmm(g, v.transpose(1, 2)).mul_(kept))
            wide = _wide(weights)
            # d softmax: w * (g - sum(w * g))
            of_scores = wide * (of_weights - (wide * of_weights).sum(-1, keepdim=True))
            of_scores = of_scores.mul_(ctx.scale).to(g.dtype)
            _put(of_query[start:end], torch.bmm(of_scores, k), windows)
            _put(of_key[start:end], torch.bmm(of_scores.transpose(1, 2), q), windows)
            start = end
        return (
            *(x.transpose(0, 1).unsqueeze(0) for x in (of_query, of_key, of_value)),
            None,
            None,
            None,
        )


def _wide(x: Tensor) -> Tensor:
    """Return 16-bit numbers as float32, others as they are: the softmax wants the digits."""
    return x.float() if x.element_size() < 4 else x


def _rows(tokens: Tensor, windows: int) -> Tensor:
    """(n * t, heads, size) to (n * heads, t, size)."""
    heads, size = tokens.shape[1:]
    return tokens.view(windows, -1, heads, size).transpose(1, 2).flatten(0, 1)


def _put(place: Tensor, rows: Tensor, windows: int) -> None:
    """Copy (n * heads, t, size) to (n * t, heads, size)."""
    heads, size = place.shape[1:]
    by_window = rows.view(windows, heads, -1, size).transpose(1, 2)
    place.view(windows, -1, heads, size).copy_(by_window)


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
