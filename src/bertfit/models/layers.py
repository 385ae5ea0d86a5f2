"""An encoder without its upper layers: a lower layer's states cost no more than the way there."""

from torch import nn

from bertfit.errors import ModelError
from bertfit.language import _


def num_layers(encoder: nn.Module) -> int:
    """Return how many layers an encoder of transformers has."""
    return int(encoder.config.num_hidden_layers)  # type: ignore[union-attr,arg-type]


def keep_layers(encoder: nn.Module, number: int) -> None:
    """Drop all layers above the first `number`, and the memory of their weights.

    Raises:
        ModelError: the model's layers are not a list that can be shortened.
    """
    total = num_layers(encoder)
    if number >= total:
        return
    found = False
    for module in encoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == total:
            del module[number:]
            found = True
    # ALBERT runs one layer many times and asks the configuration how often.
    if not found and "albert" not in str(encoder.config.model_type):  # type: ignore[union-attr]
        raise ModelError(
            _("--layers {number}: the layers of this model cannot be told apart.").format(
                number=number
            )
        )
    encoder.config.num_hidden_layers = number  # type: ignore[union-attr]
    kinds = getattr(encoder.config, "layer_types", None)  # ModernBERT: one for each layer
    if kinds is not None:
        encoder.config.layer_types = kinds[:number]  # type: ignore[union-attr]
