"""A stream of texts through a model into a file: what `predict` and `embed` have in common.

reader -> chunks -> model -> writer thread -> parts and journal -> target. What is in memory at any
moment is a few chunks, whatever the length of the input.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Generic, Never, Protocol, TypeVar

import torch
from tqdm.auto import tqdm

from bertfit.data.formats import ProblemLog, ReadOptions
from bertfit.errors import ConfigError, Interrupted
from bertfit.jobs.chunks import Chunk, ahead
from bertfit.jobs.identity import model_identity
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


@dataclass(frozen=True, kw_only=True)
class FileJob:
    """What every job asks that takes a file of texts to a file of results.

    Attributes:
        input: a file of any format, a folder of them, `hub:owner/name`, or `-`.
        output: the file to write.
        options: how the input is read.
        whole_files: every file is one text.
        overwrite: replace an output that is there.
    """

    input: str
    output: Path
    options: ReadOptions = field(default_factory=lambda: ReadOptions(on_error="skip"))
    whole_files: bool = False
    overwrite: bool = False

    def source(self, log: ProblemLog) -> TextInput:
        """Return where the texts come from.

        Raises:
            ConfigError: the output is the input.
        """
        here = Path(self.input)
        if self.output.exists() and here.exists() and self.output.samefile(here):
            raise ConfigError(
                _("--output {path} is the input itself. Give another name.").format(
                    path=self.output
                )
            )
        return TextInput(self.input, self.options, log, whole_files=self.whole_files)

    def identity(self, source: TextInput, command: str, model: str) -> dict[str, str]:
        """Return what tells this work from another, as far as it is known here."""
        return {
            "command": command,
            "model": model_identity(model),
            "input": source.identity(),
            "reading": repr(self.options) + repr(self.whole_files),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked(Generic[R]):
    """What came of some records: its rows, how many are in them, and how far the input is.

    Attributes:
        rows: what is written.
        num_written: records that the rows stand for.
        num_read: records that were read for them.
        last: the last of these.
    """

    rows: R
    num_written: int
    num_read: int
    last: Example


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
        results: works through them. Is told how many of the first are done already, and what to
            call between batches, which may raise to stop there.
        format: turns rows into bytes.
        log: told what was left out.
        verb: what the progress bar calls it.
    """

    source: TextInput
    results: Callable[[int, Callable[[], None]], Iterator[Worked[R]]]
    format: RowFormat[R]
    log: ProblemLog
    verb: str


def skip(examples: Iterator[Example], number: int) -> Iterator[Example]:
    """Return the examples behind the first `number`."""
    return islice(examples, number, None)


def made_ahead(chunks: Iterator[Chunk], device: torch.device) -> Iterator[Chunk]:
    """Have chunks read and tokenised while a card works; a processor has no core left for it."""
    return chunks if device.type == "cpu" else ahead(chunks)


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
    def write(worked: Worked[R]) -> None:
        before = output.progress
        pieces = job.format.pieces(worked.rows, before.records_written)
        if not before.lengths[0]:
            pieces = [a + b for a, b in zip(job.format.head(), pieces, strict=True)]
        output.append(
            pieces,
            Progress(
                records_read=before.records_read + worked.num_read,
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
            for worked in job.results(begun, stop.check):
                writer.put(worked)
                _advance(bar, job.source, worked.num_read, worked.last)
                stop.check()
            if bar.total is not None:  # what stood behind the last text was none
                bar.total = bar.n
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


def _advance(bar: "tqdm[Never]", source: TextInput, count: int, last: Example) -> None:
    """Move the bar; the end is guessed from the share of the file that is read."""
    fraction = None if bar.disable else source.fraction(last)
    if fraction:
        bar.total = max(bar.n + count, round((bar.n + count) / fraction))
    bar.update(count)
