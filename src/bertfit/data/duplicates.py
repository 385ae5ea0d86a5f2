"""Texts that occur twice, and texts of two files that nearly agree, in near-linear time.

Equal texts are found by sorting 64-bit hashes. Near ones by MinHash: the share of equal minima
estimates the Jaccard similarity of the sets of character triples; texts whose minima agree in one
of ten bands of three are candidates, and candidates are compared exactly.

Source: Broder 1997, "On the resemblance and containment of documents"; Leskovec, Rajaraman,
Ullman, "Mining of Massive Datasets", 3.4 (bands).
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIMILAR = 0.75
_BANDS, _ROWS = 10, 3
_MAX_CHARACTERS = 5000  # of a long text, the beginning decides
_MIN_CHARACTERS = 8  # shorter texts agree by chance
_MAX_GROUP = 40  # of one boilerplate line, so many copies are compared

_random = np.random.default_rng(20170911)
_FACTORS = _random.integers(1, 1 << 62, size=_BANDS * _ROWS, dtype=np.uint64) | np.uint64(1)
_BAND_FACTORS = _random.integers(1, 1 << 62, size=_ROWS, dtype=np.uint64) | np.uint64(1)


@dataclass(frozen=True, slots=True)
class Twin:
    """Two records, by their position: `second` repeats or resembles `first`."""

    first: int
    second: int
    same_annotation: bool
    similarity: float = 1.0


class TextIndex:
    """Some 30 bytes for every text, and 80 more where near duplicates are wanted."""

    def __init__(self, *, near: bool) -> None:
        """Keep MinHash bands only if near duplicates between files are wanted."""
        self._near = near
        self._texts = array("q")
        self._annotations = array("q")
        self.files = array("H")
        self.lines = array("L")
        self._bands: list[NDArray[np.uint64]] = []

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, text: str, annotation: int, file: int, line: int) -> None:
        """Add a record: its text, a hash of its annotation, its file and line."""
        self._texts.append(hash(text))
        self._annotations.append(annotation)
        self.files.append(file)
        self.lines.append(line)
        if self._near:
            self._bands.append(_text_bands(text, len(self._bands)))

    def equal(self) -> Iterator[Twin]:
        """Yield every record whose text an earlier one has, with the earliest."""
        texts = np.frombuffer(self._texts, dtype=np.int64) if len(self) else np.zeros(0, np.int64)
        order = np.argsort(texts, kind="stable")
        ordered = texts[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        ends = np.r_[starts[1:], len(ordered)]
        twins = [
            (int(second), int(order[start]))
            for start, end in zip(starts, ends, strict=True)
            if end - start > 1
            for second in order[start + 1 : end]
        ]
        for second, first in sorted(twins):
            same = self._annotations[first] == self._annotations[second]
            yield Twin(first, second, same)

    def candidates(self) -> list[tuple[int, int]]:
        """Return pairs of records of different files whose texts may nearly agree."""
        if not self._bands:
            return []
        bands = np.stack(self._bands)
        files = np.frombuffer(self.files, dtype=np.uint16)
        found: set[tuple[int, int]] = set()
        for band in range(_BANDS):
            column = bands[:, band]
            order = np.argsort(column, kind="stable")
            ordered = column[order]
            starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
            ends = np.r_[starts[1:], len(ordered)]
            for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
                group = order[start : min(end, start + _MAX_GROUP)]
                if len(set(files[group].tolist())) > 1:
                    found.update(self._pairs(group))
        return sorted(found)

    def _pairs(self, group: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        members = sorted(group.tolist())
        for position, second in enumerate(members):
            for first in members[:position]:
                different = self._texts[first] != self._texts[second]
                if different and self.files[first] != self.files[second]:
                    yield first, second


def _normalised(text: str) -> str:
    """Letters and digits only, in one case: what punctuation and spacing do not change."""
    folded = text.casefold()
    return folded if folded.isalnum() else "".join(filter(str.isalnum, folded))


def triples(text: str) -> set[str]:
    """Return the character triples of a text without its signs and spaces."""
    letters = _normalised(text)[:_MAX_CHARACTERS]
    return {letters[i : i + 3] for i in range(len(letters) - 2)}


def similarity(first: set[str], second: set[str]) -> float:
    """Return the Jaccard similarity of two sets of triples."""
    union = len(first | second)
    return len(first & second) / union if union else 0.0


def _text_bands(text: str, number: int) -> NDArray[np.uint64]:
    """Return one hash per band; texts too short to compare get hashes that no other has."""
    letters = _normalised(text)[:_MAX_CHARACTERS]
    if len(letters) < _MIN_CHARACTERS:
        return np.full(_BANDS, number, dtype=np.uint64)
    codes = np.frombuffer(letters.encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
    grams = (codes[:-2] << np.uint64(42)) ^ (codes[1:-1] << np.uint64(21)) ^ codes[2:]
    mixed = (grams ^ (grams >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (mixed[:, None] ^ (mixed[:, None] >> np.uint64(32))) * _FACTORS
    minima = (hashes >> np.uint64(20)).min(axis=0).reshape(_BANDS, _ROWS)
    bands: NDArray[np.uint64] = (minima * _BAND_FACTORS).sum(axis=1, dtype=np.uint64)
    return bands
