"""JSON objects with a text and its spans, however they are spelt.

The text and the spans are found by their names where those are known, else by their shape, so that
an export whose user named the columns himself reads like any other.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bertfit.data.formats.offsets import StoredSpan

TEXT_KEYS = (
    "text",
    "data",
    "content",
    "sentence",
    "column_data",
    "raw_text",
    "context",
    "document",
)
SPAN_KEYS = (
    "entities",
    "label",
    "labels",
    "spans",
    "annotations",
    "annotation",
    "entity_list",
    "column_label",
    "entity",
    "mentions",
    "ner",
)
TOKEN_KEYS = ("tokens", "words", "token", "text", "sentence")
TAG_KEYS = ("ner_tags", "ner_tag", "tags", "tag", "labels", "label", "ner", "pos_tags", "upos")
_START_KEYS = ("start", "start_offset", "begin", "start_idx", "start_pos", "startOffset", "from")
_END_KEYS = ("end", "end_offset", "stop", "end_idx", "end_pos", "endOffset", "to")
_PAIR_KEYS = ("entity_index", "span", "position", "offset", "offsets", "pos", "range", "indices")
_LABEL_KEYS = (
    "label",
    "labels",
    "type",
    "label_type",
    "entity_type",
    "entity_group",
    "tag",
    "category",
    "entity_label",
    "class",
)
_SURFACE_KEYS = ("text", "surface", "word", "mention", "entity", "value", "entity_text", "name")
# What Label Studio and its like write about a record; its text can have any other name.
_ABOUT_KEYS = frozenset(
    [
        "id",
        "annotator",
        "annotation_id",
        "completed_by",
        "created_at",
        "updated_at",
        "created_username",
        "updated_username",
        "file_upload",
        "status",
    ]
)

_SHOWN_CHARACTERS = 80


class SpanRecord(NamedTuple):
    """A record whose text and spans have been found.

    `spans` is None where the record has no annotation; `inclusive` says that its kind (CLUENER)
    counts the end in; `faults` are stored spans that make no sense, as (kind, what was stored).
    """

    text: str
    spans: list[StoredSpan] | None
    inclusive: bool
    faults: list[tuple[str, str]]
    extra: Mapping[str, Any]


def find_text(record: Mapping[str, Any]) -> str | None:
    """Return the key of the text, or None."""
    strings = [key for key, value in record.items() if isinstance(value, str)]
    if not strings:
        return None
    for key in TEXT_KEYS:
        if key in strings:
            return key
    strings = [key for key in strings if key not in _ABOUT_KEYS]
    if len(strings) == 1 and any(holds_spans(value) for value in record.values()):
        return strings[0]
    return None


def find_spans(record: Mapping[str, Any]) -> str | None:
    """Return the key of the spans, or None: first by shape, then by name."""
    named = [key for key in SPAN_KEYS if key in record]
    for key in named:
        if holds_spans(record[key]):
            return key
    for key in named:
        if record[key] in ([], {}, None):
            return key
    for key, value in record.items():
        if holds_spans(value):
            return key
    # Named, yet of no shape that we know: the caller says so.
    return next((key for key in named if isinstance(record[key], list | dict)), None)


def holds_spans(value: Any) -> bool:
    """Say whether a JSON value looks like a list of spans or CLUENER's table of them."""
    if isinstance(value, dict):
        return any(isinstance(inner, dict | list) for inner in value.values()) and all(
            _is_table(inner) for inner in value.values()
        )
    if not isinstance(value, list) or not value:
        return False
    first = value[0]
    if isinstance(first, dict):
        return _pair(first) is not None or "points" in first
    return isinstance(first, list) and _list_span(first) is not None


def _is_table(value: Any) -> bool:
    """`{surface: [[start, end], ...]}`, or `[[start, end], ...]`."""
    ranges = list(value.values()) if isinstance(value, dict) else [value]
    return all(
        isinstance(each, list)
        and each != []
        and (_is_pair(each) or all(_is_pair(pair) for pair in each))
        for each in ranges
    )


def span_record(record: Mapping[str, Any], text_key: str, spans_key: str | None) -> SpanRecord:
    """Take a record apart."""
    text = record[text_key]
    extra = dict(record)
    del extra[text_key]
    stored = extra.pop(spans_key) if spans_key is not None else None
    if stored is None:
        return SpanRecord(text, None, False, [], extra)
    spans: list[StoredSpan] = []
    faults: list[tuple[str, str]] = []
    is_table = isinstance(stored, dict)
    for item in _table_items(stored) if is_table else stored if isinstance(stored, list) else []:
        found = _read_span(item)
        if isinstance(found, str):
            faults.append((found, describe(item)))
        else:
            spans.extend(found)
    if not isinstance(stored, list | dict):
        faults.append(("bad-spans", describe(stored)))
    return SpanRecord(text, spans, is_table, faults, extra)


def _table_items(table: Mapping[str, Any]) -> Iterator[Any]:
    """Turn `{type: {surface: [[start, end]]}}` into span dictionaries."""
    for label, by_surface in table.items():
        surfaces = by_surface if isinstance(by_surface, dict) else {None: by_surface}
        for surface, ranges in surfaces.items():
            if not isinstance(ranges, list):
                yield {label: by_surface}
                continue
            for pair in [ranges] if _is_pair(ranges) else ranges:
                yield {"span": pair, "label": label, "text": surface}


def _read_span(item: Any) -> list[StoredSpan] | str:
    """Return the spans of one stored item, or the kind of its fault."""
    if isinstance(item, list):
        found = _list_span(item)
        return [found] if found is not None else "bad-span"
    if not isinstance(item, dict):
        return "bad-span"
    labels = _labels(item)
    points = item.get("points")
    places = points if isinstance(points, list) else [item]
    spans: list[StoredSpan] = []
    for place in places:
        pair = _pair(place) if isinstance(place, dict) else None
        if pair is None:
            return "bad-span"
        surface = next(
            (place[key] for key in _SURFACE_KEYS if _is_surface(place, key, labels)), None
        )
        spans.extend(StoredSpan(*pair, label, surface) for label in labels)
    return spans if labels else "no-label"


def _is_surface(place: Mapping[str, Any], key: str, labels: list[str]) -> bool:
    return isinstance(place.get(key), str) and place[key] not in labels


def _labels(item: Mapping[str, Any]) -> list[str]:
    for key in (*_LABEL_KEYS, "entity"):
        value = item.get(key)
        values = value if isinstance(value, list) else [value]
        names = [str(each) for each in values if isinstance(each, str | int) and each != ""]
        if names and not any(isinstance(each, bool) for each in values):
            return names
    # A field of another name: the one string that is neither the surface nor an id.
    rest = [
        value
        for key, value in item.items()
        if isinstance(value, str) and value and key not in _SURFACE_KEYS and "id" not in key.lower()
    ]
    return rest if len(rest) == 1 else []


def _pair(item: Mapping[str, Any]) -> tuple[int, int] | None:
    start, end = _edge(item, _START_KEYS, "start", "begin"), _edge(item, _END_KEYS, "end", "stop")
    if end is None and start is not None and _integer(item.get("length")) is not None:
        return _pair({"offset": start, "length": item["length"]})
    if start is None and end is None:
        for key in _PAIR_KEYS:
            value = item.get(key)
            if isinstance(value, dict):
                return _pair(value)
            if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
                value = value[0]
            if isinstance(value, list) and _is_pair(value):
                return _integer(value[0]), _integer(value[1])  # type: ignore[return-value]
        start, length = _integer(item.get("offset")), _integer(item.get("length"))
        return None if start is None or length is None else (start, start + length)
    first, last = _integer(start), _integer(end)
    return None if first is None or last is None else (first, last)


def _edge(item: Mapping[str, Any], known: Sequence[str], *parts: str) -> Any:
    """Return a stored edge: under a known name, else under one number whose name tells."""
    for key in known:
        if key in item:
            return item[key]
    telling = [
        value
        for key, value in item.items()
        if _integer(value) is not None and any(part in key.lower() for part in parts)
    ]
    return telling[0] if len(telling) == 1 else None


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(_integer(each) is not None for each in value)
    )


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) < 19 and value.strip().removeprefix("-").isdecimal():
        return int(value)
    return None


def _list_span(item: list[Any]) -> StoredSpan | None:
    """Read `[start, end, label]`, with the label first or a surface anywhere as well."""
    numbers = [each for each in item if isinstance(each, int) and not isinstance(each, bool)]
    names = [each for each in item if isinstance(each, str)]
    if len(numbers) == 3 and not names and len(item) == 3:
        return StoredSpan(item[0], item[1], str(item[2]))
    if len(numbers) != 2 or not names or len(names) > 2 or len(item) != len(numbers) + len(names):
        return None
    if len(names) == 1:
        return StoredSpan(numbers[0], numbers[1], names[0])
    # [surface, start, end, label] and [start, end, label, surface] both occur.
    label, surface = (names[0], names[1]) if isinstance(item[0], int) else (names[1], names[0])
    return StoredSpan(numbers[0], numbers[1], label, surface)


def describe(value: Any) -> str:
    """Show a value in a message, briefly; it may be nested deeper than `repr` can go."""
    try:
        text = repr(value[:_SHOWN_CHARACTERS] if isinstance(value, str) else value)
    except RecursionError:
        return "[[[..."
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
