"""An attention function of our own in a model of transformers."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Attend = Callable[[Tensor, Tensor, Tensor, float, float, Any], Tensor]
"""query, key, value, each (1, heads, S, size), scale, dropout and blocks to (1, S, heads, size)."""


def use_attention(model: nn.Module, name: str, attend: Attend) -> None:
    """Let `attend` compute attention wherever the model is called with `packed_blocks`.

    Without them it is the `sdpa` of transformers, mask and all.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        dropout: float = 0.0,
        scaling: float | None = None,
        packed_blocks: object = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if packed_blocks is None:
            done: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout, scaling, **more
            )
            return done
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return attend(query, key, value, scale, dropout, packed_blocks), None

    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, sdpa_mask)
    model.set_attn_implementation(name)  # type: ignore[operator]
