"""Functions of torch that are written in Python: what they call is seen, too.

They ask first whether a mode is there, hand themselves over whole if so, and then run where the
mode sees nothing; but CUDA's autocast looks at each operation in them.
"""

import functools
from types import FunctionType

import torch
from torch import Tensor

_MODULES = ("torch.functional", "torch.nn.functional")
_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


@functools.cache
def composed(function: object) -> FunctionType | None:
    """Return the same function without its question for a mode; None where it is no such one."""
    if function is Tensor.norm:
        function = torch.norm
    if not isinstance(function, FunctionType) or function.__module__ not in _MODULES:
        return None
    if not set(_CHECKS) & set(function.__code__.co_names):
        return None
    copy = FunctionType(
        function.__code__,
        {**function.__globals__, **dict.fromkeys(_CHECKS, _nothing)},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _nothing(*args: object) -> bool:
    return False
