"""A stream of texts through a model into a file: what `predict` and `embed` have in common.

reader -> chunks -> model -> writer thread -> parts and journal -> target. What is in memory at any
moment is a few chunks, whatever the length of the input.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, Never, Protocol, TypeVar

from tqdm.auto import tqdm

from bertfit.data.formats import ProblemLog
from bertfit.errors import Interrupted
from bertfit.jobs.chunks import Chunk
from bertfit.jobs.inputs import TextInput
from bertfit.jobs.resumable import Progress, ResumableOutput
from bertfit.jobs.stopping import Stopped, StopSignals
from bertfit.jobs.writing import WriterThread
from bertfit.language import _
from bertfit.types import Example

R = TypeVar("R")


class RowFormat(Protocol[R]):  # type: ignore[misc]
    """Rows as bytes of one or several parts."""

    def head(self) -> Sequence[bytes]:
        """Return what stands before the first row, for every part."""

    def pieces(self, rows: R, position: int) -> Sequence[bytes]:
        """Return rows as bytes for every part; `position` counts the records before them."""

    def tail(self) -> Sequence[bytes]:
        """Return what stands behind the last row."""

    def finish(self, parts: Sequence[Path], targets: Sequence[Path]) -> None:
        """Make the targets of the parts, which may be gone already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked(Generic[R]):
    """What came of a chunk: its rows, and how many records they stand for."""

    rows: R
    num_written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """The counts of a job: read = written + left out, and what the reader could not read.

    Attributes:
        num_read: records that the reader handed out.
        num_written: records in the output.
        num_left_out: records that the model could not take; each is in the log.
        num_unreadable: records that the reader left out; each is in the log.
        num_resumed: records that were done before this process began.
    """

    num_read: int
    num_written: int
    num_left_out: int
    num_unreadable: int
    num_resumed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob(Generic[R]):
    """The parts of one job.

    Attributes:
        source: where the texts come from.
        chunks: cuts the examples, and is told how many of the first are done already.
        work: turns a chunk into rows; its second argument is called between batches.
        format: turns rows into bytes.
        log: told what was left out.
        verb: what the progress bar calls it.
    """

    source: TextInput
    chunks: Callable[[Iterator[Example], int], Iterator[Chunk]]
    work: Callable[[Chunk, Callable[[], None]], Worked[R]]
    format: RowFormat[R]
    log: ProblemLog
    verb: str


def skip(examples: Iterator[Example], number: int) -> Iterator[Example]:
    """Return the examples behind the first `number`."""
    return islice(examples, number, None)


def run_stream(job: StreamJob[R], output: ResumableOutput, *, progress: bool) -> StreamReport:
    """Run a job to its end, from wherever its output is.

    Raises:
        Interrupted: Ctrl-C; what is done is written.
        DataError: the input cannot be read, or the output cannot be written.
    """
    resumed = output.progress.records_read
    if not output.finished and not output.progress.complete:
        _work_through(job, output, progress)
    if not output.finished:
        output.finish(job.format.finish)
    done = output.progress
    return StreamReport(
        num_read=done.records_read,
        num_written=done.records_written,
        num_left_out=done.records_read - done.records_written,
        num_unreadable=job.log.records_dropped,
        num_resumed=resumed,
    )


def _work_through(job: StreamJob[R], output: ResumableOutput, progress: bool) -> None:
    def write(done: tuple[int, Worked[R]]) -> None:
        num_read, worked = done
        before = output.progress
        pieces = job.format.pieces(worked.rows, before.records_written)
        if not before.lengths[0]:
            pieces = [a + b for a, b in zip(job.format.head(), pieces, strict=True)]
        output.append(
            pieces,
            Progress(
                records_read=before.records_read + num_read,
                records_written=before.records_written + worked.num_written,
                lengths=(),
                state={},
            ),
        )

    begun = output.progress.records_read
    try:
        with (
            StopSignals() as stop,
            tqdm(
                disable=not progress,
                dynamic_ncols=True,
                unit=_("text"),
                desc=job.verb,
                initial=begun,
                smoothing=0.05,
            ) as bar,
            WriterThread(write) as writer,
        ):
            for chunk in job.chunks(job.source.examples(), begun):
                worked = job.work(chunk, stop.check)
                writer.put((len(chunk.examples), worked))
                _advance(bar, job.source, chunk)
                stop.check()
    except Stopped:
        raise Interrupted(
            _(
                "stopped after {count:,} texts; they are in {path}. The same command goes on from "
                "there."
            ).format(count=output.progress.records_read, path=output.parts[0])
        ) from None
    last = output.progress
    tail = job.format.tail()
    if not last.lengths[0]:
        tail = [a + b for a, b in zip(job.format.head(), tail, strict=True)]
    output.append(
        tail,
        Progress(
            records_read=last.records_read,
            records_written=last.records_written,
            lengths=(),
            state={},
            complete=True,
        ),
    )


def _advance(bar: "tqdm[Never]", source: TextInput, chunk: Chunk) -> None:
    """Move the bar; the end is guessed from the share of the file that is read."""
    count = bar.n + len(chunk.examples)
    fraction = None if bar.disable else source.fraction(chunk.examples[-1])
    if fraction:
        bar.total = max(count, round(count / fraction))
    bar.update(len(chunk.examples))
