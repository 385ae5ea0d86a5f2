"""Streams cut into chunks: what is read ahead, sorted by length together and written together.

A chunk is a pure function of the input from its first record on, so work that goes on at the
beginning of a chunk gives the very bytes that it would have given without the stop.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch

from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.types import Example, Window

T = TypeVar("T")
Cut = Callable[[Iterable[Example]], Iterator[Window]]

# Batches in a chunk: enough that sorting by length leaves little padding. A stop throws a chunk
# away, and the progress bar waits for it: 400 short sentences, some seconds, on a processor.
BATCHES_PER_CHUNK = 8
# Empty texts have no tokens, so the number of records is bounded as well.
MAX_RECORDS = 4096
# Padded tokens of a batch. More than this gains nothing on a CPU, whose caches it overflows.
CPU_BATCH_TOKENS = 2048
CARD_BATCH_TOKENS = 16384


def tokens_of_batch(asked: int | None, device: torch.device) -> int:
    """Return the padded tokens of a batch: as asked, else what suits the device.

    Raises:
        ConfigError: fewer than one were asked for.
    """
    if asked is None:
        return CPU_BATCH_TOKENS if device.type == "cpu" else CARD_BATCH_TOKENS
    if asked < 1:
        raise ConfigError(_("batch_tokens={tokens}: must be 1 or more.").format(tokens=asked))
    return asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some examples and all of their windows; `Window.index` counts within the chunk."""

    examples: list[Example]
    windows: list[Window]


def chunks(examples: Iterable[Example], cut: Cut, max_tokens: int) -> Iterator[Chunk]:
    """Cut a stream of examples into chunks of about `max_tokens` tokens, in order.

    A text longer than that is a chunk of its own.

    Args:
        examples: read as chunks are asked for.
        cut: makes the windows of examples, numbering the examples from 0.
        max_tokens: a chunk ends with the example that reaches it.
    """
    stream = iter(examples)
    while True:
        held: list[Example] = []
        windows: list[Window] = []
        for window in cut(_until_full(stream, held, windows, max_tokens)):
            windows.append(window)
        if not held:
            return
        yield Chunk(examples=held, windows=windows)


def _until_full(
    stream: Iterator[Example], held: list[Example], windows: list[Window], max_tokens: int
) -> Iterator[Example]:
    tokens = counted = 0
    while len(held) < MAX_RECORDS:
        tokens += sum(len(window.input_ids) for window in windows[counted:])
        counted = len(windows)
        if tokens >= max_tokens:
            return
        example = next(stream, None)
        if example is None:
            return
        held.append(example)
        yield example


class _End:
    """Says that a stream ended, and with which exception if with one."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def ahead(stream: Iterator[T], depth: int = 2) -> Iterator[T]:
    """Run an iterator in a thread of its own, at most `depth` items ahead.

    For cards: reading and tokenising go on while the card works. The thread ends with the stream,
    or when the iterator that is returned is closed.
    """
    ready: queue.Queue[T | _End] = queue.Queue(maxsize=depth)
    closed = threading.Event()

    def put(item: T | _End) -> bool:
        while not closed.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        error: BaseException | None = None
        try:
            for item in stream:
                if not put(item):
                    return
        except BaseException as caught:  # noqa: BLE001 (handed on to the thread that asks)
            error = caught
        put(_End(error))

    thread = threading.Thread(target=work, name="bertfit-reader", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        closed.set()
        thread.join()
