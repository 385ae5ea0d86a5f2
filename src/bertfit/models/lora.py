"""The one door to peft: low-rank adapters beside the encoder's linear layers, merged when saved."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from bertfit.errors import ConfigError, ModelError
from bertfit.language import _

DEFAULT_RANK = 8


def add_lora(model: nn.Module, rank: int) -> None:
    """Freeze a token classifier but for its head, and give its encoder's linear layers adapters.

    A weight W becomes W + 2 BA; A has `rank` rows and B as many columns, and they alone are
    trained. B begins at zero, so the model begins as it was.

    Source: Hu et al. 2021, https://arxiv.org/abs/2106.09685. All linear layers, not only query and
        value, as QLoRA found necessary, https://arxiv.org/abs/2305.14314, section 4.

    Args:
        model: from transformers; changed in place, and still of its class.
        rank: of the adapters.

    Raises:
        ConfigError: peft is not installed.
        ModelError: peft cannot adapt this model.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ConfigError(_("--allow lora: needs peft. Run: pip install 'bertfit[lora]'")) from None
    prefix = str(getattr(model, "base_model_prefix", "")) + "."
    names = [
        name
        for name, module in model.named_modules()
        if name.startswith(prefix) and isinstance(module, nn.Linear)
    ]
    head = [p for name, p in model.named_parameters() if not name.startswith(prefix)]
    where = next(model.parameters()).device
    try:
        with torch.device(where):  # peft makes adapters on the CPU, even of a model without bytes
            inject_adapter_in_model(
                LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=names),
                model,
            )
    except ValueError as error:
        raise ModelError(
            _("--allow lora: peft cannot adapt this model ({reason}).").format(
                reason=" ".join(str(error).split())
            )
        ) from None
    for parameter in head:
        parameter.requires_grad_(True)


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """Give a model plain linear layers in place of adapted ones, for saving.

    The trained layers are not touched: what is merged is a copy, one layer at a time in the end,
    since the copies share no memory with the card. A model without adapters is left as it is.
    """
    adapted = [
        (parent, name, module)
        for parent in model.modules()
        for name, module in parent.named_children()
        if hasattr(module, "get_delta_weight") and hasattr(module, "base_layer")
    ]
    try:
        for parent, name, module in adapted:
            setattr(parent, name, _plain(module))
        yield
    finally:
        for parent, name, module in adapted:
            setattr(parent, name, module)


def _plain(module: Any) -> nn.Linear:
    """Return the linear layer, on the host, that computes what an adapted one does."""
    base = module.base_layer
    plain = nn.Linear(base.in_features, base.out_features, base.bias is not None, device="meta")
    with torch.no_grad():
        weight = (base.weight + module.get_delta_weight("default")).cpu()
        plain.weight = nn.Parameter(weight, requires_grad=False)
        if base.bias is not None:
            plain.bias = nn.Parameter(base.bias.detach().cpu(), requires_grad=False)
    return plain
