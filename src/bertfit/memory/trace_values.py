"""What a trace knows of values: enough to follow a model that decides by ids, masks or lengths.

A batch comes from the host, so its values are known, and what is computed from known values alone
is computed once more on the host. Weights and activations are never known.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten

# Masks that are spread over pairs of tokens decide nothing, and cost time.
_ALWAYS = 1 << 20  # elements
_MOST_BYTES = 1 << 27

_UNKNOWN = {
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
}
# A run whose activations are not finite is refused, so these find nothing.
_NEVER = {aten.isnan.default, aten.isinf.default}


class _Known(NamedTuple):
    layout: tuple[torch.Size, tuple[int, ...]]
    value: Tensor


class Values:
    """The values of storages on the card, as far as they are known."""

    def __init__(self) -> None:
        self._of: dict[int, _Known] = {}

    def of(self, tensor: Tensor) -> Tensor | None:
        """Return the values of a tensor, on the host, or None. They are not to be changed."""
        if not tensor.is_meta:
            return tensor
        known = self._of.get(tensor.untyped_storage()._cdata)
        if known is None or known.value.dtype != tensor.dtype:
            return None
        layout = (tensor.size(), tensor.stride())
        if layout == known.layout:
            return known.value
        if known.value.stride() == known.layout[1]:
            return known.value.as_strided(*layout, tensor.storage_offset())
        return None

    def know(self, tensor: Tensor, value: Tensor) -> None:
        """Remember the values of a tensor that begins a storage of its own."""
        key = tensor.untyped_storage()._cdata
        self._of[key] = _Known((tensor.size(), tensor.stride()), value)

    def know_copy(self, tensor: Tensor, host: Tensor) -> None:
        """Remember what was copied from the host; what is broadcast there costs one row."""
        if tensor.nbytes <= _MOST_BYTES:  # laid out as on the card, so that views are known, too
            value = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
            self.know(tensor, value.copy_(host))
            return
        if host.untyped_storage().nbytes() > _MOST_BYTES:
            return
        storage = host.untyped_storage().clone()  # type: ignore[no-untyped-call]
        copy = host.new_empty(0).set_(storage, host.storage_offset(), host.size(), host.stride())
        self.know(tensor, copy.to(tensor.dtype))

    def forget(self, key: int) -> None:
        """Forget a storage: it went, or nobody knows what was written into it."""
        self._of.pop(key, None)

    def follow(
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        out: object,
    ) -> None:
        """Compute an operation on the host, if all that it reads is known."""
        if func._schema.is_mutable:
            self._mutate(func, args, keywords)
            return
        made = [x for x in _tensors((out,)) if x.is_meta and self.of(x) is None]
        if not made:
            return
        if func in _NEVER:
            self.know(made[0], torch.zeros((), dtype=torch.bool).expand(made[0].shape))
            return
        read = self._read(args, keywords)
        if read is None or func in _UNKNOWN or torch.Tag.nondeterministic_seeded in func.tags:
            return
        if any(x.numel() > self._most(x, args) for x in made):
            return
        found = _compute(func, *read)
        for x, value in zip(_tensors((out,)), _tensors((found,)), strict=False):
            if x.is_meta and x.shape == value.shape:
                self.know(x, value)

    def _most(self, made: Tensor, args: tuple[Any, ...]) -> int:
        """Return how many elements of a result are computed at most."""
        if made.dtype.is_floating_point:
            return _ALWAYS
        largest = max((x.numel() for x in _tensors(args)), default=_MOST_BYTES)
        return min(max(_ALWAYS, 2 * largest), _MOST_BYTES // made.element_size())

    def _mutate(self, func: OpOverload, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        targets = [
            argument
            for argument, kind in zip(args, func._schema.arguments, strict=False)
            if kind.alias_info is not None and kind.alias_info.is_write
        ]
        keys = {x.untyped_storage()._cdata for x in _tensors(targets) if x.is_meta}
        keys = {key for key in keys if key in self._of}
        if not keys:
            return
        read = self._read(args, keywords)
        if read is None or _compute(func, *read) is None:
            for key in keys:
                self.forget(key)

    def _read(
        self, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]] | None:
        """Put values in the place of tensors; None where one is not known."""
        try:
            values = [self._value(argument) for argument in args]
            named = {name: self._value(argument) for name, argument in keywords.items()}
        except LookupError:
            return None
        if "device" in named:
            named["device"] = torch.device("cpu")
        return values, named

    def _value(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            value = self.of(argument)
            if value is None:
                raise LookupError
            return value
        if isinstance(argument, list | tuple):
            return [self._value(part) for part in argument]
        return argument


def _compute(func: OpOverload, args: list[Any], keywords: dict[str, Any]) -> object:
    """Run an operation on the host; None where the host cannot."""
    try:
        return func(*args, **keywords)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None


def _tensors(parts: Iterable[object]) -> Iterator[Tensor]:
    for part in parts:
        if isinstance(part, Tensor):
            yield part
        elif isinstance(part, list | tuple):
            yield from _tensors(part)
