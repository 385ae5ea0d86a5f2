"""CoNLL-U: ten columns, the word in the second and its universal part of speech in the fourth."""

import re
from collections.abc import Iterator, Sequence

from bertfit.data.formats.intake import Intake
from bertfit.data.formats.source import TextFile
from bertfit.data.formats.tagged import WORD_LABEL
from bertfit.data.formats.words import Joining, align_words, join_words
from bertfit.language import _
from bertfit.types import Entity, Example, Problem, Task

_ID = re.compile(r"[0-9]+(-[0-9]+|\.[0-9]+)?")
_NUM_COLUMNS = 10
_SPACED = Joining()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def is_conllu(lines: Sequence[str]) -> bool:
    """Say whether lines that are not blank look like CoNLL-U."""
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    good = sum(len(row) == _NUM_COLUMNS and _ID.fullmatch(row[0]) is not None for row in rows)
    return bool(rows) and good >= 0.8 * len(rows)


class _Sentence:
    """The lines since the last blank one.

    Attributes:
        line: where its first word stands.
        text: what a comment says the text is.
        about: what other comments say.
        words: of the text, and `upos` and `glued` beside them.
        faults: what is wrong.
        broken: a line could not be read at all.
        covered: the last number inside a multiword token.
    """

    __slots__ = ("about", "broken", "covered", "faults", "glued", "line", "text", "upos", "words")

    def __init__(self) -> None:
        self.line = self.covered = 0
        self.text: str | None = None
        self.about: dict[str, str] = {}
        self.words: list[str] = []
        self.upos: list[str] = []
        self.glued: list[bool] = []
        self.faults: list[Problem] = []
        self.broken = False


def read_conllu(file: TextFile, task: Task, intake: Intake) -> Iterator[Example]:
    """Yield the sentences of a CoNLL-U file.

    The text is the `# text` comment where the words are found in it in order, else the words
    joined as `SpaceAfter` says. A multiword token (`3-4`) is one word whose tag joins those of its
    parts with `+`, because its parts have no place in the text; empty nodes (`8.1`) are left out.

    Args:
        file: The file.
        task: `pos` labels every word with its UPOS, `segmentation` with `W`; `ner` leaves the
            sentences without annotation.
        intake: Where the examples go out.
    """
    sentence = _Sentence()
    for number, line in file.lines(intake.log):
        if line is None:
            sentence.broken = True
        elif not line.strip():
            if sentence.words or sentence.broken or sentence.faults:
                example = _finish(sentence, task, intake)
                if example is not None:
                    yield example
            sentence = _Sentence()
        elif line.startswith("#"):
            key, _equals, value = line[1:].partition("=")
            if key.strip() == "text":
                sentence.text = value.removeprefix(" ")
            elif key.strip() == "sent_id":
                sentence.about["sent_id"] = value.strip()
        else:
            _add(sentence, line, number, intake)
    if sentence.words or sentence.broken or sentence.faults:
        example = _finish(sentence, task, intake)
        if example is not None:
            yield example


def _add(sentence: _Sentence, line: str, number: int, intake: Intake) -> None:
    sentence.line = sentence.line or number
    row = line.split("\t")
    if len(row) != _NUM_COLUMNS or not (_is_number(row[0]) or _ID.fullmatch(row[0])):
        message = _("a CoNLL-U word has 10 columns and begins with its number: {row}.").format(
            row=" ".join(row)[:60]
        )
        sentence.faults.append(intake.problem(number, "column-count", message))
        return
    if "." in row[0]:
        return
    first, _dash, last = row[0].partition("-")
    if last:
        sentence.covered = int(last)
        sentence.words.append(row[1])
        sentence.upos.append("")
        sentence.glued.append("SpaceAfter=No" in row[9])
    elif int(first) <= sentence.covered:
        joined = sentence.upos[-1]
        sentence.upos[-1] = f"{joined}+{row[3]}" if joined else row[3]
    else:
        sentence.words.append(row[1])
        sentence.upos.append(row[3])
        sentence.glued.append("SpaceAfter=No" in row[9])


def _finish(sentence: _Sentence, task: Task, intake: Intake) -> Example | None:
    if sentence.broken or not sentence.words:
        intake.drop(sentence.faults)
        return None
    text, spans = _aligned(sentence)
    entities = None
    if task != "ner":
        labels = sentence.upos if task == "pos" else [WORD_LABEL] * len(spans)
        entities = tuple(
            [
                Entity(start=start, end=end, label=label)
                for (start, end), label in zip(spans, labels, strict=True)
            ]
        )
    return intake.admit(
        text=text,
        entities=entities,
        words=spans,
        line=sentence.line,
        faults=sentence.faults,
        extra=sentence.about,
    )


def _aligned(sentence: _Sentence) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Find the words in the `# text` comment, in order and with only space between them."""
    joined, joined_spans = join_words(sentence.words, _SPACED, sentence.glued)
    text = sentence.text
    if text is None or text == joined:
        return joined, joined_spans
    spans = align_words(sentence.words, text)
    return (joined, joined_spans) if spans is None else (text, spans)
