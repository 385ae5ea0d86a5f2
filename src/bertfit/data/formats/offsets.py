"""What stored offsets count, found out from the surface text that is stored next to them.

Annotation tools count code points, UTF-16 units (JavaScript, Java) or UTF-8 bytes; most ends are
exclusive, some inclusive. A `Convention` is one such way of counting.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from bertfit.data.formats.options import OffsetUnit

_SPACE = re.compile(r"\s")

Ends = Literal["exclusive", "inclusive"]


@dataclass(frozen=True, slots=True)
class Convention:
    """What an offset counts, and whether the end belongs to the span."""

    unit: OffsetUnit = "code-points"
    ends: Ends = "exclusive"


CONVENTIONS = tuple(
    Convention(unit, ends)
    for ends in ("exclusive", "inclusive")
    for unit in ("code-points", "utf16", "bytes")
)


class StoredSpan(NamedTuple):
    """A span as a file holds it: offsets in the file's own counting, and its surface if stored."""

    start: int
    end: int
    label: str
    surface: str | None = None


class Verdicts:
    """Remembers which convention the records of a file have proved, and how often.

    Only a record that fits exactly one convention proves anything; all-ASCII records fit three.
    """

    def __init__(self, preferred: Convention = CONVENTIONS[0]) -> None:
        """Prefer one convention until a record proves another."""
        self._preferred = preferred
        self._proved: Counter[Convention] = Counter()
        self._orders: dict[OffsetUnit | None, Sequence[Convention]] = {}

    def prove(self, convention: Convention) -> None:
        """Note a record that fits this convention and no other."""
        self._proved[convention] += 1
        self._orders.clear()

    @property
    def established(self) -> Convention | None:
        """The convention proved most often, or None."""
        return self._proved.most_common(1)[0][0] if self._proved else None

    def order(self, options_unit: OffsetUnit | None) -> Sequence[Convention]:
        """All conventions that are allowed, the likeliest first."""
        order = self._orders.get(options_unit)
        if order is None:
            likely = [self.established or self._preferred, self._preferred]
            ordered = dict.fromkeys([*likely, *CONVENTIONS])
            order = tuple(each for each in ordered if options_unit in (None, each.unit))
            self._orders[options_unit] = order
        return order


def choose(text: str, spans: Sequence[StoredSpan], candidates: Sequence[Convention]) -> Convention:
    """Return the convention under which most surfaces are where the offsets say.

    Args:
        text: The untouched text.
        spans: Spans of which at least one has its surface.
        candidates: The conventions to try; the earliest wins among equals.
    """
    return max(candidates, key=lambda each: count_matches(text, spans, each))


def proves(text: str, spans: Sequence[StoredSpan], convention: Convention) -> bool:
    """Say whether every surface fits this convention and some surface no other."""
    known = [span for span in spans if span.surface is not None]
    if not known or count_matches(text, known, convention) < len(known):
        return False
    return all(
        count_matches(text, known, other) < len(known)
        for other in CONVENTIONS
        if other != convention
    )


def count_matches(text: str, spans: Sequence[StoredSpan], convention: Convention) -> int:
    """Count the spans whose stored surface is what the offsets cut out."""
    cut = cutter(text, convention)
    return sum(
        span.surface is not None and same_surface(_slice(text, cut(span.start, span.end)), span)
        for span in spans
    )


def same_surface(found: str | None, span: StoredSpan) -> bool:
    """Compare a surface with the stored one; tools write line breaks in other ways."""
    stored = span.surface
    if found == stored:
        return True
    if found is None or stored is None:
        return False
    stored = stored.replace("\\n", "\n")
    # Nested spans may be as many as they are long: only what can be equal is looked through.
    return len(found) == len(stored) and _SPACE.sub(" ", found) == _SPACE.sub(" ", stored)


def _slice(text: str, span: tuple[int, int] | None) -> str | None:
    return None if span is None else text[span[0] : span[1]]


def cutter(text: str, convention: Convention) -> Callable[[int, int], tuple[int, int] | None]:
    """Return the function from stored (start, end) to code points.

    It returns None where an offset is outside the text or inside a character.
    """
    shift = 1 if convention.ends == "inclusive" else 0
    length = len(text)
    positions = _positions(text, convention.unit)

    def cut(start: int, end: int) -> tuple[int, int] | None:
        end += shift
        if positions is None:
            return (start, end) if 0 <= start <= end <= length else None
        first, last = positions.get(start), positions.get(end)
        return None if first is None or last is None or first > last else (first, last)

    return cut


def _positions(text: str, unit: OffsetUnit) -> dict[int, int] | None:
    """Map offsets in `unit` to code points; None where they are the same."""
    if unit == "code-points" or text.isascii():
        return None
    if unit == "utf16":
        if not has_astral(text):
            return None
        sizes = [2 if character > "\uffff" else 1 for character in text]
    else:
        sizes = [_utf8_size(character) for character in text]
    positions, offset = {}, 0
    for index, size in enumerate(sizes):
        positions[offset] = index
        offset += size
    positions[offset] = len(text)
    return positions


def _utf8_size(character: str) -> int:
    return 1 + (character > "\x7f") + (character > "\u07ff") + (character > "\uffff")


def has_astral(text: str) -> bool:
    """Say whether a character lies beyond the BMP, where UTF-16 counts two."""
    return not text.isascii() and max(text) > "\uffff"
