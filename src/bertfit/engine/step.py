"""The only forward and backward of training, and the only forward of everything else (law 1).

What is traced to predict memory is `train_step` and `forward` of this file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bertfit.config import Precision
from bertfit.engine.cudnn import without_cudnn
from bertfit.engine.optim import Update
from bertfit.engine.packing import packed_inputs
from bertfit.engine.precision import autocast, dtypes_named
from bertfit.models.boxes import empty_boxes
from bertfit.types import IGNORED, Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step leaves on the device; reading it on the host is up to the caller (law 8).

    Attributes:
        loss: () float32, mean over the labelled tokens of the whole step.
        grad_norm: () float32, of the whole gradient, before clipping.
        refused: () float32, 1.0 where loss or gradient was not finite: the weights are unchanged.
    """

    loss: Tensor
    grad_norm: Tensor
    refused: Tensor


@dtypes_named()
@without_cudnn()
def forward(model: nn.Module, batch: Batch, device: torch.device) -> Tensor:
    """Return the tag logits of a batch: (B, T, K), in the dtype that the precision gives.

    A packed batch goes to a model on a processor that `engine.packing` has prepared.
    """
    logits: Tensor = model(**inputs(model, batch, device)).logits
    return logits


def inputs(model: nn.Module, batch: Batch, device: torch.device) -> dict[str, Any]:
    """Return what a model of transformers is called with for a batch."""
    input_ids = torch.from_numpy(batch.input_ids).to(device)
    if batch.packed_lengths:
        return {"input_ids": input_ids, **packed_inputs(model, batch)}
    mask = batch.attention_mask
    return {
        "input_ids": input_ids,
        "attention_mask": None if mask is None else torch.from_numpy(mask).to(device),
        **empty_boxes(model, input_ids),
    }


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum the cross-entropy of all labelled tokens.

    The caller divides, once per step, by the label count of the whole step (law 2).

    Args:
        logits: (B, T, K), any float dtype; the sum is taken in float32.
        labels: (B, T) int64 tag ids, `IGNORED` where a token is not scored.

    Returns:
        The loss sum, () float32.
    """
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def train_step(
    model: nn.Module,
    update: Update,
    batches: Sequence[Batch],
    *,
    device: torch.device,
    precision: Precision,
    loss_scale: float = 1.0,
    autocast_cache: bool = True,
) -> StepResult:
    """Run one optimizer step over the micro-batches that make it up.

    The loss is the sum of token losses over the labelled tokens of all micro-batches, so the cut
    changes rounding and dropout draws and nothing else. Micro-batches without a label cost nothing.

    Args:
        model: a token classifier in training mode, on `device`.
        update: the optimizer with its clipping; see `engine.optim.Update`.
        batches: micro-batches with labels.
        device: where the model is.
        precision: fp32, or what to autocast to.
        loss_scale: factor on the loss while its gradient is taken (fp16).
        autocast_cache: keep the casts of weights until the forward ends. Where activations are
            computed twice it only costs memory.
    """
    loss = gradients(
        model,
        update,
        batches,
        device=device,
        precision=precision,
        loss_scale=loss_scale,
        autocast_cache=autocast_cache,
    )
    grad_norm, refused = update.apply(loss, loss_scale)
    return StepResult(loss=loss, grad_norm=grad_norm, refused=refused)


@dtypes_named()
@without_cudnn()
def gradients(
    model: nn.Module,
    update: Update,
    batches: Sequence[Batch],
    *,
    device: torch.device,
    precision: Precision,
    loss_scale: float = 1.0,
    autocast_cache: bool = True,
) -> Tensor:
    """Run forward and backward of a step and leave its gradient, times `loss_scale`.

    Args: as `train_step`.

    Returns:
        The loss of the step, () float32.
    """
    num_labelled = sum(batch.num_labelled for batch in batches)
    loss = torch.zeros((), device=device)
    update.clear()
    for batch in batches:
        if batch.labels is None or not batch.num_labelled:
            continue
        with autocast(precision, device, autocast_cache):
            logits = forward(model, batch, device)
        labels = torch.from_numpy(batch.labels).to(device)
        part = token_loss(logits, labels) / num_labelled
        (part * loss_scale if loss_scale != 1.0 else part).backward()  # type: ignore[no-untyped-call]
        loss += part.detach()
        del logits, labels, part
    return loss
