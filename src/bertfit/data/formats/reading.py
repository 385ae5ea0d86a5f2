"""The door of all readers: a file, whatever it is, as a stream of examples."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bertfit.data.formats.intake import Intake
from bertfit.data.formats.options import ReadOptions
from bertfit.data.formats.problems import ProblemLog
from bertfit.data.formats.recognition import Recognised, recognise
from bertfit.data.formats.source import TextFile
from bertfit.data.formats.unused import unused_by_format
from bertfit.language import _
from bertfit.types import Example, Problem, Task

AS_FOUND = ReadOptions()
_SHOWN_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A file that was recognised and is about to be read.

    Attributes:
        format: the name of its format.
        task: what its annotation stands for: entities, words or parts of speech.
        examples: every record that may go on, in the order of the file; to be read once.
    """

    format: str
    task: Task
    examples: Iterator[Example]


def open_data(
    path: str | Path,
    options: ReadOptions = AS_FOUND,
    problems: ProblemLog | None = None,
) -> Reading:
    """Look what a file or folder is, and stand ready to read its examples as a stream.

    Args:
        path: A file, a folder, or `hub:owner/name[:split]`.
        options: What looking at the content is not to decide.
        problems: Collects what is found wrong; several files may share one.

    Raises:
        DataError: at once, if the file is not of the format or of none; at its end, with all its
            faults, if there are any and `on_error` is `refuse`.
    """
    recognised = recognise(str(path), options)
    log = ProblemLog() if problems is None else problems
    return Reading(
        format=recognised.name,
        task=recognised.task,
        examples=_stream(recognised, path, options, log),
    )


def read(
    path: str | Path,
    options: ReadOptions = AS_FOUND,
    problems: ProblemLog | None = None,
) -> Iterator[Example]:
    """Read the examples of a file or folder as a stream; see `open_data`.

    Raises:
        DataError: as `open_data`.
    """
    return open_data(path, options, problems).examples


def _stream(
    recognised: Recognised, path: str | Path, options: ReadOptions, log: ProblemLog
) -> Iterator[Example]:
    before = log.count("error")
    place = recognised.path or Path(path)
    stem = TextFile(path=place).stem if place.name else str(path)
    if recognised.beside:
        log.add(_not_read(path, recognised))
    unused = unused_by_format(options, recognised.name, path)
    if unused is not None:
        log.add(unused)
    yield from recognised.read(Intake(place, stem, options, log))
    if options.on_error == "refuse" and log.count("error") > before:
        log.raise_errors()


def _not_read(folder: str | Path, recognised: Recognised) -> Problem:
    count = len(recognised.beside)
    names = ", ".join(recognised.beside[:_SHOWN_NAMES]) + (", ..." if count > _SHOWN_NAMES else "")
    message = _(
        "the folder is read as {format}; {count} other files in it are not read: {names}. Name a "
        "file if it is meant."
    ).format(format=recognised.name, count=count, names=names)
    return Problem(
        path=str(folder), line=0, kind="not-read", message=message, severity="note", count=count
    )


def sniff(path: str | Path, options: ReadOptions = AS_FOUND) -> str:
    """Return the name of the format of a file or folder.

    Raises:
        DataError: it cannot be read, or is of no format known here.
    """
    return open_data(path, options).format


def task_of(path: str | Path, options: ReadOptions = AS_FOUND) -> Task:
    """Return the task that a file's annotation stands for: entities, words or parts of speech.

    Raises:
        DataError: it cannot be read, or is of no format known here.
    """
    return open_data(path, options).task
