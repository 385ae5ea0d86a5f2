"""The units of a text: the pieces that are tagged, cut by a rule of our own.

A unit never holds white space, and every other code point belongs to exactly one unit. No
tokenizer has a say here, so what can be pointed at does not depend on the model. The rule
(`docs/windows.md` states it for users):

* `characters`: every code point that is not white space.
* `words`: a run of letters, or of digits; every ideograph, kana or letter of a script written
  without spaces alone; every other sign alone. Combining marks, emoji sequences and flags stay
  whole, and so do the endings of English (`'s`, `n't` -> `n` `'t`, `21st`, `1990s`).
"""

import re
import unicodedata
from collections.abc import Iterable
from itertools import islice

from bertfit.types import Example, Split, Task

# Classes of code points, as letters of a string that is as long as the text.
_SPACE, _IDEOGRAPH, _LETTER, _MARK, _DIGIT, _JOINER = " IAMDJ"
_TONE, _FLAG, _PICTURE, _TAG, _APOSTROPHE, _OTHER = "TREGQP"

# Scripts that put no spaces between words, as blocks: a run of their letters is no word.
# Source: Blocks.txt, Unicode 15.1.
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x0F00, 0x109F),  # Tibetan, Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19DF),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x2E80, 0x2FDF),  # CJK and Kangxi radicals
    (0x3000, 0x30FF),  # CJK signs, Hiragana, Katakana
    (0x3100, 0x312F),  # Bopomofo
    (0x31A0, 0x4DBF),  # Bopomofo, Katakana, enclosed signs, Extension A
    (0x4E00, 0xA4CF),  # ideographs, Yi
    (0xA9E0, 0xA9FF),  # Myanmar
    (0xAA60, 0xAADF),  # Myanmar, Tai Viet
    (0xF900, 0xFAFF),  # compatibility ideographs
    (0xFF66, 0xFF9F),  # halfwidth Katakana
    (0x16F00, 0x18DFF),  # ideographic signs, Tangut
    (0x1AFF0, 0x1B2FF),  # Kana extensions, Nushu
    (0x20000, 0x3FFFF),  # the ideographic planes
)

_CHUNK = re.compile("IM*|[^ I]+")
_UNIT = re.compile("IM*|A(?:[AM]|J(?=A))*|(?:DM*)+|EM*T?G*(?:JEM*T?G*)*|RR?M*|[^ ]M*")
_LETTERS = re.compile("A[AM]*")
_ENDINGS = frozenset(
    f"{apostrophe}{ending}"
    for apostrophe in "'\u2019"
    for ending in ("s", "t", "m", "d", "re", "ve", "ll", "S", "T", "M", "D", "RE", "VE", "LL")
)
_ORDINALS = frozenset(("st", "nd", "rd", "th", "s"))

# A data set of which words would lose more entities than this is tagged by characters.
_MAX_LOST = 0.05
_SAMPLE = 2000


class _Classes(dict[int, str]):
    """Code point -> class; fills itself, so that only what occurs is looked up."""

    def __missing__(self, code_point: int) -> str:
        found = _class_of(chr(code_point))
        self[code_point] = found
        return found


def _class_of(character: str) -> str:
    code_point = ord(character)
    category = unicodedata.category(character)
    if character.isspace():
        return _SPACE
    if category[0] == "M":
        return _MARK
    if category[0] == "L" or category == "Nl":
        unspaced = any(first <= code_point <= last for first, last in _UNSPACED)
        return _IDEOGRAPH if unspaced else _LETTER
    if category[0] == "N":
        return _DIGIT
    if character in "\u200c\u200d":
        return _JOINER
    if 0x1F3FB <= code_point <= 0x1F3FF:
        return _TONE
    if 0x1F1E6 <= code_point <= 0x1F1FF:
        return _FLAG
    if 0xE0020 <= code_point <= 0xE007F:
        return _TAG
    if character in "'\u2019":
        return _APOSTROPHE
    return _PICTURE if category == "So" else _OTHER


_classes = _Classes()


def classes(text: str) -> str:
    """Return the class of every code point, as a string of the same length."""
    return text.translate(_classes)


def chunks(text_classes: str) -> list[tuple[int, int]]:
    """Cut where the context of a tokenizer may be cut: at white space and around ideographs.

    Args:
        text_classes: What `classes` returned.
    """
    return [match.span() for match in _CHUNK.finditer(text_classes)]


def chunk_units(chunk: str) -> list[tuple[int, int]]:
    """Cut one chunk, which holds no white space, into units."""
    spans = [match.span() for match in _UNIT.finditer(classes(chunk))]
    if len(spans) < 2:
        return spans
    units: list[tuple[int, int]] = []
    for start, end in spans:
        if units and _is_ending(chunk, units, start, end):
            units[-1] = (units[-1][0], end)
        else:
            units.append((start, end))
    return units


def _is_ending(chunk: str, units: list[tuple[int, int]], start: int, end: int) -> bool:
    """Say whether a run of letters ends the unit before it: `'` + `s` or `21` + `st`."""
    before_start, before_end = units[-1]
    before = chunk[before_start:before_end]
    if chunk[start:end] in _ORDINALS and before.isdecimal():
        return True
    follows_letters = len(units) > 1 and chunk[before_start - 1].isalpha()
    return follows_letters and before + chunk[start:end] in _ENDINGS


def word_units(text: str) -> list[tuple[int, int]]:
    """Cut a text into the units of `words`: (start, end) in code points, in order."""
    units: list[tuple[int, int]] = []
    for start, end in chunks(classes(text)):
        if end - start == 1:
            units.append((start, end))
        else:
            units.extend((start + a, start + b) for a, b in chunk_units(text[start:end]))
    return units


def character_units(text: str) -> list[tuple[int, int]]:
    """Cut a text into the units of `characters`: every code point that is not white space."""
    return [(i, i + 1) for i, character in enumerate(text) if not character.isspace()]


def units_of(example: Example, split: Split) -> list[tuple[int, int]]:
    """Return the units of an example: its own words under `words`, where it has any."""
    if split == "characters":
        return character_units(example.text)
    if example.words is not None:
        return list(example.words)
    return word_units(example.text)


def choose_split(examples: Iterable[Example], task: Task = "ner") -> Split:
    """Decide once for a data set how its texts are cut.

    Word segmentation is `characters` and part-of-speech tagging `words`, by their nature. For
    entities it is `characters` if the texts hold more ideographs and kana than words of letters, or
    if words would make over 5% of the entities unreachable (an edge lies inside a word).

    Args:
        examples: A sample; at most 2,000 are read.
        task: What the tags are.
    """
    if task == "segmentation":
        return "characters"
    if task == "pos":
        return "words"
    ideographs = letter_runs = entities = lost = 0
    for example in islice(examples, _SAMPLE):
        found = classes(example.text)
        ideographs += found.count(_IDEOGRAPH)
        letter_runs += sum(1 for _run in _LETTERS.finditer(found))
        if example.entities:
            units = units_of(example, "words")
            starts = {start for start, _end in units}
            ends = {end for _start, end in units}
            entities += len(example.entities)
            lost += sum(
                entity.start not in starts or entity.end not in ends for entity in example.entities
            )
    if ideographs > letter_runs:
        return "characters"
    return "characters" if lost > _MAX_LOST * entities else "words"
