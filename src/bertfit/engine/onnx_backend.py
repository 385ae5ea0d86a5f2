"""The one door to ONNX Runtime: a tagger computed by it in torch's place, also in 8-bit integers.

The graph is made in memory from the loaded model; only its 8-bit form goes through a temporary
folder, since the library that makes it takes files.
"""

import tempfile
import warnings
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bertfit.engine.backends import Forward, PlainTagger, no_graph, try_out
from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.types import Batch

OPSET = 18  # the newest that torch's tracing exporter writes without conversion


def has_onnx() -> bool:
    """Say whether ONNX Runtime, and what writes its graphs, is installed."""
    return find_spec("onnxruntime") is not None and find_spec("onnx") is not None


def onnx_tagger(model: nn.Module, *, int8: bool = False) -> Forward:
    """Return what computes tag logits with ONNX Runtime on the processor: (B, T, K) float32.

    Args:
        model: a token classifier of transformers in float32, on the CPU.
        int8: multiply in 8-bit integers: weights are rounded once, one scale per output row;
            states as they come, one scale per tensor. Embeddings, norms and attention stay in
            float32.

    Raises:
        ConfigError: ONNX Runtime is not installed.
        ModelError: the model has what a graph for batches of any size cannot express.
    """
    if not has_onnx():
        raise ConfigError(
            _("--backend onnx: ONNX Runtime is not installed. pip install 'bertfit[onnx]'")
        )
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors; warnings about graph rewriting say nothing here
    graph = _graph(model)
    session = onnxruntime.InferenceSession(
        _rounded(graph) if int8 else graph, options, providers=["CPUExecutionProvider"]
    )
    del graph
    from onnxruntime.capi import onnxruntime_pybind11_state as faults

    try_out(
        "onnx",
        lambda inputs: session.run(None, inputs)[0],
        (faults.Fail, faults.InvalidArgument, faults.RuntimeException),
    )

    def run(batch: Batch) -> Tensor:
        mask = batch.attention_mask
        if mask is None:
            mask = np.ones_like(batch.input_ids)
        found = session.run(None, {"input_ids": batch.input_ids, "attention_mask": mask})
        return torch.from_numpy(found[0])

    return run


def _graph(model: nn.Module) -> bytes:
    """Return the model as ONNX, for batches of any size and length.

    By tracing: the other exporter of torch (`dynamo=True`) took 13 s where this takes 2, for the
    same results (E5-small, torch 2.14).
    """
    buffer = BytesIO()
    any_shape = {0: "windows", 1: "tokens"}
    names = list(PlainTagger.EXAMPLE)
    with torch.inference_mode(), warnings.catch_warnings():
        # What tracing cannot see of transformers' branches is the same for every shape here.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                PlainTagger(model).eval(),
                tuple(PlainTagger.EXAMPLE.values()),
                buffer,  # type: ignore[arg-type]  # the tracing exporter takes one
                dynamo=False,
                input_names=names,
                output_names=["logits"],
                dynamic_axes=dict.fromkeys([*names, "logits"], any_shape),
                opset_version=OPSET,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            raise no_graph("onnx", error) from error
    return buffer.getvalue()


def _rounded(graph: bytes) -> bytes:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory(prefix="bertfit-") as folder:
        whole, small = Path(folder) / "fp32.onnx", Path(folder) / "int8.onnx"
        whole.write_bytes(graph)
        quantize_dynamic(
            whole,
            small,
            per_channel=True,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul", "Gemm"],
        )
        return small.read_bytes()
