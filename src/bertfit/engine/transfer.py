"""Bytes on their way between a card and the host, while the card goes on computing.

Copies run on a stream of their own and only through buffers that are made once: the allocator of
the card sees the same requests as without them, in the same order.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

# 4 MiB take 0.3 ms at 12 GB/s, far more than it takes to begin a copy.
CHUNK_BYTES = 4 << 20
# Two on the card: one is filled while the other is sent.
CARD_CHUNKS = 2
# On the host 32 MiB, so that the card's work is queued some layers ahead of the host's sums. A
# power of two, for torch rounds pinned blocks up to one (CachingHostAllocatorImpl, torch 2.14).
HOST_CHUNKS = 8


class Transfer(Protocol):
    """Moves tensors between the memory that is computed in and the host's."""

    def to_host(self, source: Tensor, target: Tensor, *, add: bool) -> None:
        """Add a tensor of the device to one of the host, or put it in its place; may come later.

        Args:
            source: any shape and dtype; may be dropped or changed after the call.
            target: as many elements, contiguous; not to be read before `wait`.
            add: whether to add.
        """

    def to_device(self, source: Tensor, target: Tensor) -> None:
        """Copy a tensor of the host over one of the device, in the dtype of that.

        Args:
            source: contiguous; may be changed after the call.
            target: as many elements, contiguous. What is computed later sees the new values.
        """

    def wait(self) -> None:
        """Wait until the host has all that was sent."""


def transfer_of(device: torch.device) -> Transfer:
    """Return what moves tensors between a device and the host."""
    return CardTransfer(device) if device.type == "cuda" else DirectTransfer()


class DirectTransfer:
    """Where the device's memory is the host's, or has no streams: copies at once."""

    def to_host(self, source: Tensor, target: Tensor, *, add: bool) -> None:
        """Add or copy; see `Transfer`."""
        _add(source.to(target.device), target, add)

    def to_device(self, source: Tensor, target: Tensor) -> None:
        """Copy; see `Transfer`."""
        target.copy_(source)

    def wait(self) -> None:
        """Nothing is under way."""


class CardTransfer:
    """A CUDA card: copies in chunks on a stream of their own, sums on a thread of their own.

    Args:
        device: the card.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._leaving = torch.empty((CARD_CHUNKS, CHUNK_BYTES), dtype=torch.uint8, device=device)
        self._slab = torch.empty((HOST_CHUNKS, CHUNK_BYTES), dtype=torch.uint8, pin_memory=True)
        # Blocking: the host sleeps, where it would otherwise spin on a core that has sums to do.
        self._arrived = [
            torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            for __ in range(HOST_CHUNKS)
        ]
        self._sums = ThreadPoolExecutor(1, "bertfit-transfer")
        self._pending: list[Future[None] | None] = [None] * HOST_CHUNKS
        self._count = 0

    def to_host(self, source: Tensor, target: Tensor, *, add: bool) -> None:
        """Add or copy; see `Transfer`."""
        size = CHUNK_BYTES // source.element_size()
        computing = torch.cuda.current_stream(self._device)
        for part, place in _pieces(source.flatten(), target.view(-1), size):
            number, at = self._count, self._next()
            leaving = _front(self._leaving[number % CARD_CHUNKS], part)
            landing = _front(self._slab[at], part)
            # What was last in this chunk of the card has left it.
            computing.wait_event(self._arrived[(number - CARD_CHUNKS) % HOST_CHUNKS])
            leaving.copy_(part)
            self._stream.wait_stream(computing)
            with torch.cuda.stream(self._stream):
                landing.copy_(leaving, non_blocking=True)
            self._arrived[at].record(self._stream)
            self._pending[at] = self._sums.submit(_take_in, self._arrived[at], landing, place, add)

    def to_device(self, source: Tensor, target: Tensor) -> None:
        """Copy; see `Transfer`."""
        size = CHUNK_BYTES // target.element_size()
        computing = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(computing)  # it may still read the old values
        for part, place in _pieces(source.view(-1), target.view(-1), size):
            at = self._next()
            sent = _front(self._slab[at], place)
            sent.copy_(part)
            with torch.cuda.stream(self._stream):
                place.copy_(sent, non_blocking=True)
            self._arrived[at].record(self._stream)
        computing.wait_stream(self._stream)

    def wait(self) -> None:
        """Wait for all sums; see `Transfer`."""
        pending, self._pending = self._pending, [None] * HOST_CHUNKS
        for one in pending:
            if one is not None:
                one.result()

    def _next(self) -> int:
        """Return the next chunk of the slab, when nobody needs what is in it."""
        at = self._count % HOST_CHUNKS
        self._count += 1
        pending, self._pending[at] = self._pending[at], None
        if pending is not None:
            pending.result()
        self._arrived[at].synchronize()
        return at


def _pieces(source: Tensor, target: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Give both tensors, (N,), in pieces of at most so many numbers."""
    for start in range(0, source.numel(), size):
        yield source[start : start + size], target[start : start + size]


def _front(chunk: Tensor, like: Tensor) -> Tensor:
    """Return the beginning of a chunk as (N,) of the dtype and size of a tensor."""
    return chunk[: like.numel() * like.element_size()].view(like.dtype)


def _take_in(arrived: torch.cuda.Event, landing: Tensor, place: Tensor, add: bool) -> None:
    if place.is_meta:  # of a trace: no numbers, and torch takes long to add none
        return
    arrived.synchronize()
    _add(landing, place, add)


def _add(source: Tensor, target: Tensor, add: bool) -> None:
    if add:
        # Cast before: torch adds bfloat16 to float32 at 0.17e9 numbers a second and thread, this
        # way at 0.60e9 (torch 2.14, a processor with AVX512).
        target.add_(source.to(target.dtype))
    else:
        target.copy_(source)
