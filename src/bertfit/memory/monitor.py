"""Watches memory from a thread of its own and hands out samples, at well under 1% of the time.

Where it knows what was predicted, it warns once when more than that is held.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from bertfit.language import _
from bertfit.memory.gauges import Gauge, Reading
from bertfit.types import MemorySample
from bertfit.units import format_bytes

INTERVAL_SECONDS = 1.0


class Monitor:
    """Samples a gauge while its block runs.

    Args:
        gauge: what is looked at.
        write: receives every sample, on the monitor's thread.
        warn: told once, on that thread, that more is held than was predicted.
        interval_seconds: between two samples; the first comes at once.

    Attributes:
        step: the caller's; it goes into the samples.
        predicted_bytes: what the job should need of the card, context counted; None is not known.
        latest: the newest reading.
    """

    def __init__(
        self,
        gauge: Gauge,
        write: Callable[[MemorySample], None],
        warn: Callable[[str], None] = lambda message: None,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self.step = 0
        self.predicted_bytes: int | None = None
        self.latest = Reading()
        self._gauge, self._write, self._interval = gauge, write, interval_seconds
        self._warn, self._has_warned = warn, False
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

    def in_short(self) -> str:
        """Return what is held of the card at the most so far, beside what was predicted."""
        held = format_bytes(self._gauge.read().peak_bytes)
        if self.predicted_bytes is None:
            return held
        return _("{held}, predicted {predicted}").format(
            held=held, predicted=format_bytes(self.predicted_bytes)
        )

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
        if self.predicted_bytes is not None and reading.peak_bytes > self.predicted_bytes:
            self._warn_once(reading.peak_bytes, self.predicted_bytes)

    def _warn_once(self, held_bytes: int, predicted_bytes: int) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        self._warn(
            _(
                "Warning: this run holds {held} of the card, more than the {predicted} that were "
                "predicted. Should memory end, the step is run again in smaller micro-batches; "
                "--budget keeps a limit."
            ).format(held=format_bytes(held_bytes), predicted=format_bytes(predicted_bytes))
        )
