"""Column files: one word a line with its tags, a blank line after each sentence."""

from collections.abc import Iterator

from bertfit.data.formats.column_layout import (
    DOCUMENT_MARK,
    ColumnLayout,
    glued,
    split_index,
)
from bertfit.data.formats.intake import Intake
from bertfit.data.formats.json_values import decode_json
from bertfit.data.formats.source import TextFile
from bertfit.data.formats.tagged import tagged_example
from bertfit.language import _
from bertfit.types import Example, Problem

# A sentence is held whole; a file without a single blank line must not fill the memory.
MAX_WORDS = 1_000_000
TEXT_COMMENT = "# text = "


class _Sentence:
    """The rows since the last blank line.

    Attributes:
        rows: the cells of those that have as many as there are columns.
        lines: where each of them stands.
        faults: what is wrong.
        text: what a comment says the text is.
        broken: a line could not be read at all.
        overlong: there are more rows than are held.
    """

    __slots__ = ("broken", "faults", "lines", "overlong", "rows", "text")

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self.lines: list[int] = []
        self.faults: list[Problem] = []
        self.text: str | None = None
        self.broken = self.overlong = False

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing but blank lines and comments."""
        return not (self.rows or self.faults or self.broken)


def read_columns(file: TextFile, layout: ColumnLayout, intake: Intake) -> Iterator[Example]:
    """Yield the sentences of a column file.

    Args:
        file: The file.
        layout: What its columns are.
        intake: Where the examples go out.
    """
    sentence = _Sentence()
    header = layout.header
    cut, foreign = _plain_separator(layout)
    for number, line in file.lines(intake.log):
        # Most lines hold no surprise; they are cut the fast way.
        if cut and line and not header and line[0] not in "#-" and foreign not in line:
            fields = line.split(cut)
            if (
                len(fields) == layout.num_columns
                and "" not in fields
                and len(sentence.rows) < MAX_WORDS
            ):
                sentence.rows.append(fields)
                sentence.lines.append(number)
                continue
        if line is None:
            sentence.broken = True
        elif not line or layout.is_blank(line) or line.startswith(DOCUMENT_MARK):
            if sentence.rows or not sentence.is_empty:
                example = _finish(sentence, layout, intake)
                if example is not None:
                    yield example
                sentence = _Sentence()
        else:
            fields = layout.fields(line)
            if header:
                header = False
            elif not layout.is_comment(line, fields):
                _add(sentence, fields, number, layout, intake)
            elif line.startswith(TEXT_COMMENT):
                sentence.text = _commented_text(line.removeprefix(TEXT_COMMENT))
    if not sentence.is_empty:
        example = _finish(sentence, layout, intake)
        if example is not None:
            yield example


def _plain_separator(layout: ColumnLayout) -> tuple[str, str]:
    """Return what cuts the lines that hold no surprise, and what those do not hold.

    Empty where every line must be looked at.
    """
    if layout.indexed or layout.space is not None or layout.separator not in ("", "\t"):
        return "", ""
    return ("\t", " ") if layout.separator else (" ", "\t")


def _commented_text(value: str) -> str:
    """Read the text of a comment; a JSON string where it holds line breaks or outer spaces."""
    if value.startswith('"'):
        decoded, _fault = decode_json(value, "", 0)
        if isinstance(decoded, str):
            return decoded
    return value


def _add(
    sentence: _Sentence, fields: list[str], number: int, layout: ColumnLayout, intake: Intake
) -> None:
    if len(fields) != layout.num_columns:
        if len(sentence.faults) < MAX_WORDS:
            message = _("{found} columns where the file has {expected}: {row}.").format(
                found=len(fields), expected=layout.num_columns, row=" ".join(fields)[:60]
            )
            sentence.faults.append(intake.problem(number, "column-count", message))
        return
    if len(sentence.rows) == MAX_WORDS:
        if not sentence.overlong:
            message = _(
                "a sentence of more than {count} words. Blank lines are missing between sentences."
            ).format(count=MAX_WORDS)
            sentence.faults.append(intake.problem(number, "sentence-too-long", message))
        sentence.overlong = True
        return
    if layout.indexed:
        word = fields[layout.word]
        parts = split_index(word)
        if parts is None:
            message = _("'{word}' has no position at its end, as all words before it have.").format(
                word=word
            )
            sentence.faults.append(intake.problem(number, "no-index", message))
        else:
            fields[layout.word] = parts[0]
    sentence.rows.append(fields)
    sentence.lines.append(number)


def _finish(sentence: _Sentence, layout: ColumnLayout, intake: Intake) -> Example | None:
    if sentence.broken or not sentence.rows:
        intake.drop(sentence.faults)
        return None
    # Rows of as many cells each, says `_add`; to say `strict` takes as long as the rest.
    columns = list(zip(*sentence.rows))  # noqa: B905
    space = layout.space
    return tagged_example(
        columns[layout.word],
        [columns[column] for column in layout.tags],
        sentence.lines,
        layout.joining,
        layout.reading,
        intake,
        faults=sentence.faults,
        glued=None if space is None else [glued(cell) for cell in columns[space]],
        text=sentence.text,
    )
