"""Words with tags as an example: what column files, tag lists and parallel files share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from bertfit.data.formats.intake import Intake
from bertfit.data.formats.words import Joining, align_words, join_words
from bertfit.data.tags import (
    OUTSIDE,
    Repair,
    Scheme,
    Span,
    detect_scheme,
    spans,
    split_tag,
)
from bertfit.errors import DataError
from bertfit.language import N_, _
from bertfit.types import Entity, Example, Problem, Task

WORD_LABEL = "W"
_UNTYPED_LABEL = "ENTITY"


@dataclass(frozen=True, slots=True, kw_only=True)
class TagReading:
    """How the tags of a file are read.

    Attributes:
        scheme: The scheme they are written in.
        one_each: Bare labels of which every word has its own (parts of speech).
        bare_label: The label of tags without one.
        task: What the spans are.
    """

    scheme: Scheme = "iob2"
    one_each: bool = False
    bare_label: str = WORD_LABEL
    task: Task = "ner"


def tag_reading(
    tags: Mapping[str, int], orphans: int, scheme: str | None, task: Task | None
) -> TagReading:
    """Find out how to read tags from how often each occurs."""
    found = cast(Scheme, scheme) if scheme else _likely_scheme(tags, orphans)
    outside = "O" in tags or "o" in tags
    bare = all(len(tag) == 1 for tag in tags)
    one_each = found == "none" and (task == "pos" or (task is None and not outside))
    if task is None:
        segmentation = bare and not outside and found != "none"
        task = "pos" if one_each else "segmentation" if segmentation else "ner"
    return TagReading(
        scheme="none" if task == "pos" and not scheme else found,
        one_each=one_each or task == "pos",
        bare_label=_UNTYPED_LABEL if outside else WORD_LABEL,
        task=task,
    )


def _likely_scheme(tags: Mapping[str, int], orphans: int) -> Scheme:
    scheme = detect_scheme(tags, orphans)
    if scheme in ("bioes", "bilou"):
        # Every B- of these schemes has its E-; a stray S- does not make a BIO file one of them.
        count = {letter: 0 for letter in "BEL"}
        for tag, number in tags.items():
            letter = tag[:1].upper()
            if letter in count:
                count[letter] += number
        if (count["E"] + count["L"]) * 2 < count["B"]:
            return "iob2"
    return scheme


def tagged_example(
    words: Sequence[str],
    layers: Sequence[Sequence[str]],
    lines: Sequence[int],
    joining: Joining,
    reading: TagReading,
    intake: Intake,
    *,
    faults: list[Problem],
    glued: Sequence[bool] | None = None,
    text: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Example | None:
    """Make an example of words and their tags.

    Args:
        words: The words.
        layers: Tag columns, each as long as `words`; several for nested entities, none where
            there is no annotation.
        lines: The line of every word, for messages.
        joining: How the words are joined to a text.
        reading: How the tags are read.
        intake: Where the example goes out.
        faults: What was found so far; added to.
        glued: True where no space follows the word.
        text: The text the words stand in, if the file says it and they do.
        extra: What else the record carried.
    """
    aligned = None if text is None else align_words(words, text)
    if text is None or aligned is None:
        text, word_spans = join_words(words, joining, glued)
    else:
        word_spans = aligned
    entities: tuple[Entity, ...] | None = None
    if reading.task == "segmentation" and not _says_words(reading, layers):
        entities = tuple([Entity(start=a, end=b, label=WORD_LABEL) for a, b in word_spans])
    elif layers:
        found: list[Span] = []
        for tags in layers:
            if reading.one_each or tags.count(OUTSIDE) < len(tags):  # most sentences hold nothing
                found.extend(_layer_spans(tags, lines, reading, intake, faults))
        entities = tuple(
            [
                Entity(start=word_spans[start][0], end=word_spans[end - 1][1], label=label)
                for start, end, label in found
            ]
            if found
            else ()
        )
    return intake.admit(
        text=text,
        entities=entities,
        words=word_spans,
        line=lines[0] if lines else 0,
        faults=faults,
        extra=extra,
    )


def _says_words(reading: TagReading, layers: Sequence[Sequence[str]]) -> bool:
    """Say whether the tags themselves mark where words begin (B, M, E, S)."""
    return bool(layers) and reading.scheme != "none" and reading.bare_label == WORD_LABEL


def _layer_spans(
    tags: Sequence[str],
    lines: Sequence[int],
    reading: TagReading,
    intake: Intake,
    faults: list[Problem],
) -> list[Span]:
    def on_repair(position: int, kind: Repair) -> None:
        faults.append(
            intake.problem(
                lines[position], kind, _(_REPAIRS[kind]).format(tag=tags[position]), "repair"
            )
        )

    try:
        return spans(
            tags,
            reading.scheme,
            on_repair,
            bare_label=reading.bare_label,
            one_each=reading.one_each,
        )
    except DataError:
        for tag, line in zip(tags, lines, strict=True):
            try:
                split_tag(tag)
            except DataError as error:
                faults.append(intake.problem(line, "unknown-tag", str(error)))
        return []


_REPAIRS: dict[Repair, str] = {
    "orphan-inside": N_("'{tag}' has no beginning before it; a span begins here."),
    "orphan-end": N_("'{tag}' has no beginning before it; it is read as a span of its own."),
    "label-change": N_("'{tag}' follows another label; a new span begins here."),
    "unclosed": N_("'{tag}' is the last tag of a span that has no end; the span ends here."),
    "foreign-prefix": N_("'{tag}' does not belong to the scheme of the file; read as it says."),
}
