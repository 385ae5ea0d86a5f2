"""A thread that writes, behind a queue that holds little: the model does not wait for the disk."""

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")
_DEPTH = 2


class WriterThread(Generic[T]):
    """Hands items to a function in a thread of its own, in order.

    Leaving the block waits until all is written. What the function raises is raised where the next
    item is put, or at the end.

    Args:
        write: called with every item.
    """

    def __init__(self, write: Callable[[T], None]) -> None:
        self._write = write
        self._items: queue.Queue[tuple[T] | None] = queue.Queue(maxsize=_DEPTH)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="bertfit-writer", daemon=True)

    def _work(self) -> None:
        while (item := self._items.get()) is not None:
            if self._error is None:
                try:
                    self._write(item[0])
                except BaseException as error:  # noqa: BLE001 (raised where the next is put)
                    self._error = error

    def put(self, item: T) -> None:
        """Hand over an item; waits while the queue is full."""
        self._raise()
        self._items.put((item,))

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._items.put(None)
        self._thread.join()
        if error is None:
            self._raise()
