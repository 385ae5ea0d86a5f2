"""Text made of words, for files that hold words and not the text they stood in.

The rule, for a whole file: where most words are of scripts that write no spaces (Chinese,
Japanese, Thai, ...), two words are joined with nothing unless both are Latin words or numbers of
more than one character; elsewhere with one space, except between two characters of such scripts.
A file of single characters (MSRA, Weibo, resume) is joined with nothing.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# CJK with kana, bopomofo, compatibility and full-width forms; Thai, Lao, Myanmar, Khmer.
# Hangul is not here: Korean writes spaces.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u3190-\u9fff\uf900-\ufaff"
    "\ufe30-\ufe4f\uff00-\uff9f\uffe0-\uffee\U00020000-\U0003ffff"
    "\u2014\u2018\u2019\u201c\u201d\u2026\u00b7"  # — ‘ ’ “ ” … ·: used between such characters
)
_unspaced = re.compile(f"[{_UNSPACED}]")
_CHARACTER_SHARE = 0.95
_UNSPACED_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Joining:
    """How the words of a file are joined: `spaced` languages, or not; single `characters`."""

    spaced: bool = True
    characters: bool = False


def survey_joining(sentences: Iterable[Sequence[str]]) -> Joining:
    """Find out from words of a file how to join all of them."""
    num_words = num_single = num_unspaced = 0
    for sentence in sentences:
        num_words += len(sentence)
        for word in sentence:
            num_single += len(word) == 1
            num_unspaced += not word.isascii() and _unspaced.search(word) is not None
    # Single characters are split words wherever some of them are of such a script.
    share = num_unspaced / max(1, num_words)
    characters = num_single >= _CHARACTER_SHARE * num_words and share >= _UNSPACED_SHARE
    return Joining(spaced=not characters and share < 0.5, characters=characters)


def join_words(
    words: Sequence[str], joining: Joining, glued: Sequence[bool] | None = None
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Join words to a text.

    Args:
        words: The words, none of them changed.
        joining: The rule of the file.
        glued: True where the file says that no space follows the word; then the rule is not asked.

    Returns:
        The text and the (start, end) of every word in it.
    """
    if len(words) == 1:
        return words[0], ((0, len(words[0])),)
    if joining.characters and glued is None and set(map(len, words)) == {1}:
        return "".join(words), tuple((i, i + 1) for i in range(len(words)))
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    position = 0
    previous: str | None = None
    for index, word in enumerate(words):
        if previous is not None:
            space = not glued[index - 1] if glued is not None else _space(previous, word, joining)
            if space:
                parts.append(" ")
                position += 1
        parts.append(word)
        spans.append((position, position + len(word)))
        position += len(word)
        previous = word
    return "".join(parts), tuple(spans)


def _space(left: str, right: str, joining: Joining) -> bool:
    if joining.spaced and (left.isascii() or right.isascii()):
        return True
    if not joining.spaced:
        if joining.characters and (len(left) == 1 or len(right) == 1):
            return False
        a, b = left[-1:], right[:1]
        return a.isalnum() and b.isalnum() and not _unspaced.match(a) and not _unspaced.match(b)
    return not (_unspaced.match(left[-1:]) and _unspaced.match(right[:1]))


def align_words(words: Sequence[str], text: str) -> tuple[tuple[int, int], ...] | None:
    """Find words in a text: all of them, in order, with only white space between; else None."""
    spans = []
    position = 0
    for word in words:
        start = text.find(word, position)
        if start < 0 or text[position:start].strip():
            return None
        position = start + len(word)
        spans.append((start, position))
    return None if text[position:].strip() else tuple(spans)
