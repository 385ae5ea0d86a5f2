"""What a trace knows of values: enough to follow a model that decides by ids, masks or lengths.

A batch comes from the host, so its values are known, and what is computed from known values alone
is computed once more on the host. Weights and activations are never known.
"""

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
import torch
import xxhash
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten

# Masks that are spread over pairs of tokens decide nothing, and cost time.
_ALWAYS = 1 << 20  # elements
_MOST_BYTES = 1 << 27
# From here on, equal values lie in one place: DeBERTa makes the same table in each of its layers.
_ONCE_BYTES = 1 << 16

_UNKNOWN = {
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
}
# A run whose activations are not finite is refused, so these find nothing.
_NEVER = {aten.isnan.default, aten.isinf.default}


_Layout: TypeAlias = tuple[torch.Size, tuple[int, ...], int]
_Content: TypeAlias = tuple[str, torch.dtype, torch.Size]


class _Known(NamedTuple):
    layout: _Layout
    value: Tensor


class Values:
    """The values of storages on the card, as far as they are known."""

    def __init__(self) -> None:
        self._of: dict[int, _Known] = {}
        self._equal: WeakValueDictionary[_Content, Tensor] = WeakValueDictionary()

    def of(self, tensor: Tensor) -> Tensor | None:
        """Return the values of a tensor, on the host, or None. They are not to be changed."""
        if not tensor.is_meta:
            return tensor
        known = self._of.get(tensor.untyped_storage()._cdata)
        if known is None or known.value.dtype != tensor.dtype:
            return None
        layout = _layout(tensor)
        if layout == known.layout:
            return known.value
        if _layout(known.value)[1:] != known.layout[1:]:
            return None
        end = layout[2] + sum((n - 1) * step for n, step in zip(*layout[:2], strict=True))
        return known.value.as_strided(*layout) if end < _room(known.value) else None

    def know(self, tensor: Tensor, value: Tensor) -> None:
        """Remember the values of a tensor, in place of others that share its storage."""
        self._of[tensor.untyped_storage()._cdata] = _Known(_layout(tensor), value)

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
        size = max(x.numel() for x in made)
        found: object = None
        if size > _ALWAYS and _is_pointwise(func):
            found = self._compute_once(func, *read, made[0])
        elif size <= self._most(made[0], args) or _is_plain_view(func):
            found = _compute(func, *read)
        for x, value in zip(_tensors((out,)), _tensors((found,)), strict=False):
            if x.is_meta and not value.is_meta and x.shape == value.shape:
                self.know(x, self._once(value))

    def _once(self, value: Tensor) -> Tensor:
        """Return equal values that are known already, or these."""
        if not _may_be_shared(value):
            return value
        data = value.reshape(-1).view(torch.uint8).numpy().data
        content = xxhash.xxh3_128_hexdigest(data), value.dtype, value.shape
        return self._equal.setdefault(content, value)

    def _most(self, made: Tensor, args: tuple[Any, ...]) -> int:
        """Return how many elements of a result are computed at most."""
        if made.dtype.is_floating_point:
            return _ALWAYS
        largest = max((x.numel() for x in _tensors(args)), default=_MOST_BYTES)
        return min(max(_ALWAYS, 2 * largest), _MOST_BYTES // made.element_size())

    def _compute_once(
        self, func: OpOverload, args: list[Any], keywords: dict[str, Any], made: Tensor
    ) -> Tensor | None:
        """Compute one of what is alike along a dimension, as in a mask over pairs of tokens.

        Args:
            func: a pointwise operation.
            args: with values.
            keywords: likewise.
            made: its result on the card.

        Returns:
            The result, broadcast; None where it is large even so.
        """
        args = [_alike(x) if isinstance(x, Tensor) else x for x in args]
        tensors = list(_tensors(args))
        size = prod(np.broadcast_shapes(*(x.shape for x in tensors)))
        if size > self._most(made, tuple(tensors)):
            return None
        found = _compute(func, args, keywords)
        return found.expand(made.shape) if isinstance(found, Tensor) else None

    def _mutate(self, func: OpOverload, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        arguments = func._schema.arguments
        names = (argument.name for argument in arguments)
        given = {**dict(zip(names, args, strict=False)), **keywords}  # `out` comes by its name
        targets = [
            given.get(argument.name)
            for argument in arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        for target in _tensors(targets):
            self._unshare(target)
        keys = {x.untyped_storage()._cdata for x in _tensors(targets) if x.is_meta}
        keys = {key for key in keys if key in self._of}
        if not keys:
            return
        read = self._read(args, keywords)
        if read is None or _compute(func, *read) is None:
            for key in keys:
                self.forget(key)

    def _unshare(self, target: Tensor) -> None:
        """Give a tensor and its elements places of their own, before it is written into."""
        key = target.untyped_storage()._cdata
        known = self._of.get(key) if target.is_meta else None
        if known is not None and _may_be_shared(known.value):
            self._of[key] = known._replace(value=known.value.clone())
        value = self.of(target) if target.is_meta else None
        if value is None or not _is_broadcast(value):
            return
        if value.numel() > _ALWAYS:
            self.forget(key)
        else:
            self.know(target, value.contiguous())

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


def _layout(tensor: Tensor) -> _Layout:
    return tensor.size(), tensor.stride(), int(tensor.storage_offset())


def _room(value: Tensor) -> int:
    return value.untyped_storage().nbytes() // value.element_size()


def _may_be_shared(value: Tensor) -> bool:
    whole = value.untyped_storage().nbytes() == value.nbytes
    return whole and value.nbytes >= _ONCE_BYTES and value.is_contiguous()


def _is_pointwise(func: OpOverload) -> bool:
    return torch.Tag.pointwise in func.tags or func == aten._to_copy.default


def _is_plain_view(func: OpOverload) -> bool:
    """Say whether an operation is a view of any tensor, and never a copy, as `reshape` can be."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return func.is_view and not func.has_kernel_for_dispatch_key(composite)


def _is_broadcast(value: Tensor) -> bool:
    return any(n > 1 and not step for n, step in zip(value.size(), value.stride(), strict=True))


def _alike(value: Tensor) -> Tensor:
    """Keep one of what is alike along a dimension."""
    for dim, (size, step) in enumerate(zip(value.size(), value.stride(), strict=True)):
        if size > 1 and not step:
            value = value.narrow(dim, 0, 1)
    if value.numel() <= _ALWAYS:
        for dim, size in enumerate(value.size()):
            first = value.narrow(dim, 0, min(size, 1))
            if size > 1 and bool((value == first).all()):
                value = first
    return value


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
