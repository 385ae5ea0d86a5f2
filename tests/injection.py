"""Out-of-memory at a chosen allocation of a real step, and a count of what is alive."""

import weakref
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Allocations(TorchDispatchMode):
    """Counts the storages that operations make, and fails at one of them.

    Args:
        fail_at: numbers of the allocations, from 0, that fail; each fails once.
        error: makes what is raised.
    """

    def __init__(
        self,
        fail_at: set[int] | None = None,
        error: Callable[[], BaseException] = lambda: torch.OutOfMemoryError("CUDA out of memory."),
    ) -> None:
        super().__init__()
        self.fail_at = set(fail_at or ())
        self.error = error
        self.count = 0
        self.live_bytes = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if _allocates(func):
            number, self.count = self.count, self.count + 1
            if number in self.fail_at:
                self.fail_at.remove(number)
                raise self.error()
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self._follow(tensor)
        return out

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.live_bytes += size
            weakref.finalize(storage, self._gone, key, size).atexit = False

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live_bytes -= size


def _allocates(func: torch._ops.OpOverload) -> bool:
    returns = func._schema.returns
    return any("Tensor" in str(r.type) and r.alias_info is None for r in returns)
