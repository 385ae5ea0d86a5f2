"""What a traced program computes and moves, operation by operation: the ground of the cost model.

Stands inside `trace.record`: the operations it sees are those that the card would be given.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from bertfit.memory.trace_recorder import Recorder

aten = torch.ops.aten

# They read a few rows of their first argument, not all of it.
_GATHERS = {aten.embedding.default, aten.index.Tensor, aten.index_select.default}


class Work(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what every operation on the card does; operations that only rename are left out.

    Position i of the lists is the i-th operation.

    Attributes:
        flops: floating point operations of matrix products and attention.
        moved_bytes: what is read and written of the card's memory.
        is_half: whether the operation multiplies 16-bit numbers.
        places: phase and module.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops: list[int] = []
        self.moved_bytes: list[int] = []
        self.is_half: list[bool] = []
        self.places: list[tuple[str, str]] = []
        self._recorder = recorder

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run an operation and count it."""
        keywords = kwargs or {}
        out = func(*args, **keywords)
        if _only_renames(func):
            return out
        self._count(func, args, keywords, out)
        return out

    def _count(
        self, func: OpOverload, args: tuple[Any, ...], keywords: dict[str, Any], out: object
    ) -> None:
        read = args[1:] if func in _GATHERS else args
        moved = sum(map(self._bytes, (*read, *keywords.values(), out)))
        if moved:
            count: Callable[..., int] | None = flop_registry.get(func._overloadpacket)
            self.flops.append(count(*args, **keywords, out_val=out) if count else 0)
            self.moved_bytes.append(moved)
            self.is_half.append(_is_half(args))
            self.places.append((self._recorder.phase, self._recorder.module))

    def _bytes(self, value: object) -> int:
        if isinstance(value, Tensor):
            if not self._recorder.on_card(value):
                return 0
            # A tensor that is expanded has more numbers than bytes.
            return min(value.numel() * value.element_size(), value.untyped_storage().nbytes())
        if isinstance(value, list | tuple):
            return sum(map(self._bytes, value))
        return 0


@cache
def _only_renames(func: OpOverload) -> bool:
    """Say whether all that comes back is a view of what was given."""
    returns = func._schema.returns
    return bool(returns) and all(
        r.alias_info is not None and not r.alias_info.is_write for r in returns
    )


def _is_half(args: tuple[Any, ...]) -> bool:
    first = next((a for a in args if isinstance(a, Tensor) and a.is_floating_point()), None)
    return first is not None and first.dtype in (torch.float16, torch.bfloat16)
