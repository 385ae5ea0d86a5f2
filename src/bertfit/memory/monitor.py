"""Watches memory from a thread of its own and hands out samples, at well under 1% of the time."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from bertfit.memory.gauges import Gauge, Reading
from bertfit.types import MemorySample

INTERVAL_SECONDS = 1.0


class Monitor:
    """Samples a gauge while its block runs.

    Args:
        gauge: what is looked at.
        write: receives every sample, on the monitor's thread.
        interval_seconds: between two samples; the first comes at once.
    """

    def __init__(
        self,
        gauge: Gauge,
        write: Callable[[MemorySample], None],
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self.step = 0
        self.latest = Reading()
        self._gauge, self._write, self._interval = gauge, write, interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bertfit-monitor", daemon=True)
        self._started = 0.0

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        self._sample()
        while not self._stop.wait(self._interval):
            self._sample()

    def _sample(self) -> None:
        self.latest = reading = self._gauge.read()
        self._write(
            MemorySample(
                seconds=round(time.perf_counter() - self._started, 3),
                step=self.step,
                allocated_bytes=reading.allocated_bytes,
                reserved_bytes=reading.reserved_bytes,
                card_used_bytes=reading.card_used_bytes,
                card_total_bytes=reading.card_total_bytes,
                other_bytes=reading.other_bytes,
                host_bytes=reading.host_bytes,
            )
        )
