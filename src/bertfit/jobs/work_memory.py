"""Batches that do not fit are cut, and what fits is remembered: inference does not run out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch

from bertfit.engine.oom import Card, Done, attempt
from bertfit.memory.gauges import gauge_of
from bertfit.types import Window

R = TypeVar("R")


class WorkMemory:
    """The memory of a device, and how many padded tokens it was found to hold at once."""

    def __init__(self, device: torch.device) -> None:
        self._card: Card = gauge_of(device)
        self._fits_tokens: int | None = None

    def run_all(
        self,
        batches: Iterable[Sequence[Window]],
        work: Callable[[Sequence[Window]], R],
        on_unfit: Callable[[Window], None],
    ) -> Iterator[tuple[Sequence[Window], R]]:
        """Run work over batches, in halves where one does not fit.

        What did not fit once is not tried again: later batches are cut to what did.

        Args:
            batches: windows, the longest of each batch first.
            work: what to do with a batch.
            on_unfit: told of a window that does not fit alone; it is left out.

        Yields:
            What was done at once, and its result.
        """
        for batch in batches:
            waiting = [batch]
            while waiting:
                part = waiting.pop()
                tokens = len(part) * max(len(window.input_ids) for window in part)
                too_many = self._fits_tokens is not None and tokens > self._fits_tokens
                if not (too_many and len(part) > 1):
                    done = attempt(partial(work, part), self._card)
                    if isinstance(done, Done):
                        yield part, done.value
                        continue
                    if len(part) == 1:
                        on_unfit(part[0])
                        continue
                    self._fits_tokens = min(self._fits_tokens or tokens, tokens) // 2
                half = len(part) // 2
                waiting += [part[half:], part[:half]]
