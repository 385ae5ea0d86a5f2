"""Where the words stand on a page, for models that ask: text without a page has no boxes."""

from torch import Tensor, nn

# LayoutLM and LiLT take zeros of their own accord.
_ASK = ("bros",)


def empty_boxes(model: nn.Module, input_ids: Tensor) -> dict[str, Tensor]:
    """Return the boxes that a model of transformers cannot do without, all zero; mostly none.

    BROS looks at the distances of boxes alone. Equal boxes add the same to all scores of a token,
    and softmax does not see that: such a model reads the text as if it had no layout.

    Args:
        model: a token classifier or an encoder.
        input_ids: (B, T) int64, where the model is.

    Returns:
        `bbox`, (B, T, 4) of the weights' dtype, or nothing.
    """
    if getattr(model.config, "model_type", None) not in _ASK:
        return {}
    dtype = next(model.parameters()).dtype
    return {"bbox": input_ids.new_zeros((*input_ids.shape, 4), dtype=dtype)}
