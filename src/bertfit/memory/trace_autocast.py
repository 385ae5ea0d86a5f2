"""CUDA's autocast for traced programs: its three lists and its weight cache.

Source: aten/src/ATen/autocast_mode.h and autocast_mode.cpp of PyTorch 2.14.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertfit.memory.trace_functions import HANDLERS, Call, CudaFace, Handler
from bertfit.memory.trace_ops import Arguments, Keywords

# AT_FORALL_LOWER_PRECISION_FP, as far as Python can call them.
LOWER = """
    addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul prelu
    conv1d conv2d conv3d __matmul__ __rmatmul__
"""
# AT_FORALL_FP32, and `square`, which calls `pow`.
FP32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus
    square layer_norm rms_norm group_norm cosine_similarity nll_loss kl_div l1_loss smooth_l1_loss
    huber_loss mse_loss binary_cross_entropy_with_logits dist cdist logsumexp __pow__ __rpow__
"""
# AT_FORALL_FP32_SET_OPT_DTYPE. Softmax and log_softmax have handlers of their own.
FP32_DTYPE = "prod cumprod cumsum sum"


def cast_all(face: CudaFace, values: Any, dtype: torch.dtype) -> Any:
    """Cast every tensor of the card in a call's arguments."""
    if isinstance(values, Tensor):
        return face.cache.cast(values, dtype) if values.is_meta else values
    # From the last to the first: GCC evaluates the arguments of a C++ call in that order.
    if isinstance(values, tuple | list):
        return type(values)([cast_all(face, v, dtype) for v in reversed(values)][::-1])
    if isinstance(values, dict):
        return {k: cast_all(face, v, dtype) for k, v in reversed(values.items())}
    return values


def active() -> bool:
    """Say whether CUDA's autocast is on."""
    return torch.is_autocast_enabled("cuda")


def _lower(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    if active():
        dtype = torch.get_autocast_dtype("cuda")
        kwargs, args = cast_all(face, kwargs, dtype), cast_all(face, args, dtype)
    return func(*args, **kwargs)


def _fp32(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    if active():
        kwargs, args = cast_all(face, kwargs, torch.float32), cast_all(face, args, torch.float32)
    return func(*args, **kwargs)


def _fp32_dtype(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    x = args[0]
    if active() and x.is_meta and x.is_floating_point() and kwargs.get("dtype") is None:
        kwargs = {**kwargs, "dtype": torch.float32}
    return func(*args, **kwargs)


def _register() -> None:
    for names, handler in ((LOWER, _lower), (FP32, _fp32), (FP32_DTYPE, _fp32_dtype)):
        for name in names.split():
            for owner in (torch, Tensor, torch._C._nn, F):
                function = getattr(owner, name, None)
                if function is not None and callable(function):
                    HANDLERS[function] = handler


_register()


def softmax(x: Tensor, dim: int, dtype: torch.dtype | None, *, log: bool) -> Tensor:
    """Call softmax as CUDA does: from fp16 to fp32 in one kernel, otherwise by a copy.

    Source: aten/src/ATen/native/SoftMax.cpp, `softmax` and `log_softmax`.
    """
    kernel = torch._log_softmax if log else torch._softmax
    if x.dtype == torch.float16 and dtype == torch.float32:
        return kernel(x, dim, True)
    if dtype is not None:
        x = x.to(dtype)
    return kernel(x, dim, False)


def _softmax_handler(log: bool) -> Handler:
    def handler(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
        x = args[0] if args else kwargs["input"]
        if not x.is_meta:
            return func(*args, **kwargs)
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        dtype = kwargs.get("dtype")
        for extra in args[2:]:
            if isinstance(extra, torch.dtype):
                dtype = extra
        if dtype is None and active() and x.is_floating_point():
            dtype = torch.float32
        assert dim is not None, "softmax without a dimension"
        return softmax(x, dim, dtype, log=log)

    return handler


for _function in (F.softmax, torch.softmax, Tensor.softmax):
    HANDLERS[_function] = _softmax_handler(False)
for _function in (F.log_softmax, torch.log_softmax, Tensor.log_softmax):
    HANDLERS[_function] = _softmax_handler(True)


def _layer_norm(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    given = dict(zip(names, args, strict=False)) | kwargs
    x, shape, weight, bias, eps = (given.get(name) for name in names)
    if active():
        x, weight, bias = cast_all(face, (x, weight, bias), torch.float32)
    assert x is not None and shape is not None
    return torch.layer_norm(x, shape, weight, bias, 1e-5 if eps is None else eps)


HANDLERS[F.layer_norm] = _layer_norm


def _cross_entropy(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    """Run as `cross_entropy_loss` does, whose inner calls see autocast one by one.

    Source: aten/src/ATen/native/LossNLL.cpp: the softmax is given its input's dtype, so autocast
    leaves it; nll_loss is in the fp32 list.
    """
    names = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction")
    given = dict(zip(names, args, strict=False)) | kwargs
    x, target = given["input"], given["target"]
    if not active() or given.get("label_smoothing", 0.0) or target.is_floating_point():
        return func(*args, **kwargs)
    logs = softmax(x, 0 if x.ndim == 1 else 1, None, log=True)
    weight = given.get("weight")
    logs = face.cache.cast(logs, torch.float32)
    reduction = {"none": 0, "mean": 1, "sum": 2}[given.get("reduction", "mean")]
    ignore = given.get("ignore_index", -100)
    return torch._C._nn.nll_loss_nd(logs, target, weight, reduction, ignore)  # type: ignore[arg-type]


HANDLERS[F.cross_entropy] = _cross_entropy
