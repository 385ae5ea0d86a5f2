"""What the columns of a file are, found out from the file's first megabytes.

Refuses nothing: where the content does not look like columns, there is no layout.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from bertfit.data.formats.options import ReadOptions
from bertfit.data.formats.problems import ProblemLog
from bertfit.data.formats.source import TextFile
from bertfit.data.formats.tagged import TagReading, tag_reading
from bertfit.data.formats.words import Joining, survey_joining
from bertfit.data.tags import count_orphans
from bertfit.errors import DataError
from bertfit.language import _
from bertfit.types import Task

SURVEY_BYTES = 1 << 20
SURVEY_LINES = 100_000
DOCUMENT_MARK = "-DOCSTART-"
WHITE = " \t"
MAX_COLUMNS = 20
_SEPARATOR_NAMES = {"tab": "\t", "space": " ", "comma": ",", "whitespace": ""}
_TAG = re.compile(r"[BIMELSUWbimelsuw][-_].+|[Oo]", re.DOTALL)
_BARE_TAG = re.compile(r"[BIMELSUWO]")
_POSITION = re.compile(r"-?[0-9]{1,9}")
_INDEXED = re.compile(r"(.|\D+)(\d+)", re.DOTALL)
_CHUNKS = "NP VP PP ADVP ADJP SBAR PRT CONJP INTJ LST UCP"
_CHUNK_LABELS = frozenset(_CHUNKS.split())
_COLUMN_NAMES = (
    "id idx index sentence sentence_id sent_id word words token tokens form text char character "
    "tag tags label labels ner ner_tag ner_tags pos upos xpos lemma chunk entity bio iob"
)
_HEADER_NAMES = frozenset(_COLUMN_NAMES.split())
_SPACE_MARKS = ({"+", "-"}, {"SpaceAfter=No", "_"})
_NO_SPACE = {"-", "SpaceAfter=No"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLayout:
    """Where everything stands in the lines of a column file.

    Attributes:
        separator: What stands between columns; empty for any run of spaces and tabs.
        num_columns: How many there are.
        word: The column of the words.
        tags: The columns of the tags: several where entities are nested, none without annotation.
        space: The column that says whether a space follows the word.
        indexed: Every word carries its position in a larger word (`科0`, `技1`).
        header: The first line names the columns.
        joining: How the words make a text.
        reading: How the tags are read.
    """

    separator: str
    num_columns: int
    word: int
    tags: tuple[int, ...]
    space: int | None = None
    indexed: bool = False
    header: bool = False
    joining: Joining = field(default_factory=Joining)
    reading: TagReading = field(default_factory=TagReading)

    def fields(self, line: str) -> list[str]:
        """Cut a line into its columns; more or fewer than `num_columns` if it does not fit."""
        if not self.separator:
            found = line.split(" ") if "\t" not in line else line.replace("\t", " ").split(" ")
            if "" in found:
                found = [each for each in found if each]
                if len(found) == self.num_columns - 1 and line[0] in WHITE:
                    return [line[0], *found]  # the word is a space
            return found
        found = line.split(self.separator) if not line.startswith("# text = ") else [line]
        if len(found) > self.num_columns:
            while len(found) > self.num_columns and not found[-1].strip(WHITE):
                found.pop()  # a separator at the end of the line
            if len(found) > self.num_columns and self.word == 0 and self.separator != "\t":
                return line.rsplit(self.separator, self.num_columns - 1)  # the word holds it
        return [found[0], *(each.strip(WHITE) for each in found[1:])]

    def is_blank(self, line: str) -> bool:
        """Say whether a line ends a sentence: it holds nothing, or a spreadsheet's empty cells."""
        if not line.strip(WHITE):
            return True
        if self.separator not in (",", ";", "|"):
            return False
        cells = line.split(self.separator)
        return len(cells) == self.num_columns and set(cells) <= {"", '""'}

    def is_comment(self, line: str, fields: Sequence[str]) -> bool:
        """Say whether a line that begins with `#` is a remark and not a word."""
        if not line.startswith("#"):
            return False
        if len(fields) != self.num_columns:
            return True
        return any(
            self.reading.scheme != "none" and not is_tag(fields[column]) for column in self.tags
        )


def is_tag(value: str) -> bool:
    """Say whether a cell looks like a tag with a prefix, or a tag without label."""
    return _TAG.fullmatch(value) is not None or _BARE_TAG.fullmatch(value) is not None


def split_index(word: str) -> tuple[str, int] | None:
    """Take the position off a word such as `科0`; a digit can be the character itself (`10`)."""
    match = _INDEXED.fullmatch(word)
    return (match.group(1), int(match.group(2))) if match else None


def find_layout(file: TextFile, options: ReadOptions, *, named: bool) -> ColumnLayout | None:
    """Find the columns of a file.

    Args:
        file: The file.
        options: What the user said.
        named: The user says that it is a column file; then even unlikely columns are taken.

    Raises:
        DataError: the options name a column that does not exist.
    """
    first = islice(file.lines(ProblemLog(), SURVEY_BYTES), SURVEY_LINES)
    lines = [line for _n, line in first if line is not None]
    rows = [line for line in lines if line.strip(WHITE) and not line.startswith(DOCUMENT_MARK)]
    content = [line for line in rows if not line.startswith("#")] or rows
    if not content:
        return None
    shape = _shape(content, options, named)
    if shape is None:
        return None
    draft = ColumnLayout(separator=shape[0], num_columns=shape[1], word=0, tags=())
    sentences = _sentences(lines, draft)
    if not sentences or draft.num_columns > MAX_COLUMNS:
        return None
    return _columns(draft, sentences, lines, options, named, file)


def _shape(rows: Sequence[str], options: ReadOptions, named: bool) -> tuple[str, int] | None:
    """Return the separator and the number of columns."""
    if options.separator is not None:
        wanted = _SEPARATOR_NAMES.get(options.separator, options.separator)
        candidates = [wanted]
    elif sum("\t" in row.strip(WHITE) or row.startswith("\t") for row in rows) * 2 >= len(rows):
        candidates = ["\t"]
    else:
        candidates = ["", ",", "|", ";"]
    for separator in candidates:
        draft = ColumnLayout(separator=separator, num_columns=MAX_COLUMNS, word=0, tags=())
        counts = Counter(len(draft.fields(row.rstrip(WHITE))) for row in rows)
        number, votes = counts.most_common(1)[0]
        if number == 1 or votes < 0.6 * len(rows):
            continue
        if separator in ("", "\t") or named or options.separator is not None:
            return separator, number
        filled = [row for row in rows if row.strip(f'{WHITE}{separator}"')]
        if filled and _is_header(filled[0].split(separator)):
            filled = filled[1:]
        if sum(is_tag(row.rpartition(separator)[2].strip()) for row in filled) > 0.9 * len(filled):
            # A comma can be the word itself: the smallest count is the true one.
            return separator, min(each for each, seen in counts.items() if seen * 20 >= len(rows))
    return ("", 1) if _is_word_list(rows) or named else None


def _is_word_list(rows: Sequence[str]) -> bool:
    """One word a line: no white space inside, and short where the script has no spaces."""
    if len(rows) < 2 or any(" " in row.strip() or "\t" in row for row in rows):
        return False
    joining = survey_joining([rows])
    return joining.spaced or sum(map(len, rows)) <= 4 * len(rows)


def _sentences(lines: Sequence[str], draft: ColumnLayout) -> list[list[list[str]]]:
    """Cut the lines into sentences of rows that have the right number of columns."""
    sentences: list[list[list[str]]] = [[]]
    for line in lines:
        if draft.is_blank(line) or line.startswith(DOCUMENT_MARK):
            if sentences[-1]:
                sentences.append([])
            continue
        fields = draft.fields(line.rstrip("\r"))
        if len(fields) == draft.num_columns and not _is_remark(fields):
            sentences[-1].append(fields)
    return [sentence for sentence in sentences if sentence]


def _is_remark(fields: Sequence[str]) -> bool:
    """Say whether a line such as `# id 7` only happens to have as many cells as the rows."""
    return fields[0] == "#" and len(fields) > 1 and not any(is_tag(cell) for cell in fields[1:])


def _columns(
    draft: ColumnLayout,
    sentences: list[list[list[str]]],
    lines: Sequence[str],
    options: ReadOptions,
    named: bool,
    file: TextFile,
) -> ColumnLayout | None:
    header = _header(lines, sentences[0][0], options)
    if header is not None and header == sentences[0][0]:
        sentences = [sentences[0][1:], *sentences[1:]] if sentences[0][1:] else sentences[1:]
    if not sentences:
        return None
    values = [Counter(row[c] for s in sentences for row in s) for c in range(draft.num_columns)]
    word = _word_column(sentences, header)
    space = next((c for c in range(word + 1, len(values)) if _is_space_column(values[c])), None)
    if options.tag_column is not None:
        tags: tuple[int, ...] | None = (_named_column(options.tag_column, draft, header, file),)
    else:
        tags = _tag_columns(values, word, space, named, options.task)
    if tags is None:
        return None
    words = [[row[word] for row in sentence] for sentence in sentences]
    indexed = _is_indexed(words)
    if indexed:
        words = [[(split_index(w) or (w, 0))[0] for w in sentence] for sentence in words]
    layout = replace(
        draft,
        word=word,
        tags=tags,
        space=space,
        indexed=indexed,
        header=header is not None and not lines[0].startswith("#"),
        joining=survey_joining(words),
    )
    if not tags:
        task: Task = options.task or "ner"
        return replace(layout, reading=TagReading(task=task))
    counts: Counter[str] = Counter()
    orphans = 0
    for column in tags:
        counts.update(values[column])
        orphans += sum(count_orphans(row[column] for row in sentence) for sentence in sentences)
    reading = tag_reading(_without_remarks(counts), orphans, options.scheme, options.task)
    return replace(layout, reading=reading)


def _without_remarks(tags: Counter[str]) -> Counter[str]:
    """Leave out the cells of stray lines: they must not make a tag column one of bare labels."""
    tagged = {tag: count for tag, count in tags.items() if is_tag(tag)}
    return Counter(tagged) if sum(tagged.values()) >= 0.95 * tags.total() else tags


def _header(lines: Sequence[str], first: Sequence[str], options: ReadOptions) -> list[str] | None:
    """Return the names of the columns, if a line says them."""
    for line in lines[:1]:
        if line.startswith("# global.columns ="):
            return line.partition("=")[2].split()
    if _is_header(first):
        return list(first)
    return list(first) if options.tag_column in first else None


def _is_header(cells: Sequence[str]) -> bool:
    return len(cells) > 1 and {cell.strip().lower() for cell in cells} <= _HEADER_NAMES


def _word_column(sentences: Sequence[Sequence[Sequence[str]]], header: list[str] | None) -> int:
    if len(sentences[0][0]) == 1:
        return 0
    for column, name in enumerate(header or ()):
        if name.strip().lower() in (
            "word",
            "words",
            "token",
            "tokens",
            "form",
            "char",
            "character",
        ):
            return column
    steps = good = 0
    for sentence in sentences:
        previous: int | None = None
        for row in sentence:
            steps += 1
            number = int(row[0]) if row[0].isdecimal() and len(row[0]) < 10 else None
            good += number is not None and (number in (0, 1) or number - 1 == previous)
            previous = number
    return 1 if good >= 0.98 * steps and len(sentences[0][0]) > 2 else 0


def _is_space_column(values: Counter[str]) -> bool:
    found = set(values)
    return any(found <= marks for marks in _SPACE_MARKS) and bool(found - {"-", "_"})


def _named_column(
    wanted: str | int, draft: ColumnLayout, header: list[str] | None, file: TextFile
) -> int:
    text = str(wanted)
    if _POSITION.fullmatch(text):
        position = int(text)
        column = position - 1 if position > 0 else draft.num_columns + position
        if position != 0 and 0 <= column < draft.num_columns:
            return column
    elif header is not None and text in header:
        return header.index(text)
    raise DataError(
        _(
            "{path} has no column '{name}'. It has {count} columns{names}; give a position from 1 "
            "to {count}, or a name of its header."
        ).format(
            path=file.path,
            name=wanted,
            count=draft.num_columns,
            names=f" ({', '.join(header)})" if header else "",
        )
    )


def _tag_columns(
    values: Sequence[Counter[str]], word: int, space: int | None, named: bool, task: Task | None
) -> tuple[int, ...] | None:
    """Choose the tag columns; empty without annotation, None if these are no columns."""
    if len(values) == 1:
        return ()
    others = [c for c in range(len(values)) if c not in (word, space) and c > word]
    shaped = [c for c in others if _is_shaped(values[c])]
    if shaped and task != "pos":
        return _layers(shaped, values)
    bare = [c for c in others if set(values[c]) - {"_", "-", "O"} and c not in shaped]
    for column in reversed(bare):
        counts = values[column]
        outside = counts["O"] > 0
        repeated = len(counts) <= 100 and counts.total() >= 5 * len(counts)
        if outside or repeated or named:
            return (column,)
    if named or (others and all(set(values[c]) <= {"_", "-", "O"} for c in others)):
        return ()
    return None


def _is_shaped(counts: Counter[str]) -> bool:
    prefixed = sum(number for tag, number in counts.items() if _TAG.fullmatch(tag))
    untyped = sum(number for tag, number in counts.items() if _BARE_TAG.fullmatch(tag))
    return max(prefixed, untyped) >= 0.95 * counts.total()


def _layers(shaped: Sequence[int], values: Sequence[Counter[str]]) -> tuple[int, ...]:
    """Of several tag columns take the last, and with it those that hold the same kind of label.

    GermEval keeps nested entities in a second column; CoNLL-2003 keeps chunks in another.
    """
    labels = {c: {tag[2:] for tag in values[c] if len(tag) > 2} for c in shaped}
    shaped = [c for c in shaped if not labels[c] or not labels[c] <= _CHUNK_LABELS] or list(shaped)
    last = labels[shaped[-1]]
    return tuple(c for c in shaped if c == shaped[-1] or last <= labels[c] or labels[c] <= last)


def _is_indexed(sentences: Sequence[Sequence[str]]) -> bool:
    """Say whether every word ends in its position inside a larger word, from 0 up.

    A few slips in the numbering are allowed (Weibo has one), a word without a number is not.
    """
    num_words = num_slips = num_second = 0
    for sentence in sentences:
        previous = -1
        for word in sentence:
            parts = split_index(word)
            if parts is None:
                return False
            num_words += 1
            num_slips += parts[1] not in (0, previous + 1)
            previous = parts[1]
            num_second += previous == 1
    return num_second > 0 and num_slips <= 0.002 * num_words


def glued(mark: str) -> bool:
    """Say whether a cell of the space column means that no space follows."""
    return mark in _NO_SPACE
