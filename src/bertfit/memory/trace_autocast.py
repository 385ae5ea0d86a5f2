"""CUDA's autocast for traced programs: its three lists and its weight cache.

Source: aten/src/ATen/autocast_mode.h and autocast_mode.cpp of PyTorch 2.14.
"""

from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bertfit.memory.trace_composed import composed
from bertfit.memory.trace_functions import HANDLERS, Call, CudaFace, Handler
from bertfit.memory.trace_ops import Arguments, Keywords

# AT_FORALL_LOWER_PRECISION_FP, and Python's other spellings.
LOWER = """
    _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
    chain_matmul linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    __matmul__ __rmatmul__
"""
# AT_FORALL_FP32, Python's other spellings, and what calls one of them: `square`, `nll_loss_nd`.
FP32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus
    layer_norm native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm cosine_similarity
    poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
    _upsample_bicubic2d_aa
    __pow__ __rpow__ square nll_loss_nd
"""
# AT_FORALL_FP32_SET_OPT_DTYPE and AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE. Softmax and log_softmax
# have handlers of their own.
FP32_DTYPE = "prod cumprod cumsum linalg_vector_norm linalg_matrix_norm sum norm"
# AT_FORALL_PROMOTE.
PROMOTE = """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
"""


def cast_all(face: CudaFace, values: Any, dtype: torch.dtype) -> Any:
    """Cast every tensor of the card in a call's arguments, a tuple or a dict.

    From the last to the first: GCC evaluates the arguments of a C++ call in that order.
    """
    if isinstance(values, dict):
        return {k: _cast(face, v, dtype) for k, v in reversed(values.items())}
    return tuple([_cast(face, v, dtype) for v in reversed(values)][::-1])


def _cast(face: CudaFace, value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return face.cache.cast(value, dtype) if value.is_meta else value
    if isinstance(value, tuple | list):  # a list of tensors is cast from the first to the last
        return type(value)([_cast(face, v, dtype) for v in value])
    return value


def active() -> bool:
    """Say whether CUDA's autocast is on."""
    return torch.is_autocast_enabled("cuda")


def _lower(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    if active():
        dtype = torch.get_autocast_dtype("cuda")
        kwargs, args = cast_all(face, kwargs, dtype), cast_all(face, args, dtype)
    return func(*args, **kwargs)


def _linear(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    """Add the bias in place where the input is not contiguous, which torch does not on `meta`.

    Source: aten/src/ATen/native/Linear.cpp, `linear`.
    """

    def call(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if bias is None or input.ndim == 2 or input.is_contiguous():
            out: Tensor = func(input, weight, bias)
            return out
        return torch.matmul(input, weight.t()).add_(bias)

    return _lower(face, call, args, kwargs)


def _fp32(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    if active():
        kwargs, args = cast_all(face, kwargs, torch.float32), cast_all(face, args, torch.float32)
    return func(*args, **kwargs)


def _fp32_dtype(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    x = args[0]
    known = not x.is_floating_point() or x.dtype == torch.float64 or kwargs.get("dtype")
    if active() and x.is_meta and not known:
        kwargs = {**kwargs, "dtype": torch.float32}
    return func(*args, **kwargs)


def _promote(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    """Cast to fp32 if one of the arguments has it; `prioritize` in autocast_mode.h."""
    if active():
        lower = torch.get_autocast_dtype("cuda")
        found = {x.dtype for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        wide = torch.float32 if torch.float32 in found else lower
        kwargs, args = cast_all(face, kwargs, wide), cast_all(face, args, wide)
    return func(*args, **kwargs)


_linalg = torch._C._linalg  # type: ignore[attr-defined]
_OWNERS = (torch, torch._C._VariableFunctions, Tensor, torch._C._nn, _linalg, F)


def _register() -> None:
    lists = {LOWER: _lower, FP32: _fp32, FP32_DTYPE: _fp32_dtype, PROMOTE: _promote}
    for names, handler in lists.items():
        for name, owner in product(names.split(), _OWNERS):
            function = getattr(owner, name, None)
            # What is written in Python calls another of the list.
            if callable(function) and composed(function) is None:
                HANDLERS[function] = handler


_register()
HANDLERS[F.linear] = _linear


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
