"""After a loss that is not finite: which record and which layer made it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from bertfit.config import Precision
from bertfit.data.batches import pad
from bertfit.engine.precision import autocast
from bertfit.engine.step import forward, token_loss
from bertfit.types import Window


def find_nonfinite(
    model: nn.Module,
    windows: Sequence[Window],
    pad_id: int,
    *,
    device: torch.device,
    precision: Precision,
) -> tuple[int, str] | None:
    """Run windows one by one and return the first that is not finite.

    Returns:
        The position in `windows` and the name of the first module whose output is not finite
        (`loss` where all outputs were finite); None where every window is well.
    """
    names: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(module: nn.Module, args: object, output: object) -> None:
            tensors = output if isinstance(output, tuple | list) else (output,)
            for tensor in tensors:
                if isinstance(tensor, Tensor) and not bool(torch.isfinite(tensor).all()):
                    names.append(name)

        return hook

    handles = [
        module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name
    ]
    try:
        for position, window in enumerate(windows):
            batch = pad([window], pad_id)
            if batch.labels is None:
                continue
            names.clear()
            with torch.no_grad(), autocast(precision, device):
                logits = forward(model, batch, device)
                loss = token_loss(logits, torch.from_numpy(batch.labels).to(device))
            if names or not bool(torch.isfinite(loss)):
                return position, names[0] if names else "loss"
    finally:
        for handle in handles:
            handle.remove()
    return None
