import time
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import REAL, SENTENCES, TINY, backend, text_tokenizer

from bertfit.data.pieces import MAX_PIECES, flatten, unknown_share
from bertfit.data.tags import label_scheme
from bertfit.data.windows import TaggedWindow, merge, windows
from bertfit.errors import ConfigError
from bertfit.types import IGNORED, Entity, Example, LabelScheme, Problem, Source, Split, Window

BIO = label_scheme(["PER", "LOC"], "bio")
BIOES = label_scheme(["PER", "LOC"], "bioes")


def example(text: str, *spans: tuple[int, int, str], annotated: bool = True) -> Example:
    entities = tuple(Entity(start=a, end=b, label=label) for a, b, label in spans)
    return Example(
        id="x",
        text=text,
        entities=entities if annotated else None,
        source=Source(path="train.json", line=7),
    )


def cut(
    *examples: Example,
    tokenizer: str = "wordpiece",
    scheme: LabelScheme | None = BIO,
    max_length: int = 64,
    overlap: int = 8,
    split: Split = "words",
    problems: list[Problem] | None = None,
) -> list[Window]:
    return list(
        windows(
            examples,
            text_tokenizer(tokenizer),
            scheme=scheme,
            max_length=max_length,
            overlap=overlap,
            split=split,
            on_problem=problems.append if problems is not None else None,
        )
    )


def with_labels(found: list[Window]) -> Iterator[TaggedWindow]:
    """A tagger that is always right, and that says nonsense about units it does not own."""
    for window in found:
        assert window.labels is not None
        yield TaggedWindow(window=window, tag_ids=np.where(window.labels < 0, 1, window.labels))


# Ids.


PLAIN = (
    "The committee didn't meet in Geneva, because Dr. Weiss couldn't travel.",
    "She's written about rivers; they're long and the 1990s were dry: see page two.",
    "We'll see, Jean-Luc said on the 21st.",
)


@pytest.mark.parametrize("name", [*TINY, *REAL])
@pytest.mark.parametrize("text", PLAIN)
def test_ordinary_english_gives_the_tokenizers_own_ids(name: str, text: str) -> None:
    own = backend(name).encode(text, add_special_tokens=False)
    # A lone "▁" or "Ġ" stands for white space alone, which no unit holds.
    expected = [i for i, token in zip(own.ids, own.tokens, strict=True) if token not in "▁Ġ"]
    assert flatten(text_tokenizer(name).cut(example(text), "words").pieces) == expected


@pytest.mark.parametrize("name", ["wordpiece", "minilm"])
def test_wordpiece_ids_are_the_tokenizers_own_in_every_sentence(name: str) -> None:
    for text in SENTENCES:
        mine = flatten(text_tokenizer(name).cut(example(text), "words").pieces)
        assert mine == backend(name).encode(text, add_special_tokens=False).ids


def pieces(name: str, text: str, split: Split = "words") -> list[list[str]]:
    found = text_tokenizer(name).cut(example(text), split).pieces
    return [[backend(name).id_to_token(i) for i in ids] for ids in found]


def test_only_the_units_under_a_torn_token_are_tokenised_anew() -> None:
    # Unigram reads 'ab1', '3.5' and ').' as one piece each.
    assert pieces("unigram", "ab1 met).") == [["▁a", "b"], ["1"], ["▁m", "e", "t"], [")"], ["."]]
    assert pieces("unigram", "(3.5).") == [["▁("], ["3"], ["."], ["5"], [")"], ["."]]


def test_ideographs_carry_no_mark_of_a_words_beginning() -> None:
    assert pieces("unigram", "中国 张三") == [["中"], ["国"], ["张"], ["三"]]
    assert pieces("unigram", "中国 张三", "characters") == [["中"], ["国"], ["张"], ["三"]]
    assert pieces("prepend-bpe", "中 the张the") == [["中"], ["▁the"], ["张"], ["the"]]


def test_a_word_after_white_space_is_marked_and_one_after_none_is_not() -> None:
    assert pieces("byte-bpe", "the\n the(the")[1] == pieces("byte-bpe", "x the")[-1]
    assert pieces("prepend-bpe", "the, the\u3000the\tthe(the") == [
        ["▁the"], [","], ["▁the"], ["▁the"], ["▁the"], ["("], ["the"]
    ]  # fmt: skip


def test_the_first_word_of_a_text_is_marked_as_the_tokenizer_marks_it() -> None:
    assert pieces("byte-bpe", "the")[0][0][0] == "t"
    assert pieces("prefix-byte-bpe", "the")[0][0][0] == "Ġ"
    assert pieces("strip-unigram", "(the (the")[1] == ["t", "h", "e"]
    assert pieces("strip-unigram", "the (the")[0] == ["▁the"]


def test_special_tokens_in_a_text_are_text() -> None:
    ids = flatten(text_tokenizer("wordpiece").cut(example("[SEP] x"), "words").pieces)
    assert backend("wordpiece").token_to_id("[SEP]") not in ids


@pytest.mark.parametrize("name", TINY)
def test_a_word_of_very_many_pieces_keeps_its_first_ones(name: str) -> None:
    found = text_tokenizer(name).cut(example("q" * 100_000 + " the"), "words")
    assert [len(ids) <= MAX_PIECES for ids in found.pieces] == [True, True]
    assert found.ends == [100_000, 100_004]


def test_unknown_tokens_are_counted_without_special_ones() -> None:
    assert unknown_share(cut(example("the ☃")), text_tokenizer("wordpiece")) == 0.5
    assert unknown_share([], text_tokenizer("wordpiece")) == 0.0


# Windows.


@settings(max_examples=300)
@given(
    text=st.text("ab 中1", max_size=80),
    max_length=st.integers(4, 24),
    overlap=st.integers(0, 11),
    split=st.sampled_from(["words", "characters"]),
)
def test_every_unit_is_owned_once_by_a_window_that_fits(
    text: str, max_length: int, overlap: int, split: Split
) -> None:
    overlap = min(overlap, (max_length - 2) // 2)
    found = cut(example(text), max_length=max_length, overlap=overlap, split=split)
    owned = [
        tuple(unit) for window in found for unit in window.units[slice(*window.owned)].tolist()
    ]
    cut_units = text_tokenizer("wordpiece").cut(example(text), split)
    assert owned == list(zip(cut_units.starts, cut_units.ends, strict=True))
    for window in found:
        assert len(window.input_ids) <= max_length
        assert window.labels is not None
        learnt = np.flatnonzero(window.labels != IGNORED)
        assert learnt.tolist() == list(range(*window.owned))
        for (start, end), token in zip(window.units, window.first_token, strict=True):
            ids = cut_units.pieces[cut_units.starts.index(start)]
            assert window.input_ids[token] == ids[0] and end > start
    for before, after in pairwise(found):
        shared = [u for u in before.units.tolist() if u in after.units.tolist()]
        tokens = sum(len(cut_units.pieces[cut_units.starts.index(start)]) for start, _ in shared)
        assert tokens <= overlap
    for before, after in zip(found, found[2:], strict=False):
        assert before.units[-1, 0] < after.units[0, 0]


@settings(max_examples=200)
@given(length=st.integers(1, 70), max_length=st.integers(4, 20), overlap=st.integers(0, 9))
def test_a_unit_is_answered_where_it_has_most_context(
    length: int, max_length: int, overlap: int
) -> None:
    overlap = min(overlap, (max_length - 2) // 2)
    found = cut(example("中" * length), max_length=max_length, overlap=overlap)

    def context(window: Window, unit: int) -> float:
        first, last = int(window.units[0, 0]), int(window.units[-1, 0])
        left = unit - first if first else float("inf")
        right = last - unit if last < length - 1 else float("inf")
        return min(left, right)

    for unit in range(length):
        holders = [w for w in found if w.units[0, 0] <= unit <= w.units[-1, 0]]
        owners = [w for w in holders if unit in w.units[slice(*w.owned), 0]]
        assert [context(w, unit) for w in owners] == [max(context(w, unit) for w in holders)]


def test_a_text_just_over_a_window_worked_by_hand() -> None:
    # 6 tokens fit; the second window shares 2 of them and answers for the later one.
    found = cut(example("中国北京上海张三"), max_length=8, overlap=2)
    assert [w.units[:, 0].tolist() for w in found] == [[0, 1, 2, 3, 4, 5], [4, 5, 6, 7]]
    assert [w.owned for w in found] == [(0, 5), (1, 4)]
    assert [w.first_token.tolist() for w in found] == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4]]
    assert [w.input_ids.dtype for w in found] == [np.int32, np.int32]


@pytest.mark.parametrize("text", ["中" * 100_000, "the " * 25_000, "a" * 100_000, "." * 100_000])
def test_a_text_of_100_000_characters_is_cut_in_linear_time(text: str) -> None:
    started = time.perf_counter()
    found = cut(example(text, (0, len(text.rstrip()), "LOC")), max_length=128, overlap=32)
    assert time.perf_counter() - started < 20
    merged = list(merge(with_labels(found), BIO))
    assert merged == [[Entity(start=0, end=len(text.rstrip()), label="LOC")]]


def test_texts_without_units_have_no_window_and_no_entities() -> None:
    texts = ["", "北京", " \u3000\n", "", "x", "", ""]
    found = cut(*(example(text) for text in texts))
    assert [w.index for w in found] == [1, 4]
    assert list(merge(with_labels(found), BIO, num_examples=7)) == [[]] * 7
    assert list(merge([], BIO, num_examples=2)) == [[], []]


def test_windows_are_made_as_they_are_asked_for() -> None:
    def endless() -> Iterator[Example]:
        while True:
            yield example("北京")

    stream = windows(
        endless(), text_tokenizer("wordpiece"), scheme=None, max_length=8, overlap=0, split="words"
    )
    assert [next(stream).index for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("max_length", "overlap", "said"),
    [(2, 0, "Use at least 3"), (10, 5, "use 0 to 4"), (10, -1, "use 0 to 4")],
)
def test_sizes_that_cannot_work_are_refused(max_length: int, overlap: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cut(example("x"), max_length=max_length, overlap=overlap)


def test_the_smallest_window_holds_one_token() -> None:
    found = cut(example("gbf12 the", (0, 9, "PER")), max_length=3, overlap=0)
    assert all(len(w.input_ids) == 3 for w in found)
    assert list(merge(with_labels(found), BIO)) == [[Entity(start=0, end=9, label="PER")]]


# Labels.


@pytest.mark.parametrize("scheme", [BIO, BIOES])
@pytest.mark.parametrize("max_length", [6, 8, 64])
def test_an_entity_across_the_border_of_windows_is_one(
    scheme: LabelScheme, max_length: int
) -> None:
    record = example("中国北京上海张三中国北京上海", (0, 2, "LOC"), (4, 11, "PER"), (11, 12, "PER"))
    found = cut(record, scheme=scheme, max_length=max_length, overlap=2)
    assert [tuple(m) for m in merge(with_labels(found), scheme)] == [record.entities]


def test_an_entity_longer_than_a_window_is_reported_and_still_learnt() -> None:
    problems: list[Problem] = []
    record = example("张" * 30, (2, 28, "PER"))
    found = cut(record, max_length=12, overlap=4, problems=problems)
    assert [(p.kind, p.line, p.severity) for p in problems] == [
        ("entity-longer-than-window", 7, "note")
    ]
    assert "26 tokens" in problems[0].message and "10" in problems[0].message
    assert [tuple(m) for m in merge(with_labels(found), BIO)] == [record.entities]


def test_of_overlapping_entities_the_longest_is_learnt_and_the_rest_reported() -> None:
    problems: list[Problem] = []
    record = example("中国北京上海", (0, 2, "LOC"), (0, 4, "PER"), (3, 5, "LOC"))
    found = cut(record, problems=problems)
    assert list(merge(with_labels(found), BIO)) == [[Entity(start=0, end=4, label="PER")]]
    assert [p.kind for p in problems] == ["overlapping-entities"] * 2


def test_units_of_an_unknown_label_are_not_learnt() -> None:
    (window,) = cut(example("北京张三", (0, 2, "ORG"), (2, 4, "PER")))
    assert window.labels is not None
    assert window.labels.tolist() == [IGNORED, IGNORED, 1, 2]


def test_what_is_not_annotated_has_no_labels() -> None:
    assert cut(example("北京", annotated=False))[0].labels is None
    assert cut(example("北京"), scheme=None)[0].labels is None
    labels = cut(example("北京"))[0].labels
    assert labels is not None and labels.tolist() == [0, 0]


def test_part_of_speech_tags_every_word_on_its_own() -> None:
    scheme = label_scheme(["NOUN", "VERB"], "none")
    entities = tuple(
        Entity(start=a, end=b, label=label)
        for a, b, label in [(0, 2, "NOUN"), (2, 3, "NOUN"), (3, 5, "VERB")]
    )
    record = Example(
        id="p", text="北京人don'", entities=entities, words=((0, 2), (2, 3), (3, 5), (5, 7))
    )
    (window,) = cut(record, scheme=scheme)
    assert window.labels is not None
    assert window.labels.tolist() == [0, 0, 1, IGNORED]
    # The last word was not annotated; whatever the model says about it is its own answer.
    tagged = TaggedWindow(window=window, tag_ids=np.array([0, 0, 1, 1], dtype=np.int16))
    assert [(e.start, e.end, e.label) for e in next(merge([tagged], scheme))] == [
        (0, 2, "NOUN"),
        (2, 3, "NOUN"),
        (3, 5, "VERB"),
        (5, 7, "VERB"),
    ]


def test_the_score_of_an_entity_is_the_mean_of_its_units() -> None:
    (window,) = cut(example("北京张", (0, 2, "LOC"), (2, 3, "PER")))
    assert window.labels is not None
    scores = np.array([0.5, 0.75, 1.0], dtype=np.float32)
    tagged = TaggedWindow(window=window, tag_ids=window.labels, scores=scores)
    assert [entity.score for entity in next(merge([tagged], BIO))] == [0.625, 1.0]
