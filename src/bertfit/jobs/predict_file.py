"""`bertfit predict MODEL INPUT --output OUT`: a file of any length to a file of entities."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertfit.data.formats import ProblemLog, ReadOptions
from bertfit.data.tags import Scheme
from bertfit.jobs.chunks import Chunk, ahead
from bertfit.jobs.identity import model_identity
from bertfit.jobs.inputs import TextInput
from bertfit.jobs.predict import Found, Predictor
from bertfit.jobs.prediction_formats import PredictionFormat, format_of, prediction_format
from bertfit.jobs.resumable import ResumableOutput
from bertfit.jobs.stream_job import StreamJob, StreamReport, Worked, run_stream, skip
from bertfit.language import _
from bertfit.types import Example


@dataclass(frozen=True, kw_only=True)
class PredictJob:
    """What `predict` is asked.

    Attributes:
        input: a file of any format, a folder of them, `hub:owner/name`, or `-`.
        output: the file to write.
        output_format: one of `PREDICTION_FORMATS`; None: by the name of the output.
        output_scheme: the tags of CoNLL.
        options: how the input is read.
        whole_files: every file is one text.
        overwrite: replace an output that is there.
    """

    input: str
    output: Path
    output_format: str | None = None
    output_scheme: Scheme = "bio"
    options: ReadOptions = field(default_factory=lambda: ReadOptions(on_error="skip"))
    whole_files: bool = False
    overwrite: bool = False


def predict_file(
    predictor: Predictor,
    job: PredictJob,
    *,
    model_name: str,
    progress: bool,
    log: ProblemLog,
) -> StreamReport:
    """Write the entities of all texts of an input; goes on where the same job was stopped.

    Args:
        predictor: from `load`.
        job: what to do.
        model_name: as the user wrote it.
        progress: show a progress bar.
        log: told of what was repaired and what was left out.

    Raises:
        ConfigError: a format that is not known, or an output that is there already.
        DataError: the input cannot be read, or the output cannot be written.
        Interrupted: Ctrl-C; the same command goes on.
    """
    source = TextInput(job.input, job.options, log, whole_files=job.whole_files)
    name = format_of(job.output, job.output_format)
    written = prediction_format(
        name,
        packed=job.output.suffix == ".gz",
        model_name=Path(model_name).name or model_name,
        scheme=job.output_scheme,
    )
    identity = {
        "command": "predict",
        "model": model_identity(model_name),
        "input": source.identity(),
        "reading": repr(job.options) + repr(job.whole_files),
        "precision": predictor.precision,
        "output": f"{name} {job.output_scheme}",
    }

    def chunks(examples: Iterator[Example], done: int) -> Iterator[Chunk]:
        # The first texts decide how all are cut, whether they are done already or not.
        split, stream = predictor.split_for(examples)
        made = predictor.chunks(skip(stream, done), split)
        return made if predictor.device.type == "cpu" else ahead(made)

    def work(chunk: Chunk, between: Callable[[], None]) -> Worked[list[Found]]:
        found = predictor.annotate_chunk(chunk, log.add, between)
        return Worked(rows=found, num_written=len(found))

    with ResumableOutput([job.output], identity, job.overwrite) as output:
        return run_stream(
            StreamJob(
                source=source,
                chunks=chunks,
                work=work,
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
