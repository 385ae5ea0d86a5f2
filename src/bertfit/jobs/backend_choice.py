"""Which library computes a tagger: as asked, or the fastest on the texts at hand."""

import time
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import nn

from bertfit.config import Precision
from bertfit.data.batches import pad
from bertfit.engine.backends import Forward
from bertfit.engine.openvino_backend import has_openvino, openvino_tagger
from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.types import Window

Backend = Literal["auto", "torch", "openvino"]
# Each is measured for so long; the first batch, which compiles, does not count.
_SECONDS = 1.0


def backend_of(name: str) -> Backend:
    """Return a backend by its name.

    Raises:
        ConfigError: there is none of that name.
    """
    known: tuple[Backend, ...] = get_args(Backend)
    for backend in known:
        if backend == name:
            return backend
    raise ConfigError(
        _("--backend {name}: choose one of {known}.").format(name=name, known=", ".join(known))
    )


def other_forward(
    model: nn.Module, device: torch.device, precision: Precision, backend: Backend
) -> Forward | None:
    """Return what may compute in torch's place; None where torch it is.

    Args:
        model: in float32, on the CPU.
        device: where the work is to run.
        precision: of its matrix products.
        backend: as asked.

    Raises:
        ConfigError: OpenVINO was asked for, and is not installed or the device is no CPU.
    """
    if backend == "torch" or (backend == "auto" and not (device.type == "cpu" and has_openvino())):
        return None
    if device.type != "cpu":
        raise ConfigError(
            _("--backend openvino: runs on the processor only. Add --device cpu, or leave it out.")
        )
    return openvino_tagger(model, precision)


def faster(
    first: Forward, second: Forward, batches: Sequence[Sequence[Window]], pad_id: int
) -> Forward:
    """Measure both on the same batches and return the faster one; the first, without batches."""
    if not batches:
        return first
    padded = [pad(batch, pad_id) for batch in batches]
    rates = []
    with torch.inference_mode():
        for forward in (first, second):
            forward(padded[0])
            tokens, begin = 0, time.perf_counter()
            for batch in padded:
                forward(batch)
                tokens += batch.num_tokens
                if time.perf_counter() - begin > _SECONDS:
                    break
            rates.append(tokens / (time.perf_counter() - begin))
    return second if rates[1] > rates[0] else first
