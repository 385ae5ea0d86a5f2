"""Which library computes a tagger: as asked, or the fastest on the texts at hand."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, get_args

import torch
from torch import nn

from bertfit.config import Precision
from bertfit.engine.backends import Forward
from bertfit.engine.onnx_backend import has_onnx, onnx_tagger
from bertfit.engine.openvino_backend import has_openvino, openvino_tagger
from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.types import Batch

Backend = Literal["auto", "torch", "openvino", "onnx"]
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


def other_backends(
    backend: Backend, device: torch.device, asked: Precision | None, chosen: Precision
) -> Mapping[Backend, Callable[[nn.Module], Forward]]:
    """Return what may compute in torch's place: from a model in float32 on the CPU.

    Args:
        backend: as asked; `auto` gives all that are installed.
        device: where the work is to run.
        asked: the precision that the user wants, if one.
        chosen: the precision that is taken then. ONNX Runtime has no bf16 on processors; fp32 in
            its place is only better.

    Raises:
        ConfigError: one that was asked for runs elsewhere, or has no such precision.
    """
    if backend == "torch":
        return {}
    if device.type != "cpu":
        if backend == "auto":
            return {}
        raise ConfigError(
            _(
                "--backend {backend}: runs on the processor only. Add --device cpu, or leave it "
                "out."
            ).format(backend=backend)
        )
    if backend == "onnx" and asked not in (None, "fp32"):
        raise ConfigError(
            _(
                "--backend onnx: ONNX Runtime computes in fp32 on a processor. Leave --precision "
                "{precision} out, or take --backend torch or openvino."
            ).format(precision=asked)
        )
    makers: dict[Backend, Callable[[nn.Module], Forward]] = {
        "openvino": partial(openvino_tagger, precision=chosen),
        "onnx": onnx_tagger,
    }
    if backend != "auto":
        return {backend: makers[backend]}
    installed = {"openvino": has_openvino(), "onnx": has_onnx() and asked in (None, "fp32")}
    return {name: make for name, make in makers.items() if installed[name]}


def tokens_per_second(forward: Forward, batches: Sequence[Batch]) -> float:
    """Measure a backend for a second on batches."""
    with torch.inference_mode():
        forward(batches[0])
        tokens, begin = 0, time.perf_counter()
        while True:
            for batch in batches:
                forward(batch)
                tokens += batch.num_tokens
                seconds = time.perf_counter() - begin
                if seconds > _SECONDS:
                    return tokens / seconds
