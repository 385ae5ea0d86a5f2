import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities  # type: ignore[import-untyped]
from seqeval.scheme import IOB1, IOB2, IOBES, Entities  # type: ignore[import-untyped]

from bertfit.data.tags import (
    SCHEMES,
    Scheme,
    count_orphans,
    detect_scheme,
    encode,
    label_scheme,
    spans,
    split_tag,
    transitions,
)
from bertfit.errors import DataError
from bertfit.types import Encoding, LabelScheme

LABELS = ("PER", "O", "creative-work", "PER.NOM", "B_x", "S-S")


def labelled(max_length: int = 12) -> st.SearchStrategy[tuple[list[tuple[int, int, str]], int]]:
    """Spans that do not overlap, and a length that holds them."""

    @st.composite
    def draw_spans(draw: st.DrawFn) -> tuple[list[tuple[int, int, str]], int]:
        length = draw(st.integers(0, max_length))
        found, position = [], 0
        while position < length:
            gap = draw(st.integers(0, 2))
            size = draw(st.integers(1, 4))
            if position + gap + size > length:
                break
            found.append((position + gap, position + gap + size, draw(st.sampled_from(LABELS))))
            position += gap + size
        return found, length

    return draw_spans()


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "none"])
@given(case=labelled())
def test_spans_come_back_from_every_scheme_without_repair(
    scheme: Scheme, case: tuple[list[tuple[int, int, str]], int]
) -> None:
    expected, length = case
    repairs: list[int] = []
    tags = encode(expected, length, scheme)
    assert spans(tags, scheme, lambda position, kind: repairs.append(position)) == expected
    assert repairs == []


@given(case=labelled())
def test_bare_labels_join_neighbours_of_one_label(
    case: tuple[list[tuple[int, int, str]], int],
) -> None:
    given_spans = [span for span in case[0] if span[2] != "O"]
    tags = encode(given_spans, case[1], "none")
    joined: list[tuple[int, int, str]] = []
    for start, end, label in given_spans:
        if joined and joined[-1][1:] == (start, label):
            joined[-1] = (joined[-1][0], end, label)
        else:
            joined.append((start, end, label))
    assert spans(tags, "none") == joined
    assert spans(tags, "none", one_each=True) == [(i, i + 1, tag) for i, tag in enumerate(tags)]


@pytest.mark.parametrize(
    ("scheme", "tags", "expected", "repairs"),
    [
        ("iob2", "I-PER I-PER", [(0, 2, "PER")], [(0, "orphan-inside")]),
        ("iob2", "O I-PER", [(1, 2, "PER")], [(1, "orphan-inside")]),
        ("iob2", "I-PER I-LOC", [(0, 1, "PER"), (1, 2, "LOC")], [(0, "orphan-inside"), (1, "label-change")]),
        ("iob2", "B-PER I-LOC", [(0, 1, "PER"), (1, 2, "LOC")], [(1, "label-change")]),
        ("iob1", "I-PER I-LOC", [(0, 1, "PER"), (1, 2, "LOC")], []),
        ("iob1", "I-PER B-PER I-PER", [(0, 1, "PER"), (1, 3, "PER")], []),
        ("bmes", "M-PER E-PER", [(0, 2, "PER")], [(0, "orphan-inside")]),
        ("bmes", "E-PER O", [(0, 1, "PER")], [(0, "orphan-end")]),
        ("bmes", "B-PER M-PER O", [(0, 2, "PER")], [(1, "unclosed")]),
        ("bmes", "B-PER B-PER E-PER", [(0, 1, "PER"), (1, 3, "PER")], [(0, "unclosed")]),
        ("bmes", "B-PER M-PER", [(0, 2, "PER")], [(1, "unclosed")]),
        ("bmes", "B-PER E-LOC", [(0, 1, "PER"), (1, 2, "LOC")], [(1, "label-change")]),
        ("bioes", "B-PER S-PER", [(0, 1, "PER"), (1, 2, "PER")], [(0, "unclosed")]),
        ("bioes", "B-PER M-PER E-PER", [(0, 3, "PER")], [(1, "foreign-prefix")]),
        ("bilou", "U-A B-A I-A L-A", [(0, 1, "A"), (1, 4, "A")], []),
        ("bmewo", "W-A B-A M-A E-A O", [(0, 1, "A"), (1, 4, "A")], []),
        ("bmes", "B M E S B E", [(0, 3, "W"), (3, 4, "W"), (4, 6, "W")], []),
        ("iob2", "B-O I-O O B-O", [(0, 2, "O"), (3, 4, "O")], []),
        ("iob2", "B-creative-work I-creative-work", [(0, 2, "creative-work")], []),
        ("iob2", "B-PER.NOM B-PER.NAM", [(0, 1, "PER.NOM"), (1, 2, "PER.NAM")], []),
        ("iob2", "B_PER I_PER", [(0, 2, "PER")], []),
        ("none", "PER PER O LOC", [(0, 2, "PER"), (3, 4, "LOC")], []),
    ],
)  # fmt: skip
def test_sequences_worked_by_hand(
    scheme: Scheme,
    tags: str,
    expected: list[tuple[int, int, str]],
    repairs: list[tuple[int, str]],
) -> None:
    seen: list[tuple[int, str]] = []
    found = spans(tags.split(), scheme, lambda position, kind: seen.append((position, kind)))
    assert (found, seen) == (expected, repairs)


@pytest.mark.parametrize(
    ("scheme", "oracle", "letters"),
    [("iob1", IOB1, "BI"), ("iob2", IOB2, "BI"), ("bioes", IOBES, "BIES")],
)
def test_sequences_that_a_scheme_writes_read_as_seqeval_reads_them(
    scheme: Scheme, oracle: type, letters: str
) -> None:
    alphabet = ["O", *(f"{letter}-{label}" for letter in letters for label in ("A", "B"))]
    compared = 0
    for tags in itertools.product(alphabet, repeat=3):
        found = spans(tags, scheme)
        if encode(found, len(tags), scheme) != list(tags):
            continue  # repaired, or a B- that IOB1 does not ask for, which seqeval drops
        compared += 1
        expected = [
            (entity.start, entity.end, entity.tag)
            for entity in Entities([list(tags)], oracle).entities[0]
        ]
        assert found == expected, tags
    assert compared > 20


@given(tags=st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"]), max_size=10))
def test_the_repair_rule_is_the_one_of_conlleval(tags: list[str]) -> None:
    # seqeval's default mode follows conlleval: ends are inclusive there.
    expected = [(start, end + 1, label) for label, start, end in get_entities(tags)]
    assert spans(tags, "iob2") == expected


@pytest.mark.parametrize("tag", ["X-PER", "PER", "", "B-", "BPER", "b"])
def test_a_tag_without_known_prefix_is_refused(tag: str) -> None:
    with pytest.raises(DataError, match="is not a tag of the schemes"):
        spans(["O", tag], "iob2")


def test_a_tag_splits_at_its_first_hyphen_only() -> None:
    assert split_tag("B-creative-work") == ("B", "creative-work")
    assert split_tag("U-A") == ("S", "A")
    assert split_tag("M-A") == ("I", "A")
    assert split_tag("O") == ("O", "")
    assert split_tag("S") == ("S", "W")


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-A I-A", "iob2"),
        ("O I-A I-B", "iob1"),
        ("O B-A E-A S-A", "bioes"),
        ("O B-A I-A E-A S-A", "bioes"),
        ("O B-A I-A L-A U-A", "bilou"),
        ("O B-A M-A E-A S-A", "bmes"),
        ("B M E S", "bmes"),
        ("O B-A M-A E-A W-A", "bmewo"),
        ("NOUN VERB O", "none"),
        ("O PER LOC", "none"),
        ("O B-A", "iob2"),
        ("b m s n", "none"),
        ("O", "iob2"),
    ],
)
def test_schemes_are_recognised_by_their_prefixes(tags: str, expected: str) -> None:
    assert detect_scheme(dict.fromkeys(tags.split(), 3)) == expected


def test_sequences_tell_iob1_from_iob2() -> None:
    iob1 = ["I-A", "I-A", "O", "I-A", "B-A", "I-A"]
    iob2 = ["B-A", "I-A", "O", "B-A", "B-A", "I-A"]
    assert (count_orphans(iob1), count_orphans(iob2)) == (2, 0)
    assert detect_scheme({"I-A": 4, "B-A": 1, "O": 1}, orphans=2) == "iob1"
    assert detect_scheme({"I-A": 2, "B-A": 3, "O": 1}, orphans=0) == "iob2"


def test_spans_that_overlap_cannot_be_encoded() -> None:
    with pytest.raises(ValueError, match="1, 3"):
        encode([(0, 2, "A"), (1, 3, "A")], 4, "bio")


def test_tags_of_a_model_are_in_a_stable_order() -> None:
    assert label_scheme(["B", "O", "B"], "bio").tags == ("O", "B-B", "I-B", "B-O", "I-O")
    assert label_scheme(["A"], "bioes").tags == ("O", "B-A", "I-A", "E-A", "S-A")
    assert label_scheme(["NOUN", "VERB"], "none").tags == ("NOUN", "VERB")
    assert label_scheme([], "bio").tags == ("O",)


@pytest.mark.parametrize("encoding", ["bio", "bioes"])
def test_transitions_allow_exactly_the_sequences_that_need_no_repair(encoding: Encoding) -> None:
    scheme = label_scheme(["A", "O"], encoding)
    allowed, start, end = transitions(scheme)
    for ids in itertools.product(range(len(scheme.tags)), repeat=3):
        repairs: list[int] = []
        spans(
            [scheme.tags[i] for i in ids],
            encoding,
            lambda position, kind, seen=repairs: seen.append(position),
        )
        legal = (
            start[ids[0]] and end[ids[-1]] and allowed[ids[0], ids[1]] and allowed[ids[1], ids[2]]
        )
        assert legal == (not repairs), [scheme.tags[i] for i in ids]


def test_a_label_without_a_begin_tag_may_begin_with_its_inside_tag() -> None:
    scheme = LabelScheme(labels=("A", "B"), encoding="bio", tags=("O", "I-A", "B-B", "I-B"))
    allowed, start, _end = transitions(scheme)
    assert start.tolist() == [True, True, True, False]
    assert allowed[:, 1].tolist() == [True, True, True, True]
    assert allowed[:, 3].tolist() == [False, False, True, True]


def test_bare_labels_may_follow_each_other_freely() -> None:
    allowed, start, end = transitions(label_scheme(["NOUN", "VERB"], "none"))
    assert np.all(allowed) and np.all(start) and np.all(end)
