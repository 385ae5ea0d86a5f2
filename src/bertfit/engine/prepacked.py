"""The one door to linear layers in the order in which oneDNN multiplies them, for processors."""

import torch
from torch import Tensor, nn

from bertfit.config import Precision
from bertfit.engine.precision import cpu_has_bf16


class PrepackedLinear(nn.Module):
    """A linear layer in bfloat16 whose weight lies as oneDNN multiplies it.

    oneDNN reorders the weight of an ordinary layer in every call. E5-small on two cores with
    AVX512-BF16: 390 to 430 GFLOP/s in its products.
    """

    _ROWS = 2048  # of the products that the order is chosen for; any number can be multiplied

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = None if layer.bias is None else layer.bias.detach().bfloat16()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(
            layer.weight.detach().bfloat16(), self._ROWS
        )

    @property
    def weight(self) -> Tensor:
        """The weight (out, in) in its usual order, for models that look at it."""
        weight: Tensor = self._packed.to_dense()
        return weight

    def forward(self, states: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        done: Tensor = torch.ops.mkldnn._linear_pointwise(
            states, self._packed, self.bias, "none", [], ""
        )
        return done


def can_prepack(precision: Precision, device: torch.device) -> bool:
    """Say whether `store_prepacked` suits a device and a precision."""
    return (
        device.type == "cpu"
        and precision == "bf16"
        and cpu_has_bf16()
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


def store_prepacked(model: nn.Module) -> None:
    """Keep a whole model in bfloat16, its linear layers as oneDNN multiplies them.

    Unlike under autocast the states between the layers are bfloat16 too. Not for a model that is
    trained on.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PrepackedLinear(child))
    # Parameters only: tables of rotary positions are buffers, and need their digits.
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
