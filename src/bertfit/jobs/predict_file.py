"""`bertfit predict MODEL INPUT --output OUT`: a file of any length to a file of entities."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertfit.data.formats import ProblemLog
from bertfit.data.tags import Scheme
from bertfit.jobs.chunks import Chunk
from bertfit.jobs.inputs import TextInput
from bertfit.jobs.predict import Found, Predictor
from bertfit.jobs.prediction_formats import PredictionFormat, format_of, prediction_format
from bertfit.jobs.resumable import ResumableOutput
from bertfit.jobs.stream_job import (
    FileJob,
    StreamJob,
    StreamReport,
    Worked,
    made_ahead,
    run_stream,
    skip,
)
from bertfit.language import _
from bertfit.types import Problem

# Works through the texts from a record on, and calls something between batches.
Results = Callable[[int, Callable[[], None]], Iterator[Worked[list[Found]]]]


@dataclass(frozen=True, kw_only=True)
class PredictJob(FileJob):
    """What `predict` is asked.

    Attributes:
        output_format: one of `PREDICTION_FORMATS`; None: by the name of the output.
        output_scheme: the tags of CoNLL.
    """

    output_format: str | None = None
    output_scheme: Scheme = "bio"


def chunks_of(predictor: Predictor, source: TextInput, done: int) -> Iterator[Chunk]:
    """Cut texts into chunks without the first `done`; all are cut as the very first texts say."""
    split, stream = predictor.split_for(source.examples())
    return made_ahead(predictor.chunks(skip(stream, done), split), predictor.device)


def tag_chunk(
    predictor: Predictor,
    chunk: Chunk,
    on_problem: Callable[[Problem], None],
    between: Callable[[], None] | None = None,
) -> Worked[list[Found]]:
    """Find the entities of a chunk; the arguments are those of `Predictor.annotate_chunk`."""
    found = predictor.annotate_chunk(chunk, on_problem, between)
    return Worked(
        rows=found,
        num_written=len(found),
        num_read=len(chunk.examples),
        last=chunk.examples[-1],
    )


def predict_file(
    predictor: Predictor,
    job: PredictJob,
    *,
    model_name: str,
    progress: bool,
    log: ProblemLog,
    elsewhere: Callable[[TextInput], Results] | None = None,
) -> StreamReport:
    """Write the entities of all texts of an input; goes on where the same job was stopped.

    Args:
        predictor: from `load`.
        job: what to do.
        model_name: as the user wrote it.
        progress: show a progress bar.
        log: told of what was repaired and what was left out.
        elsewhere: works through the texts in this process's place.

    Raises:
        ConfigError: a format that is not known, or an output that is there already.
        DataError: the input cannot be read, or the output cannot be written.
        Interrupted: Ctrl-C; the same command goes on.
    """
    source = job.source(log)
    name = format_of(job.output, job.output_format)
    written = prediction_format(
        name,
        packed=job.output.suffix == ".gz",
        model_name=Path(model_name).name or model_name,
        scheme=job.output_scheme,
    )
    identity = {
        **job.identity(source, "predict", model_name),
        "precision": predictor.number_format,
        "decoding": "legal" if predictor.constrained else "any",
        "output": f"{name} {job.output_scheme}",
    }

    def here(done: int, between: Callable[[], None]) -> Iterator[Worked[list[Found]]]:
        for chunk in chunks_of(predictor, source, done):
            yield tag_chunk(predictor, chunk, log.add, between)

    with ResumableOutput([job.output], identity, job.overwrite) as output:
        return run_stream(
            StreamJob(
                source=source,
                results=here if elsewhere is None else elsewhere(source),
                format=_OnePart(written),
                log=log,
                verb=_("predicting"),
            ),
            output,
            progress=progress,
        )


class _OnePart:
    """A format of predictions, which are all in one file."""

    def __init__(self, written: PredictionFormat) -> None:
        self._format = written

    def head(self) -> Sequence[bytes]:
        return [self._format.head()]

    def pieces(self, rows: list[Found], position: int) -> Sequence[bytes]:
        return [self._format.piece(rows, position)]

    def tail(self) -> Sequence[bytes]:
        return [self._format.tail()]

    def finish(self, parts: Sequence[Path], targets: Sequence[Path]) -> None:
        self._format.finish(parts, targets)
