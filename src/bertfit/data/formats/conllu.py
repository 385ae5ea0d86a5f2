"""CoNLL-U: ten columns, the word in the second and its universal part of speech in the fourth."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bertfit.data.formats.intake import Intake
from bertfit.data.formats.source import TextFile
from bertfit.data.formats.tagged import WORD_LABEL
from bertfit.data.formats.words import Joining, align_words, join_words
from bertfit.language import _
from bertfit.types import Entity, Example, Problem, Task

_ID = re.compile(r"[0-9]+(-[0-9]+|\.[0-9]+)?")
_NUM_COLUMNS = 10
_SPACED = Joining()


def is_conllu(lines: Sequence[str]) -> bool:
    """Say whether lines that are not blank look like CoNLL-U."""
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    good = sum(len(row) == _NUM_COLUMNS and _ID.fullmatch(row[0]) is not None for row in rows)
    return bool(rows) and good >= 0.8 * len(rows)


@dataclass(slots=True)
class _Sentence:
    line: int = 0
    text: str | None = None
    comments: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    upos: list[str] = field(default_factory=list)
    glued: list[bool] = field(default_factory=list)
    faults: list[Problem] = field(default_factory=list)
    broken: bool = False
    covered: int = 0  # the last id inside a multiword token


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
            sentence.comments[key.strip()] = value.strip()
            if key.strip() == "text":
                sentence.text = value.removeprefix(" ")
        else:
            _add(sentence, line, number, intake)
    if sentence.words or sentence.broken or sentence.faults:
        example = _finish(sentence, task, intake)
        if example is not None:
            yield example


def _add(sentence: _Sentence, line: str, number: int, intake: Intake) -> None:
    sentence.line = sentence.line or number
    row = line.split("\t")
    if len(row) != _NUM_COLUMNS or _ID.fullmatch(row[0]) is None:
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
        extra={key: value for key, value in sentence.comments.items() if key == "sent_id"},
    )


def _aligned(sentence: _Sentence) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Find the words in the `# text` comment, in order and with only space between them."""
    joined, joined_spans = join_words(sentence.words, _SPACED, sentence.glued)
    text = sentence.text
    if text is None or text == joined:
        return joined, joined_spans
    spans = align_words(sentence.words, text)
    return (joined, joined_spans) if spans is None else (text, spans)
