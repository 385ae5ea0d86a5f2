"""`bertfit embed MODEL INPUT --output OUT`: a file of any length to a file of vectors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bertfit.data.formats import ProblemLog
from bertfit.jobs.arrow_stream import stream_schema
from bertfit.jobs.embed import Embedder, What
from bertfit.jobs.resumable import ResumableOutput
from bertfit.jobs.stream_job import (
    FileJob,
    RowFormat,
    StreamJob,
    StreamReport,
    Worked,
    made_ahead,
    run_stream,
    skip,
)
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


@dataclass(frozen=True, kw_only=True)
class EmbedJob(FileJob):
    """What `embed` is asked; the output is a `.parquet`, `.npy` or `.safetensors`.

    Attributes:
        what: vectors of sentences, tokens, or the two entities of a relation.
        concatenate: both entities in one vector.
        dtype: of the numbers that are written.
    """

    what: What = "sentence"
    concatenate: bool = False
    dtype: Dtype = "fp32"


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
    source = job.source(log)
    identity = {
        **job.identity(source, "embed", model_name),
        "precision": embedder.precision,
        "vectors": f"{job.what} {embedder.pooling} {embedder.normalize} {embedder.layers}",
        "windows": str(embedder.encoder.max_length),
        "output": f"{suffix} {job.dtype} {job.concatenate}",
    }

    def results(done: int, between: Callable[[], None]) -> Iterator[Worked[Rows]]:
        made = embedder.chunks(skip(source.examples(), done), job.what)
        for chunk in made_ahead(made, embedder.device):
            found = embedder.embed_chunk(chunk, job.what, log.add, between)
            yield Worked(
                rows=found,
                num_written=len(found),
                num_read=len(chunk.examples),
                last=chunk.examples[-1],
            )

    with ResumableOutput(targets_of(job.output), identity, job.overwrite) as output:
        return run_stream(
            StreamJob(
                source=source,
                results=results,
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
