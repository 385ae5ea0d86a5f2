"""Streams of a card on a processor, on which every copy happens as late as it may.

What a program computes is computed at once; what it copies on a stream of its own lies in a queue
until somebody waits for it. A wait that is missing then shows in the numbers.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class LateStream:
    """A queue of copies; `now` is the stream of what is computed, whose queue is always empty."""

    current: "LateStream"

    def __init__(self, device: torch.device | None = None) -> None:
        self.queue: list[Callable[[], object]] = []
        self.lock = threading.RLock()
        self.done = 0
        self.added = 0

    def add(self, copy: Callable[[], object]) -> None:
        with self.lock:
            self.queue.append(copy)
            self.added += 1

    def run_to(self, number: int) -> None:
        with self.lock:
            while self.done < number:
                self.queue.pop(0)()
                self.done += 1

    def wait_stream(self, other: "LateStream") -> None:
        if not self.queue and self is LateStream.current:
            other.run_to(other.added)

    def wait_event(self, event: "LateEvent") -> None:
        event.synchronize()


class LateEvent:
    """A place in a queue."""

    def __init__(self, blocking: bool = False) -> None:
        self.at: tuple[LateStream, int] | None = None

    def record(self, stream: LateStream) -> None:
        self.at = (stream, stream.added)

    def synchronize(self) -> None:
        if self.at is not None:
            self.at[0].run_to(self.at[1])


class _Copies(TorchFunctionMode):
    """Puts what is copied on another stream in its queue, and leaves pinning out."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = dict(kwargs or {})
        if func is torch.empty:
            kwargs.pop("pin_memory", None)
        if func is Tensor.copy_ and kwargs.pop("non_blocking", False):
            stream = _Entered.stream
            assert stream is not None, "an asynchronous copy on the stream that computes"
            stream.add(lambda: func(*args))
            return args[0]
        return func(*args, **kwargs)


class _Entered:
    stream: LateStream | None = None


@contextmanager
def _enter(stream: LateStream) -> Iterator[None]:
    _Entered.stream = stream
    try:
        yield
    finally:
        _Entered.stream = None


@contextmanager
def late_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stand in for the streams of CUDA while the block runs; tensors are of the processor."""
    computing = LateStream.current = LateStream()
    monkeypatch.setattr(torch.cuda, "Stream", LateStream)
    monkeypatch.setattr(torch.cuda, "Event", LateEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    monkeypatch.setattr(torch.cuda, "stream", _enter)
    with _Copies():
        yield
