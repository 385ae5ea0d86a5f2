"""The one door to OpenVINO: a tagger computed by Intel's runtime in torch's place.

The graph is made in memory from the loaded model; nothing is written.
"""

import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from bertfit.config import Precision
from bertfit.engine.backends import Forward, PlainTagger, no_graph, try_out
from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.types import Batch

if TYPE_CHECKING:
    from openvino import InferRequest


def has_openvino() -> bool:
    """Say whether OpenVINO is installed."""
    return find_spec("openvino") is not None


def openvino_tagger(model: nn.Module, precision: Precision) -> Forward:
    """Return what computes tag logits with OpenVINO on the processor: (B, T, K) float32.

    Args:
        model: a token classifier of transformers in float32, on the CPU.
        precision: what matrix products are computed in.

    Raises:
        ConfigError: OpenVINO is not installed.
        ModelError: the model has what a graph for batches of any size cannot express.
    """
    if not has_openvino():
        raise ConfigError(
            _("--backend openvino: OpenVINO is not installed. pip install 'bertfit[openvino]'")
        )
    try:
        request = _request(model, precision)
    except RuntimeError as error:
        raise no_graph("openvino", error) from error
    try_out("openvino", lambda inputs: np.array(request.infer(inputs)[0]), (RuntimeError,))

    def run(batch: Batch) -> Tensor:
        mask = batch.attention_mask
        if mask is None:
            mask = np.ones_like(batch.input_ids)
        found = request.infer({"input_ids": batch.input_ids, "attention_mask": mask})
        return torch.from_numpy(np.array(found[0], dtype=np.float32))

    return run


def _request(model: nn.Module, precision: Precision) -> "InferRequest":
    import openvino

    with torch.inference_mode(), warnings.catch_warnings():
        # What tracing cannot see of transformers' branches is the same for every shape here.
        warnings.simplefilter("ignore")
        graph = openvino.convert_model(
            PlainTagger(model).eval(),
            example_input=PlainTagger.EXAMPLE,
            input=[("input_ids", [-1, -1]), ("attention_mask", [-1, -1])],
        )
    compiled = openvino.Core().compile_model(
        graph,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
            "PERFORMANCE_HINT": "LATENCY",  # one batch at a time, on all cores
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        },
    )
    return compiled.create_infer_request()
