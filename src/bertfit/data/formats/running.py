"""Formats with one sentence a line: segmented words, `word/tag`, two parallel files, plain text."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from pathlib import Path

from bertfit.data.formats.column_layout import SURVEY_BYTES, SURVEY_LINES, is_tag
from bertfit.data.formats.intake import Intake
from bertfit.data.formats.options import ReadOptions
from bertfit.data.formats.problems import ProblemLog
from bertfit.data.formats.source import TextFile, text_file
from bertfit.data.formats.tagged import WORD_LABEL, TagReading, tag_reading, tagged_example
from bertfit.data.formats.words import Joining, join_words, survey_joining
from bertfit.data.tags import count_orphans
from bertfit.errors import DataError
from bertfit.language import _
from bertfit.types import Entity, Example, Problem

# What a file of words is called, and its file of tags.
_PARTNERS = (
    ("sentences", "tags"),
    ("sentence", "tag"),
    ("sentences", "labels"),
    ("words", "tags"),
    ("words", "labels"),
    ("tokens", "tags"),
    ("tokens", "labels"),
    ("texts", "labels"),
    ("text", "tags"),
    ("seq.in", "seq.out"),
    ("source", "target"),
)
_OUTSIDE = ("o", "O")
_SAMPLED_LINES = 1000
# The corpus of the People's Daily brackets compounds: `[中央/n 电视台/n]nt`.
_MAX_TAG = 24
_SLASHED = re.compile(
    rf"(?:\[(?=[^/]))?(.+)/([^/\]]{{1,{_MAX_TAG}}})(?:\][A-Za-z]{{1,4}})?", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineReading:
    """How the words of a line make a text, and how their tags are read."""

    joining: Joining
    reading: TagReading = field(default_factory=TagReading)
    segments: bool = False  # tagged segments that are no words: `致/o 中国致公党十一大/nt`


def cells(line: str) -> list[str]:
    """Split at spaces and tabs only: other white space can be a word."""
    found = (line.replace("\t", " ") if "\t" in line else line).split(" ")
    return [cell for cell in found if cell] if "" in found else found


def head_lines(file: TextFile, limit_bytes: int = SURVEY_BYTES) -> list[str]:
    """Return the first lines that are not blank."""
    first = islice(file.lines(ProblemLog(), limit_bytes), SURVEY_LINES)
    lines = (line for _number, line in first)
    return [line for line in lines if line is not None and line.strip()]


def find_segmented(lines: Sequence[str], *, named: bool) -> LineReading | None:
    """Recognise words separated by spaces: a script without spaces that has them everywhere."""
    sentences = [cells(line) for line in lines]
    joining = survey_joining(sentences)
    num_words = sum(map(len, sentences))
    mean = sum(len(word) for sentence in sentences for word in sentence) / max(1, num_words)
    longer = [sentence for sentence in sentences if sum(map(len, sentence)) > 6]
    split = sum(len(sentence) > 1 for sentence in longer)
    if named or (not joining.spaced and mean <= 4 and longer and split >= 0.8 * len(longer)):
        return LineReading(joining=joining)
    return None


def read_segmented(file: TextFile, how: LineReading, intake: Intake) -> Iterator[Example]:
    """Yield one example a line: every word is an entity labelled `W`."""
    for number, line in file.lines(intake.log):
        if line is None:
            intake.drop()
            continue
        words = cells(line)
        if words:
            text, spans = join_words(words, how.joining)
            entities = tuple([Entity(start=a, end=b, label=WORD_LABEL) for a, b in spans])
            example = intake.admit(
                text=text, entities=entities, words=spans, line=number, faults=[]
            )
            if example is not None:
                yield example


def find_slashed(lines: Sequence[str], options: ReadOptions, *, named: bool) -> LineReading | None:
    """Recognise `word/tag word/tag`."""
    sentences = [cells(line) for line in lines[:_SAMPLED_LINES]]
    pairs = [_slashed(cell) for sentence in sentences for cell in sentence]
    tagged = [pair for pair in pairs if pair is not None]
    tags = Counter(tag for _word, tag in tagged)
    if not named and (
        len(tagged) < 0.9 * len(pairs) or len(tags) > max(5, min(100, len(tagged) / 2))
    ):
        return None
    joining = survey_joining([[word for word, _tag in tagged]])
    outside = any(tag in tags for tag in _OUTSIDE)
    if outside and not all(is_tag(tag) for tag in tags):
        return LineReading(joining=joining, segments=True)
    return LineReading(joining=joining, reading=tag_reading(tags, 0, options.scheme, options.task))


def read_slashed(file: TextFile, how: LineReading, intake: Intake) -> Iterator[Example]:
    """Yield one example a line of `word/tag`."""
    for number, line in file.lines(intake.log):
        if line is None:
            intake.drop()
            continue
        faults: list[Problem] = []
        words: list[str] = []
        tags: list[str] = []
        for cell in cells(line):
            pair = _slashed(cell)
            if pair is None:
                message = _("'{cell}' has no tag: write word/tag.").format(cell=cell[:60])
                faults.append(intake.problem(number, "no-tag", message))
                pair = cell, "O"
            words.append(pair[0])
            tags.append(pair[1])
        if not words:
            continue
        if how.segments:
            tags = ["O" if tag in _OUTSIDE else f"B-{tag}" for tag in tags]
        example = tagged_example(
            words,
            [tags],
            [number] * len(words),
            how.joining,
            how.reading,
            intake,
            faults=faults,
        )
        if example is not None:
            yield replace(example, words=None) if how.segments else example


def _slashed(cell: str) -> tuple[str, str] | None:
    if "[" not in cell and "]" not in cell:
        word, __, tag = cell.rpartition("/")
        return (word, tag) if word and 0 < len(tag) <= _MAX_TAG else None
    match = _SLASHED.fullmatch(cell)
    return (match.group(1), match.group(2)) if match else None


def find_pair(path: Path) -> tuple[Path, Path] | None:
    """Return the files of words and of tags that belong together, given one or their folder."""
    if path.is_dir():
        for words, tags in _PARTNERS:
            for suffix in (".txt", ""):
                pair = path / f"{words}{suffix}", path / f"{tags}{suffix}"
                if pair[0].is_file() and pair[1].is_file():
                    return pair
        return None
    for words, tags in _PARTNERS:
        for here, there in ((words, tags), (tags, words)):
            if re.search(rf"(^|[._-]){re.escape(here)}($|[._-])", path.name):
                partner = path.with_name(path.name.replace(here, there))
                if partner != path and partner.is_file():
                    return (path, partner) if here == words else (partner, path)
    return None


def pair_reading(words_file: TextFile, tags_file: TextFile, options: ReadOptions) -> LineReading:
    """Find out how to read two parallel files."""
    tags: Counter[str] = Counter()
    orphans = 0
    for line in head_lines(tags_file):
        row = cells(line)
        tags.update(row)
        orphans += count_orphans(row)
    joining = survey_joining(cells(line) for line in head_lines(words_file))
    reading = tag_reading(tags, orphans, options.scheme, options.task)
    return LineReading(joining=joining, reading=reading)


def read_pair(
    words_file: TextFile, tags_path: Path, how: LineReading, intake: Intake
) -> Iterator[Example]:
    """Yield one example for every line of two parallel files."""
    tags_file = text_file(tags_path)
    both = zip_longest(words_file.lines(intake.log), tags_file.lines(intake.log))
    for word_line, tag_line in both:
        if word_line is None or tag_line is None:
            number = (word_line or tag_line or (0, None))[0]
            longer, shorter = words_file.path, tags_path
            if word_line is None:
                longer, shorter = shorter, longer
            message = _("line without a partner: {path} has fewer lines.").format(path=shorter)
            intake.drop([intake.problem(number, "length-mismatch", message, path=longer)])
            return
        number, text = word_line
        if text is None or tag_line[1] is None:
            intake.drop()
            continue
        words, tags = cells(text), cells(tag_line[1])
        if not words and not tags:
            continue
        faults = []
        if len(words) != len(tags):
            message = _("{words} words, but {tags} tags.").format(words=len(words), tags=len(tags))
            faults.append(intake.problem(number, "length-mismatch", message))
        example = tagged_example(
            words,
            [] if faults else [tags],
            [number] * len(words),
            how.joining,
            how.reading,
            intake,
            faults=faults,
        )
        if example is not None:
            yield example


def read_text(file: TextFile, intake: Intake) -> Iterator[Example]:
    """Yield one example without annotation for every line that is not blank."""
    for number, line in file.lines(intake.log):
        if line is None:
            intake.drop()
        elif line.strip():
            example = intake.admit(text=line, entities=None, line=number, faults=[])
            if example is not None:
                yield example


def refuse_tags_alone(path: Path, lines: Iterable[str]) -> None:
    """Refuse a file of tags whose words are missing.

    Raises:
        DataError: every word of the lines is a tag.
    """
    sample = [cell for line in list(lines)[:50] for cell in cells(line)]
    if sample and all(is_tag(cell) for cell in sample):
        raise DataError(
            _("{path}:1: only tags. The file with their words should stand next to it.").format(
                path=path
            )
        )
