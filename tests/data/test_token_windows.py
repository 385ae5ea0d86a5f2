"""Windows of the model's own tokens: every token answered once, with context on both sides."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertfit.data.pieces import TokenizerParts
from bertfit.data.token_windows import NativeTokenizer, token_windows
from bertfit.types import Window
from jobs.tiny_taggers import tiny_tokenizer


def native(special: bool = False, extra: Sequence[str] = ()) -> NativeTokenizer:
    backend = tiny_tokenizer(extra).backend_tokenizer
    parts = TokenizerParts(backend=backend, prefix_ids=(2,), suffix_ids=(3,), unk_id=1, pad_id=0)
    return NativeTokenizer(parts, special=special)


def cut(texts: Sequence[str], max_length: int = 10, overlap: int = 4) -> list[Window]:
    return list(token_windows(texts, native(), max_length=max_length, overlap=overlap))


def test_a_short_text_is_what_the_tokenizer_makes_of_it() -> None:
    tokenizer = tiny_tokenizer()
    for text in ("abc de.", "我爱北京 ab", "", "  "):
        (window,) = cut([text], max_length=64)
        assert window.input_ids.tolist() == tokenizer(text)["input_ids"]
        assert window.owned == (0, len(window.units))


def test_offsets_point_into_the_text() -> None:
    text = "  北京 Ab.c "
    (window,) = cut([text], max_length=64)
    assert [text[a:b] for a, b in window.units.tolist()] == ["北", "京", "A", "b", ".", "c"]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 80), st.integers(3, 20), st.integers(0, 9))
def test_every_token_is_answered_by_one_window(count: int, max_length: int, overlap: int) -> None:
    text = " ".join("abcdefghij"[i % 10] for i in range(count))
    windows = cut([text], max_length, overlap)
    answered = [w.units[w.owned[0] : w.owned[1]] for w in windows]
    assert np.concatenate(answered)[:, 0].tolist() == [2 * i for i in range(count)]
    assert all(len(window.input_ids) <= max_length for window in windows)
    if len(windows) > 1:
        assert all(len(window.input_ids) == max_length for window in windows)


def test_neighbours_share_the_overlap_and_halve_it() -> None:
    # 14 tokens in windows of 8: 0-8, 4-12 and, moved back to be full, 6-14.
    windows = cut([" ".join("abcdefghijklmn")], max_length=10, overlap=4)
    assert [(w.units[0][0] // 2, w.units[-1][0] // 2 + 1) for w in windows] == [
        (0, 8),
        (4, 12),
        (6, 14),
    ]
    assert [w.owned for w in windows] == [(0, 6), (2, 5), (3, 8)]


@pytest.mark.parametrize(("special", "count"), [(False, 5), (True, 1)])
def test_special_tokens_in_a_text_are_text_unless_asked(special: bool, count: int) -> None:
    (tokens, __), *_rest = native(special, ["[E1]"]).tokens(["[E1]"])
    assert len(tokens) == count - (0 if special else 1)


def test_half_a_pair_is_replaced_not_fatal() -> None:
    (window,) = cut(["a\ud800b"], max_length=64)
    assert window.units.tolist()[0] == [0, 1] and window.units.tolist()[-1] == [2, 3]


def test_many_texts_keep_their_index() -> None:
    windows = cut(["ab"] * 600 + [""] + ["cd"] * 3)
    assert [window.index for window in windows] == list(range(604))
