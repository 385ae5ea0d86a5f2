"""The two entities of a relation: where they are in a text, however a corpus says it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertfit.errors import DataError
from bertfit.language import _
from bertfit.types import Example

Span = tuple[int, int]

# `[E1]...[/E1]` (BERT relation models), `<e1>...</e1>` (SemEval 2010 task 8).
_MARKER = re.compile(r"\[(/?)E([12])\]|<(/?)e([12])>")
MARKERS = ("[E1]", "[/E1]", "[E2]", "[/E2]")
_KEYS = (("e1", "e2"), ("h", "t"), ("head", "tail"), ("subj", "obj"), ("subject", "object"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mentions:
    """A text without markers, and the spans of its first and its second entity."""

    text: str
    spans: tuple[Span, ...]


def mentions_of(example: Example) -> Mentions:
    """Find the two entities of an example: in its fields, as markers, or labelled `e1` and `e2`.

    Raises:
        DataError: there are none, or they are not in the text.
    """
    marked = strip_markers(example.text)
    if marked is not None:
        return marked
    for first, second in _KEYS:
        if first in example.extra and second in example.extra:
            spans = tuple(_span(example.extra[key], key, example.text) for key in (first, second))
            return Mentions(text=example.text, spans=spans)
    labelled = {entity.label.lower(): entity for entity in example.entities or ()}
    if "e1" in labelled and "e2" in labelled:
        return Mentions(
            text=example.text,
            spans=tuple((labelled[key].start, labelled[key].end) for key in ("e1", "e2")),
        )
    raise DataError(
        _(
            "no entity pair. Give the fields e1 and e2 as [start, end], or mark them in the text: "
            "[E1]...[/E1] and [E2]...[/E2]."
        )
    )


def strip_markers(text: str) -> Mentions | None:
    """Take the markers out of a text; None where it has none.

    One space that only stood beside a marker goes with it: `[E1] Rome [/E1]` is `Rome`.

    Raises:
        DataError: a marker is missing or comes twice.
    """
    found = list(_MARKER.finditer(text))
    if not found:
        return None
    parts: list[str] = []
    places: dict[tuple[str, str], int] = {}
    length = position = 0
    for match in found:
        closing = match.group(1) or match.group(3) or ""
        key = (match.group(2) or match.group(4), closing)
        piece = text[position : match.start()]
        if closing:
            piece = piece[:-1] if piece.endswith(" ") and length + len(piece) > 1 else piece
        parts.append(piece)
        length += len(piece)
        position = match.end()
        if not closing and text[position : position + 1] == " ":
            position += 1
        if key in places:
            raise DataError(_("the marker {marker} comes twice.").format(marker=match.group()))
        places[key] = length
    parts.append(text[position:])
    wanted = [(number, closing) for number in "12" for closing in ("", "/")]
    missing = [
        f"[{closing}E{number}]" for number, closing in wanted if (number, closing) not in places
    ]
    if missing:
        raise DataError(_("the marker {marker} is missing.").format(marker=missing[0]))
    plain = "".join(parts)
    spans = tuple((places[number, ""], places[number, "/"]) for number in "12")
    for start, end in spans:
        if start >= end:
            raise DataError(_("nothing stands between two markers."))
    return Mentions(text=plain, spans=spans)


def put_markers(mentions: Mentions) -> tuple[str, list[Span]]:
    """Write markers around both entities.

    Returns:
        The marked text, and where the opening marker of each entity is in it.
    """
    edges = []
    for number, (start, end) in enumerate(mentions.spans, 1):
        # At one place: what closes comes first, and of two that open the longer is outside.
        edges.append((end, 0, start, f"[/E{number}]"))
        edges.append((start, 1, -end, f"[E{number}]"))
    parts: list[str] = []
    opened: dict[str, Span] = {}
    length = position = 0
    for place, __, __, marker in sorted(edges):
        piece = mentions.text[position:place]
        parts += [piece, marker]
        length += len(piece)
        opened[marker] = (length, length + len(marker))
        length += len(marker)
        position = place
    parts.append(mentions.text[position:])
    return "".join(parts), [opened[f"[E{n}]"] for n in range(1, len(mentions.spans) + 1)]


def inner_spans(mentions: Mentions, marked: str) -> list[Span]:
    """Return where the entities are in their marked text, inside the markers."""
    return [
        (marked.index(f"[E{n}]") + 4, marked.index(f"[/E{n}]"))
        for n in range(1, len(mentions.spans) + 1)
    ]


def _span(value: Any, key: str, text: str) -> Span:
    pair = _pair(value)
    if pair is None:
        raise DataError(_("the field {key} is no span: write it as [start, end].").format(key=key))
    start, end = pair
    if not 0 <= start < end <= len(text):
        raise DataError(
            _(
                "the span {start}-{end} of {key} lies outside the text of {length} characters."
            ).format(start=start, end=end, key=key, length=len(text))
        )
    return pair


def _pair(value: Any) -> Span | None:
    if isinstance(value, Mapping):
        for key in ("pos", "span", "position", "offsets"):
            if key in value:
                return _pair(value[key])
        value = [value.get("start"), value.get("end")]
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) < 2:
        return None
    start, end = value[0], value[1]
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    return start, end
