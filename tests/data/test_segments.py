import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertfit.data.segments import character_units, choose_split, units_of, word_units
from bertfit.types import Entity, Example, Split, Task

# Everything that has made a tokenizer lose its place.
NASTY = st.text(
    st.sampled_from(
        [
            *"aZé7 .-'’_@#",
            *"\t\n\r\u3000\u00a0\u2028\x85",  # white space
            *"\u200b\ufeff\ufe0f\ufffd\ue000\x00\x07\u00ad\u2060",  # dropped by BERT's clean-up
            *"中国かナ한ก்",
            *"ＡＢ１２。，「",  # full width
            *"👩👨💻🏽🇨🇳👍\u200d\u200c",  # emoji, their joiners and tones, flags
            *"e\u0301\u0327\u20e3",  # combining marks
            *"שלוםمرحبا\u0651\u202e",  # right to left
            *"𝔘𠀀🄰\U000e0067",  # beyond the BMP
            *"½²Ⅳ①㍿ﬁﷺ",  # letters that normalisation makes longer
        ]
    ),
    max_size=24,
)


def words(text: str) -> list[str]:
    return [text[start:end] for start, end in word_units(text)]


@given(text=NASTY | st.text(max_size=40))
def test_units_hold_every_code_point_but_white_space_once_and_in_order(text: str) -> None:
    for units in (word_units(text), character_units(text)):
        covered = [i for start, end in units for i in range(start, end)]
        assert covered == [i for i, character in enumerate(text) if not character.isspace()]
        assert all(start < end for start, end in units)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("John lives in New York.", "John|lives|in|New|York|."),
        ("7.7级", "7|.|7|级"),
        ("GBF-AOB", "GBF|-|AOB"),
        ("ＡＢＣ１２３中国", "ＡＢＣ|１２３|中|国"),
        ("iPhone12手机", "iPhone|12|手|机"),
        ("don't John's O'Brien rock'n'roll", "don|'t|John|'s|O|'|Brien|rock|'|n|'|roll"),
        ("they’re l’eau 'twas 's", "they|’re|l|’|eau|'|twas|'|s"),
        ("the 21st, 1990s, 4S 3D 5th.", "the|21st|,|1990s|,|4|S|3|D|5th|."),
        ("a_b@c.de", "a|_|b|@|c|.|de"),
        ("..!!", ".|.|!|!"),
        ("ひらカタ漢字 한국어", "ひ|ら|カ|タ|漢|字|한국어"),
        ("ภาษา ไทย", "ภ|า|ษ|า|ไ|ท|ย"),
        ("👩🏽\u200d💻x👍🏻👍", "👩🏽\u200d💻|x|👍🏻|👍"),
        ("🇨🇳🇺🇸🇩", "🇨🇳|🇺🇸|🇩"),
        ("❤\ufe0f 1\ufe0f\u20e3", "❤\ufe0f|1\ufe0f\u20e3"),
        ("cafe\u0301s", "cafe\u0301s"),
        ("a\u200bb\ufeff中", "a|\u200b|b|\ufeff|中"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\u0301x", "\u0301|x"),
        ("葛\U000e0100城", "葛\U000e0100|城"),
        ("שלום, עולם", "שלום|,|עולם"),
        ("x\u3000\r\ny", "x|y"),
    ],
)
def test_words_cut_by_hand(text: str, expected: str) -> None:
    assert words(text) == expected.split("|")


def test_the_words_of_a_file_are_its_units() -> None:
    record = Example(id="w", text="don't go", words=((0, 5), (6, 8)))
    assert units_of(record, "words") == [(0, 5), (6, 8)]
    assert len(units_of(record, "characters")) == 7


def record(text: str, *spans: tuple[int, int]) -> Example:
    return Example(
        id="r", text=text, entities=tuple(Entity(start=a, end=b, label="X") for a, b in spans)
    )


@pytest.mark.parametrize(
    ("examples", "task", "expected"),
    [
        ([record("我在北京用iPhone。")], "ner", "characters"),
        ([record("I live in Berlin.", (10, 16))], "ner", "words"),
        ([record("We sell 北京 tickets.")], "ner", "words"),
        ([record("서울에 갔다", (0, 2))], "ner", "characters"),
        ([record("New York", (0, 8))] * 30 + [record("Yorkers", (0, 4))], "ner", "words"),
        ([], "ner", "words"),
        ([record("a b")], "segmentation", "characters"),
        ([record("北京")], "pos", "words"),
    ],
)
def test_the_split_follows_the_letters_and_what_words_would_lose(
    examples: list[Example], task: Task, expected: Split
) -> None:
    assert choose_split(examples, task) == expected
