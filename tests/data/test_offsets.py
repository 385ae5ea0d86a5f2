"""Law 6: text in, windows, tags, and the very same spans out, whatever the tokenizer does."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_segments import NASTY
from tiny_tokenizers import REAL, TINY, text_tokenizer

from bertfit.data.gold import flat, representable, unit_span, unreachable_kind
from bertfit.data.segments import units_of
from bertfit.data.tags import label_scheme
from bertfit.data.windows import TaggedWindow, merge, windows
from bertfit.types import Entity, Example, LabelScheme, Problem, Split
from shared import shared

SCHEMES = (label_scheme(["A", "O"], "bio"), label_scheme(["A", "O"], "bioes"))
NAMES = [*TINY, *REAL]


@st.composite
def annotated(draw: st.DrawFn) -> Example:
    """A nasty text with random spans: nested, crossing, at spaces, inside letters."""
    text = draw(NASTY)
    entities = []
    for _ in range(draw(st.integers(0, 5)) if text else 0):
        start = draw(st.integers(0, len(text) - 1))
        end = draw(st.integers(start + 1, len(text)))
        entities.append(Entity(start=start, end=end, label=draw(st.sampled_from("AO"))))
    return Example(id="n", text=text, entities=tuple(entities))


def there_and_back(
    records: list[Example],
    name: str,
    split: Split,
    scheme: LabelScheme = SCHEMES[0],
    max_length: int = 14,
    overlap: int = 4,
) -> list[list[Entity]]:
    """What a tagger that learnt its training data by heart would say."""
    found = windows(
        records,
        text_tokenizer(name),
        scheme=scheme,
        max_length=max_length,
        overlap=overlap,
        split=split,
    )
    tagged = (
        TaggedWindow(window=window, tag_ids=np.maximum(window.labels, 0))
        for window in found
        if window.labels is not None
    )
    return list(merge(tagged, scheme, num_examples=len(records)))


def reachable(record: Example, split: Split) -> list[Entity]:
    units = units_of(record, split)
    starts, ends = [a for a, _ in units], [b for _, b in units]
    kept, _dropped = flat(record.entities or ())
    return [e for e in kept if unreachable_kind(record.text, starts, ends, e) is None]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(record=annotated(), scheme=st.sampled_from(SCHEMES), length=st.integers(8, 40))
def test_characters_are_exact_for_every_tokenizer(
    name: str, record: Example, scheme: LabelScheme, length: int
) -> None:
    trimmed = [
        e for e in flat(record.entities or ())[0] if record.text[e.start : e.end].strip() != ""
        and not record.text[e.start].isspace() and not record.text[e.end - 1].isspace()
    ]  # fmt: skip
    assert reachable(record, "characters") == trimmed
    (found,) = there_and_back([record], name, "characters", scheme, length, 2)
    assert [e for e in found if e in trimmed] == trimmed
    # Entities with spaces at their edges come back without them, and nothing else appears.
    at_spaces = len(flat(record.entities or ())[0]) - len(trimmed)
    assert len(found) <= len(trimmed) + at_spaces


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(record=annotated(), scheme=st.sampled_from(SCHEMES), length=st.integers(8, 40))
def test_words_give_back_all_that_whole_words_can_say(
    name: str, record: Example, scheme: LabelScheme, length: int
) -> None:
    (found,) = there_and_back([record], name, "words", scheme, length, 2)
    expected = reachable(record, "words")
    assert [entity for entity in found if entity in expected] == expected
    if len(expected) == len(flat(record.entities or ())[0]):
        assert found == expected
    starts = {start for start, _end in units_of(record, "words")}
    ends = {end for _start, end in units_of(record, "words")}
    for entity in found:
        assert entity.start in starts and entity.end in ends
        surface = record.text[entity.start : entity.end]
        assert surface == surface.strip() != ""


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(record=annotated(), data=st.data())
def test_the_words_of_a_file_get_one_answer_each(
    name: str, record: Example, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(record.text)), max_size=8)))
    file_words = tuple(itertools.pairwise(cuts))
    record = Example(id="w", text=record.text, entities=(), words=file_words)
    found = list(
        windows(
            [record],
            text_tokenizer(name),
            scheme=None,
            max_length=10,
            overlap=2,
            split="words",
        )
    )
    owned = [tuple(u) for w in found for u in w.units[slice(*w.owned)].tolist()]
    assert owned == list(file_words)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("text", "surface"),
    [
        ("  Paris  is", "Paris"),
        ("\n\tParis", "Paris"),
        ("in\r\nNew\r\nYork\r\n", "New\r\nYork"),
        ("\u3000北京\u3000", "北京"),
        ("去\u200b北京\ufeff了", "北京"),
        ("去\u200b北京\ufeff了", "\u200b北"),
        ("❤\ufe0fParis\ufffd!", "Paris"),
        ("\ue000Paris\x07", "\ue000"),
        ("地震7.7级", "7.7"),
        ("地震7.7级", "7"),
        ("on GBF-AOB now", "GBF"),
        ("on GBF-AOB now", "AOB"),
        ("ＡＢＣ１２３中国", "ＡＢＣ"),
        ("ＡＢＣ１２３中国", "１２３"),
        ("ＡＢＣ１２３中国", "国"),
        ("x" * 300 + " Paris", "x" * 300),
        ("𠀀𠀁 𝔘𝔫", "𝔘𝔫"),
        ("hi 👩🏽\u200d💻!", "👩🏽\u200d💻"),
        ("le cafe\u0301 Noir", "cafe\u0301"),
        ("גר בתל אביב.", "בתל אביב"),
        ("(Yahoo!).", "Yahoo!"),
        ("[SEP] [MASK]", "[MASK]"),
        ("㍿ ﬁn", "ﬁn"),
        ("John's car", "John"),
    ],
)
def test_entities_that_have_gone_astray_elsewhere(name: str, text: str, surface: str) -> None:
    start = text.index(surface)
    entity = Entity(start=start, end=start + len(surface), label="A")
    record = Example(id="h", text=text, entities=(entity,))
    for split in ("words", "characters"):
        assert there_and_back([record], name, split, max_length=400) == [[entity]]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("character", "\u200b\ufeff\ufe0f\ufffd\ue000\x00\x07\u00ad\ud800")
def test_a_character_that_a_tokenizer_drops_has_a_token_all_the_same(
    name: str, character: str
) -> None:
    for split in ("words", "characters"):
        cut = text_tokenizer(name).cut(Example(id="d", text=f"a {character} b"), split)  # type: ignore[arg-type]
        assert cut.starts == [0, 2, 4] and all(cut.pieces)
        found = there_and_back([Example(id="d", text=character, entities=())], name, split)  # type: ignore[arg-type]
        assert found == [[]]


# Gold against units.


def spans(*given_spans: tuple[int, int, str]) -> list[Entity]:
    return [Entity(start=a, end=b, label=label) for a, b, label in given_spans]


def test_the_longest_of_overlapping_entities_is_kept() -> None:
    kept, dropped = flat(spans((5, 8, "A"), (0, 6, "A"), (6, 8, "B"), (0, 6, "B"), (8, 9, "A")))
    assert kept == spans((0, 6, "A"), (6, 8, "B"), (8, 9, "A"))
    # Same length: the first in the text, then in the record; (5, 8) is shorter than (0, 6).
    assert dropped == spans((5, 8, "A"), (0, 6, "B"))
    assert flat([]) == ([], [])


@given(record=annotated())
def test_kept_entities_never_overlap_and_each_dropped_one_meets_a_kept_one(
    record: Example,
) -> None:
    kept, dropped = flat(record.entities or ())
    assert sorted([*kept, *dropped]) == sorted(record.entities or ())
    for before, after in itertools.pairwise(kept):
        assert before.end <= after.start
    for entity in dropped:
        rivals = [k for k in kept if k.start < entity.end and entity.start < k.end]
        assert any(k.end - k.start >= entity.end - entity.start for k in rivals)


def test_what_words_cannot_say_is_listed_with_the_f1_it_costs() -> None:
    records = [
        Example(
            id="1",
            text="Yorkers saw New York ",
            entities=tuple(
                spans((0, 4, "A"), (12, 20, "A"), (12, 15, "A"), (16, 21, "A"), (20, 21, "A"))
            ),
        ),
        Example(id="2", text="fine", entities=tuple(spans((0, 4, "A")))),
        Example(id="3", text="not annotated"),
    ]
    problems: list[Problem] = []
    report = representable(records, "words", problems.append)
    assert (report.entities, report.reachable, report.records) == (6, 2, 1)
    assert (report.overlapping, report.edge_inside_unit, report.edge_at_space) == (2, 1, 1)
    assert report.best_f1 == pytest.approx(2 * 2 / (2 + 6))
    assert [p.kind for p in problems] == [
        "overlapping-entities",
        "overlapping-entities",
        "edge-inside-unit",
        "edge-at-space",
    ]
    assert "'York' at 0-4" in problems[2].message and "--split characters" in problems[2].message
    assert representable([], "words").best_f1 == 1.0


def test_a_span_touches_the_units_it_shares_a_code_point_with() -> None:
    starts, ends = [0, 3, 6], [2, 6, 9]
    assert unit_span(starts, ends, Entity(start=1, end=4, label="A")) == (0, 2)
    assert unit_span(starts, ends, Entity(start=2, end=3, label="A")) == (1, 1)
    assert unit_span(starts, ends, Entity(start=6, end=9, label="A")) == (2, 3)


# Real data.


def _cluener(path: Path) -> list[Example]:
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        entities = [
            Entity(start=start, end=end + 1, label=label)
            for label, surfaces in row["label"].items()
            for places in surfaces.values()
            for start, end in places
        ]
        records.append(Example(id=row["text"][:9], text=row["text"], entities=tuple(entities)))
    return records


@pytest.mark.parametrize("name", NAMES)
def test_cluener_comes_back_whole_by_characters(name: str) -> None:
    records = _cluener(shared("data", "cluener", "dev.json"))
    scheme = label_scheme(sorted({e.label for r in records for e in r.entities or ()}), "bio")
    found = there_and_back(records, name, "characters", scheme, 32, 8)
    assert found == [flat(record.entities or ())[0] for record in records]
    report = representable(records, "characters")
    assert (report.entities, report.edge_inside_unit) == (3072, 0)
