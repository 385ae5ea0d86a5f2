"""`bertfit embed MODEL INPUT --output OUT`: a file of any length to a file of vectors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bertfit.data.formats import ProblemLog, ReadOptions
from bertfit.jobs.arrow_stream import stream_schema
from bertfit.jobs.chunks import Chunk, ahead
from bertfit.jobs.embed import Embedder, What
from bertfit.jobs.identity import model_identity
from bertfit.jobs.inputs import TextInput
from bertfit.jobs.resumable import ResumableOutput
from bertfit.jobs.stream_job import RowFormat, StreamJob, StreamReport, Worked, run_stream, skip
from bertfit.jobs.vector_formats import (
    ArrayFormat,
    Dtype,
    ParquetFormat,
    Rows,
    shape_of_row,
    suffix_of,
    targets_of,
)
from bertfit.language import _
from bertfit.types import Example


@dataclass(frozen=True, kw_only=True)
class EmbedJob:
    """What `embed` is asked.

    Attributes:
        input: a file of any format, a folder of them, `hub:owner/name`, or `-`.
        output: the file to write: `.parquet`, `.npy` or `.safetensors`.
        what: vectors of sentences, tokens, or the two entities of a relation.
        concatenate: both entities in one vector.
        dtype: of the numbers that are written.
        options: how the input is read.
        whole_files: every file is one text.
        overwrite: replace an output that is there.
    """

    input: str
    output: Path
    what: What = "sentence"
    concatenate: bool = False
    dtype: Dtype = "fp32"
    options: ReadOptions = field(default_factory=lambda: ReadOptions(on_error="skip"))
    whole_files: bool = False
    overwrite: bool = False


def embed_file(
    embedder: Embedder,
    job: EmbedJob,
    *,
    model_name: str,
    progress: bool,
    log: ProblemLog,
) -> StreamReport:
    """Write the vectors of all texts of an input; goes on where the same job was stopped.

    Args:
        embedder: from `load_encoder`.
        job: what to do.
        model_name: as the user wrote it.
        progress: show a progress bar.
        log: told of what was repaired and what was left out.

    Raises:
        ConfigError: a format that is not known, or an output that is there already.
        DataError: the input cannot be read, or the output cannot be written.
        Interrupted: Ctrl-C; the same command goes on.
    """
    suffix = suffix_of(job.output)
    source = TextInput(job.input, job.options, log, whole_files=job.whole_files)
    identity = {
        "command": "embed",
        "model": model_identity(model_name),
        "input": source.identity(),
        "reading": repr(job.options) + repr(job.whole_files),
        "precision": embedder.precision,
        "vectors": f"{job.what} {embedder.pooling} {embedder.normalize} {embedder.layers}",
        "windows": str(embedder.encoder.max_length),
        "output": f"{suffix} {job.dtype} {job.concatenate}",
    }

    def chunks(examples: Iterator[Example], done: int) -> Iterator[Chunk]:
        made = embedder.chunks(skip(examples, done), job.what)
        return made if embedder.device.type == "cpu" else ahead(made)

    def work(chunk: Chunk, between: Callable[[], None]) -> Worked[Rows]:
        found = embedder.embed_chunk(chunk, job.what, log.add, between)
        return Worked(rows=found, num_written=len(found))

    with ResumableOutput(targets_of(job.output), identity, job.overwrite) as output:
        return run_stream(
            StreamJob(
                source=source,
                chunks=chunks,
                work=work,
                format=_format(embedder, job, suffix, output),
                log=log,
                verb=_("embedding"),
            ),
            output,
            progress=progress,
        )


def _format(
    embedder: Embedder, job: EmbedJob, suffix: str, output: ResumableOutput
) -> RowFormat[Rows]:
    if suffix == ".parquet":
        schema = stream_schema(output.parts[0]) if output.progress.lengths[0] else None
        return ParquetFormat(
            job.what, job.concatenate, embedder.hidden_size, job.dtype, schema=schema
        )
    shape = shape_of_row(job.what, job.concatenate, embedder.hidden_size)
    return ArrayFormat(suffix, shape, job.dtype)
