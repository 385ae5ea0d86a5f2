"""Ctrl-C and a polite kill, turned into a stop at the next good place."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Stopped(BaseException):
    """Raised by `StopSignals.check` once a stop was asked for; caught where the job ends."""


class StopSignals:
    """Takes SIGINT and SIGTERM while a job runs; a second Ctrl-C stops at once.

    Outside the main thread Python allows no handlers, so nothing is taken there.

    Attributes:
        cause: what asked for the stop, in a word; empty until then.
    """

    def __init__(self) -> None:
        self.cause = ""
        self._before: dict[int, object] = {}

    def check(self) -> None:
        """Stop here, if a stop was asked for.

        Raises:
            Stopped: it was.
        """
        if self.cause:
            raise Stopped

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.cause and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.cause = self.cause or ("Ctrl-C" if number == signal.SIGINT else "SIGTERM")

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
