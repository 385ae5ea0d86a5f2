"""The seam between a model and what computes it: a batch goes in, a tensor comes out.

Everything behind the seam (decoding, pooling, recovery from out-of-memory, order of the output) is
the same whatever computes.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertfit.config import Precision
from bertfit.engine.cudnn import without_cudnn
from bertfit.engine.precision import autocast, dtypes_named
from bertfit.engine.step import forward, inputs
from bertfit.errors import ModelError
from bertfit.language import _
from bertfit.models.boxes import empty_boxes
from bertfit.types import Batch

# Tag logits (B, T, K) of a tagger, or the states (B, T, H) of an encoder.
Forward = Callable[[Batch], Tensor]


def torch_tagger(model: nn.Module, device: torch.device, precision: Precision) -> Forward:
    """Return what computes tag logits with torch: (B, T, K)."""

    def run(batch: Batch) -> Tensor:
        with autocast(precision, device):
            return forward(model, batch, device)

    return run


class PlainTagger(nn.Module):
    """A tagger with plain tensors in and out, as runtimes that take a graph need it."""

    EXAMPLE: ClassVar = {
        "input_ids": torch.ones((2, 16), dtype=torch.int64),
        "attention_mask": torch.ones((2, 16), dtype=torch.int64),
    }

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, T) int64 twice -> (B, T, K)."""
        logits: Tensor = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            **empty_boxes(self.model, input_ids),
        ).logits
        return logits


def try_out(
    backend: str,
    compute: Callable[[dict[str, NDArray[np.int64]]], NDArray[Any]],
    faults: tuple[type[Exception], ...] = (),
) -> None:
    """Compute a graph once on a batch of another shape than it was traced with.

    A loop over pieces of a text, as Longformer's, is traced for one length only; some runtimes
    then fail, and some give as many tags as the example had.

    Args:
        backend: its name.
        compute: runs the graph on named inputs and returns the logits.
        faults: what it raises where the graph does not fit.

    Raises:
        ModelError: the graph is of one shape.
    """
    ones = np.ones([2 * n + 1 for n in PlainTagger.EXAMPLE["input_ids"].shape], dtype=np.int64)
    try:
        shape = compute(dict.fromkeys(PlainTagger.EXAMPLE, ones)).shape[:2]
    except faults as error:
        raise no_graph(backend, error) from error
    if shape != ones.shape:
        raise no_graph(backend, ValueError(f"{ones.shape} -> {shape}"))


def no_graph(backend: str, error: Exception) -> ModelError:
    """Return the error of a model that a runtime cannot take as a graph."""
    reason = " ".join(str(error).split())
    return ModelError(
        _(
            "--backend {backend}: this model has no graph for batches of any size ({reason}). "
            "Leave the flag out, or take --backend torch."
        ).format(backend=backend, reason=reason if len(reason) <= 200 else reason[:200] + "...")
    )


def torch_encoder(
    model: nn.Module, device: torch.device, precision: Precision, layers: tuple[int, ...]
) -> Forward:
    """Return what computes the states of an encoder with torch.

    Args:
        model: an encoder of transformers, on the device; its last layer is the last one wanted.
        device: where it is.
        precision: fp32, or what to autocast to.
        layers: whose outputs are summed: 0 are the embeddings; empty is the model's own output.

    Returns:
        A function from a batch to its states (B, T, H), in float32.
    """

    @dtypes_named()
    @without_cudnn()
    def run(batch: Batch) -> Tensor:
        with autocast(precision, device):
            output = model(**inputs(model, batch, device), output_hidden_states=bool(layers))
        if not layers:
            states: Tensor = output.last_hidden_state
            return states.float()
        total: Tensor = output.hidden_states[layers[0]].float()
        for layer in layers[1:]:
            total = total + output.hidden_states[layer].float()
        return total

    return run
