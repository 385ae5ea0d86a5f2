"""The door of all readers: what is this file, and who reads it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertfit.data.formats.column_layout import ColumnLayout, find_layout
from bertfit.data.formats.columns import read_columns
from bertfit.data.formats.intake import Intake
from bertfit.data.formats.json_values import decode_json, json_document, json_lines
from bertfit.data.formats.options import ReadOptions
from bertfit.data.formats.problems import ProblemLog
from bertfit.data.formats.records import read_records
from bertfit.data.formats.source import TextFile, text_file
from bertfit.errors import DataError
from bertfit.language import _
from bertfit.types import Example, Task

FORMATS = ("jsonl", "json", "columns")
_Reader = Callable[[Intake], Iterator[Example]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recognised:
    """A format, the task its content stands for, and its reader."""

    name: str
    task: Task
    read: _Reader


def read(
    path: str | Path,
    options: ReadOptions = ReadOptions(),
    problems: ProblemLog | None = None,
) -> Iterator[Example]:
    """Read the examples of a file or folder as a stream.

    Args:
        path: A file, a folder, or `hub:owner/name[:split]`.
        options: What looking at the content is not to decide.
        problems: Collects what is found wrong; several files may share one.

    Yields:
        Every record that may go on, in the order of the file.

    Raises:
        DataError: at once, if the file is not of the format or of none; at its end, with all its
            faults, if there are any and `on_error` is `refuse`.
    """
    recognised = _recognise(str(path), options)
    log = ProblemLog() if problems is None else problems
    return _stream(recognised, Path(path), options, log)


def _stream(
    recognised: _Recognised, path: Path, options: ReadOptions, log: ProblemLog
) -> Iterator[Example]:
    before = log.count("error")
    stem = TextFile(path=path).stem
    yield from recognised.read(Intake(path, stem, options, log))
    if options.on_error == "refuse" and log.count("error") > before:
        log.raise_errors()


def sniff(path: str | Path, options: ReadOptions = ReadOptions()) -> str:
    """Return the name of the format of a file or folder.

    Raises:
        DataError: it cannot be read, or is of no format known here.
    """
    return _recognise(str(path), options).name


def task_of(path: str | Path, options: ReadOptions = ReadOptions()) -> Task:
    """Return the task that a file's annotation stands for: entities, words or parts of speech.

    Raises:
        DataError: it cannot be read, or is of no format known here.
    """
    return _recognise(str(path), options).task


def _recognise(path: str, options: ReadOptions) -> _Recognised:
    place = Path(path)
    file = text_file(place)
    head = file.head()
    if options.format in (None, "json", "jsonl"):
        found = _json(file, head)
        if found is not None:
            return found
    layout = find_layout(file, options, named=options.format == "columns")
    if layout is not None:
        return _Recognised(
            name="columns",
            task=layout.reading.task,
            read=lambda intake: read_columns(file, layout, intake),
        )
    raise DataError(
        _(
            "{path} is of no known format. Name one of {formats} with --format if it is one."
        ).format(path=path, formats=", ".join(FORMATS))
    )


def _json(file: TextFile, head: bytes) -> _Recognised | None:
    text = head.decode("utf-8", "replace").lstrip()
    if text[:1] not in ("{", "["):
        return None
    lines = [line for line in text.split("\n")[:20] if line.strip()]
    is_lines = any(decode_json(line, "", 0)[1] is None for line in lines[:-1] or lines)
    # One line that holds an array of records is a document; one that holds a record is not.
    if is_lines and not (len(lines) == 1 and text.startswith("[{")):
        return _Recognised(
            name="jsonl",
            task="ner",
            read=lambda intake: read_records(lambda: json_lines(file, intake.log), intake),
        )
    if re.match(r'\{\s*["}]|\[\s*[\[{\]"]', text) is None:
        return None
    return _Recognised(
        name="json",
        task="ner",
        read=lambda intake: read_records(lambda: json_document(file), intake),
    )
