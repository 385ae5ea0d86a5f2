"""Where a card refuses numbers that do not go together, which `meta` lets pass.

The errors are torch's own, word for word: who runs the step tells what they mean.
"""

import math

import torch
from torch import Tensor
from torch._ops import OpOverload

from bertfit.memory.trace_ops import Arguments, Keywords, OpTrace, rule

aten = torch.ops.aten

# As c10/core/ScalarType.h names them, and as C++ does.
_NAMES = {
    torch.float32: ("Float", "float"),
    torch.float64: ("Double", "double"),
    torch.float16: ("Half", "c10::Half"),
    torch.bfloat16: ("BFloat16", "c10::BFloat16"),
}


def check_same_dtype(left: Tensor, right: Tensor) -> None:
    """Refuse to multiply matrices of two types.

    Source: aten/src/ATen/core/TensorMethods.cpp, `data_ptr`, which the call of cuBLAS asks.

    Raises:
        RuntimeError: as torch would.
    """
    if left.dtype != right.dtype:
        expected, found = (_NAMES.get(x.dtype, [str(x.dtype)])[0] for x in (left, right))
        raise RuntimeError(f"expected scalar type {expected} but found {found}")


@rule(
    aten.masked_fill.Scalar,
    aten.masked_fill_.Scalar,
    aten.fill_.Scalar,
    aten.full.default,
    aten.full_like.default,
    aten.new_full.default,
)
def _fill(t: OpTrace, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Refuse a number that the type does not hold; infinity it does.

    Source: c10/util/TypeCast.h, `checked_convert`. A mask's least number of fp32 is such one in
    16 bits.

    The backward of `minimum` and `maximum` fills in place (tools/autograd/derivatives.yaml), which
    a dispatch mode turns off.
    """
    halves = t.in_engine() and t.node_name() in ("MinimumBackward0", "MaximumBackward0")
    if halves and func == aten.masked_fill.Scalar:
        return args[0]
    out = t.note_all(func(*args, **kwargs), args)
    value = args[-1]
    if (
        isinstance(out, Tensor)
        and out.is_floating_point()
        and isinstance(value, int | float)
        and math.isfinite(value)
        and abs(value) > torch.finfo(out.dtype).max
    ):
        name = _NAMES[out.dtype][1]
        raise RuntimeError(f"value cannot be converted to type {name} without overflow")
    return out
