"""Where the two entities of a relation are, however a corpus says it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertfit.data.mentions import (
    Mentions,
    inner_spans,
    mentions_of,
    put_markers,
    strip_markers,
)
from bertfit.errors import DataError
from bertfit.types import Entity, Example


def surfaces(mentions: Mentions) -> list[str]:
    return [mentions.text[start:end] for start, end in mentions.spans]


@pytest.mark.parametrize(
    ("marked", "text", "entities"),
    [
        ("[E1]Rome[/E1] is in [E2]Italy[/E2].", "Rome is in Italy.", ["Rome", "Italy"]),
        ("[E1] Rome [/E1] is in [E2] Italy [/E2] .", "Rome is in Italy .", ["Rome", "Italy"]),
        ("The <e2>cup</e2> held <e1>tea</e1>.", "The cup held tea.", ["tea", "cup"]),
        ("[E1]北京[/E1]在[E2]中国[/E2]", "北京在中国", ["北京", "中国"]),
        (
            "[E1][E2]New York[/E2] University[/E1]",
            "New York University",
            ["New York University", "New York"],
        ),
    ],
)
def test_markers_are_taken_out(marked: str, text: str, entities: list[str]) -> None:
    found = strip_markers(marked)
    assert found is not None
    assert found.text == text
    assert surfaces(found) == entities


def test_a_text_without_markers_has_none() -> None:
    assert strip_markers("no [E3] here") is None


@pytest.mark.parametrize(
    ("marked", "fault"),
    [
        ("[E1]a[/E1] [E2]b", "[/E2] is missing"),
        ("[E1]a[/E1] b", "[E2] is missing"),
        ("[E1]a[E1] b", "[E1] comes twice"),
        ("[E1][/E1] [E2]b[/E2]", "nothing stands between"),
    ],
)
def test_broken_markers_are_refused(marked: str, fault: str) -> None:
    with pytest.raises(DataError) as caught:
        strip_markers(marked)
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    "extra",
    [
        {"e1": [0, 4], "e2": [11, 16]},
        {"e1": (0, 4), "e2": (11, 16)},
        {"e1": {"start": 0, "end": 4}, "e2": {"start": 11, "end": 16}},
        {"h": {"name": "Rome", "pos": [0, 4]}, "t": {"name": "Italy", "pos": [11, 16]}},
        {"head": [0, 4], "tail": [11, 16]},
    ],
)
def test_fields_may_say_the_spans(extra: dict[str, object]) -> None:
    found = mentions_of(Example(id="1", text="Rome is in Italy.", extra=extra))
    assert surfaces(found) == ["Rome", "Italy"]


def test_entities_may_say_the_spans() -> None:
    entities = (Entity(start=11, end=16, label="E2"), Entity(start=0, end=4, label="e1"))
    found = mentions_of(Example(id="1", text="Rome is in Italy.", entities=entities))
    assert surfaces(found) == ["Rome", "Italy"]


@pytest.mark.parametrize(
    ("extra", "fault"),
    [
        ({}, "no entity pair"),
        ({"e1": [0, 4], "e2": [11, 99]}, "11-99 of e2 lies outside the text of 17"),
        ({"e1": [4, 4], "e2": [11, 16]}, "4-4 of e1"),
        ({"e1": "Rome", "e2": [11, 16]}, "e1 is no span"),
        ({"e1": [None, 3], "e2": [11, 16]}, "e1 is no span"),
    ],
)
def test_faulty_pairs_are_refused(extra: dict[str, object], fault: str) -> None:
    with pytest.raises(DataError) as caught:
        mentions_of(Example(id="1", text="Rome is in Italy.", extra=extra))
    assert fault in str(caught.value)


def ranges(length: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, length - 1), st.integers(1, length)).filter(
        lambda pair: pair[0] < pair[1]
    )


@given(ranges(12), ranges(12))
def test_markers_put_in_say_the_spans_again(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    """Whatever the spans: apart, nested, equal or crossing."""
    mentions = Mentions(text="abcdefghijkl", spans=(first, second))
    marked, openings = put_markers(mentions)
    assert [marked[a:b] for a, b in openings] == ["[E1]", "[E2]"]
    assert strip_markers(marked) == mentions
    for span, (start, end) in zip(mentions.spans, inner_spans(mentions, marked), strict=True):
        inside = marked[start:end]
        for marker in ("[E1]", "[/E1]", "[E2]", "[/E2]"):
            inside = inside.replace(marker, "")
        assert inside == mentions.text[span[0] : span[1]]
