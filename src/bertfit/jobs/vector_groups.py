"""Which tokens of a chunk are pooled into which vector, and the vectors as batches bring them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertfit.data.mentions import Span
from bertfit.engine.pooling import Reduction
from bertfit.errors import DataError
from bertfit.jobs.chunks import Chunk
from bertfit.language import _
from bertfit.types import Window

Vectors = NDArray[np.float32]


class VectorGroups:
    """Which tokens of a chunk go into which vector, and the vectors as they come.

    A group is one vector; the groups of an example are neighbours.
    """

    def __init__(self, chunk: Chunk, hidden_size: int, reduction: Reduction) -> None:
        self.reduction: Reduction = reduction
        self._windows: dict[int, list[Window]] = {}
        for window in chunk.windows:
            self._windows.setdefault(window.index, []).append(window)
        self._hidden_size = hidden_size
        self._tokens: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._groups: dict[int, tuple[int, int]] = {}
        self._num_groups = 0
        self._sums: Vectors | None = None
        self._counts: NDArray[np.int64] | None = None

    def add_sentences(self, only_first: bool) -> None:
        """Want one vector of each example: of all its tokens, or of the first (`[CLS]`)."""
        for index, windows in self._windows.items():
            begin = self._new_groups(index, 1)
            for window in windows:
                first, last = window.owned
                # Special tokens belong to the text's ends, as where it is read whole.
                left = 0 if first == 0 else _position(window, first)
                right = (
                    len(window.input_ids) if last == len(window.units) else _position(window, last)
                )
                if only_first:
                    left, right = 0, int(window is windows[0])
                self._want(window, np.arange(left, right), np.full(max(right - left, 0), begin))

    def add_tokens(self) -> None:
        """Want the vector of every token."""
        for index, windows in self._windows.items():
            counts = [window.owned[1] - window.owned[0] for window in windows]
            begin = self._new_groups(index, sum(counts))
            for window, count in zip(windows, counts, strict=True):
                tokens = window.first_token[window.owned[0] : window.owned[1]].astype(np.int64)
                self._want(window, tokens, np.arange(begin, begin + count))
                begin += count

    def add_spans(self, index: int, spans: Sequence[Span], only_first: bool) -> None:
        """Want the vectors of spans of an example: of their tokens, or of the first of each.

        Raises:
            DataError: a span has no token.
        """
        begin = self._new_groups(index, len(spans))
        chosen: list[tuple[Window, list[int], list[int]]] = []
        covered = set()
        for window in self._windows[index]:
            positions: list[int] = []
            groups: list[int] = []
            own = np.arange(window.owned[0], window.owned[1])
            units = window.units[window.owned[0] : window.owned[1]]
            for number, (start, end) in enumerate(spans):
                inside = own[
                    (units[:, 0] < end) & (units[:, 1] > start) & (units[:, 0] < units[:, 1])
                ]
                if only_first:
                    inside = inside[:1] if number not in covered else inside[:0]
                if len(inside):
                    covered.add(number)
                positions += window.first_token[inside].tolist()
                groups += [begin + number] * len(inside)
            chosen.append((window, positions, groups))
        if len(covered) < len(spans):
            del self._groups[index]
            raise DataError(_("the model's tokenizer gives an entity no token."))
        for window, positions, groups in chosen:
            self._want(window, np.array(positions, np.int64), np.array(groups, np.int64))

    def _new_groups(self, index: int, count: int) -> int:
        begin = self._num_groups
        self._groups[index] = (begin, begin + count)
        self._num_groups += count
        return begin

    def _want(self, window: Window, tokens: NDArray[np.int64], groups: NDArray[np.int64]) -> None:
        if len(tokens):
            self._tokens[id(window)] = (tokens, groups)

    def needs(self, window: Window) -> bool:
        """Say whether a window has a token that is wanted."""
        return id(window) in self._tokens

    def tokens_of(
        self, part: Sequence[Window]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return row, position and group of every wanted token of a batch."""
        found = [self._tokens[id(window)] for window in part]
        rows = np.repeat(np.arange(len(part)), [len(tokens) for tokens, __ in found])
        return (
            rows,
            np.concatenate([tokens for tokens, __ in found]),
            np.concatenate([groups for __, groups in found]),
        )

    def take(self, part: Sequence[Window], pooled: Vectors) -> None:
        """Add what a batch gave to what the windows before gave."""
        if self._sums is None or self._counts is None:
            start = 0.0 if self.reduction == "mean" else -np.inf
            self._sums = np.full((self._num_groups, self._hidden_size), start, dtype=np.float32)
            self._counts = np.zeros(self._num_groups, dtype=np.int64)
        __, __, groups = self.tokens_of(part)
        present, counts = np.unique(groups, return_counts=True)
        self._counts[present] += counts
        if self.reduction == "mean":
            self._sums[present] += pooled
        else:
            self._sums[present] = np.maximum(self._sums[present], pooled)

    def vectors(self, index: int) -> Vectors | None:
        """Return the vectors (G, H) of an example; None where none were wanted."""
        if index not in self._groups:
            return None
        first, last = self._groups[index]
        if self._sums is None or self._counts is None:
            return np.zeros((last - first, self._hidden_size), dtype=np.float32)
        found = self._sums[first:last].copy()
        if self.reduction == "mean":
            found /= np.maximum(self._counts[first:last, None], 1)
        return found

    def offsets(self, index: int) -> NDArray[np.int32]:
        """Return where the tokens of an example are: (T, 2)."""
        return np.concatenate(
            [window.units[window.owned[0] : window.owned[1]] for window in self._windows[index]]
        )


def _position(window: Window, unit: int) -> int:
    return int(window.first_token[unit])
