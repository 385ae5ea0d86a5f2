"""`bertfit embed`."""

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from bertfit.cli.options import with_fields
from bertfit.cli.output import tell
from bertfit.cli.streaming import (
    AsJson,
    Model,
    Overwrite,
    Quiet,
    TextFile,
    WholeFiles,
    print_report,
    reading_job,
    refuse_together,
    refuse_whole,
)
from bertfit.config import JobConfig, reading_fields
from bertfit.language import _


def _embed(
    fields: dict[str, Any],
    model: Model,
    file: Annotated[str, TextFile],
    output: Annotated[
        Path, typer.Option("--output", help=_("file to write: .parquet, .npy or .safetensors"))
    ],
    vectors: Annotated[
        str, typer.Option("--vectors", help=_("sentence, tokens, or entities (e1 and e2)"))
    ] = "sentence",
    pooling: Annotated[
        str | None,
        typer.Option("--pooling", help=_("mean, cls, max, or marker (at [E1]) [by the model]")),
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help=_("give vectors length 1 [by the model]"),
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers", help=_("output of that layer, none above it is run; 9+10: the sum [last]")
        ),
    ] = None,
    concatenate: Annotated[
        bool, typer.Option("--concatenate", help=_("both entities in one vector"))
    ] = False,
    dtype: Annotated[str, typer.Option("--dtype", help=_("numbers to write: fp32 or fp16"))] = (
        "fp32"
    ),
    max_length: Annotated[
        int | None, typer.Option("--max-length", help=_("longest window in tokens"))
    ] = None,
    whole_files: WholeFiles = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    job = reading_job(fields, model, file)
    from bertfit.data.formats import ProblemLog
    from bertfit.jobs.corpus import read_options
    from bertfit.jobs.embed import What, load_encoder
    from bertfit.jobs.embed_file import EmbedJob, embed_file
    from bertfit.jobs.encoders import Pooling
    from bertfit.jobs.vector_formats import Dtype, suffix_of

    suffix_of(output)
    if whole_files:
        refuse_whole(job)
    what: What = _one_of("--vectors", vectors, get_args(What))
    how: Pooling | None = (
        None if pooling is None else _one_of("--pooling", pooling, get_args(Pooling))
    )
    refuse_together(
        {
            "--concatenate": concatenate and what != "entities",
            "--pooling marker": how == "marker" and what != "entities",
        },
        _("only with --vectors entities. Add that, or leave it out."),
    )
    refuse_together(
        {f"--pooling {how}": how is not None and what == "tokens"},
        _("not with --vectors tokens, which gives the vector of every token. Leave it out."),
    )
    numbers: Dtype = _one_of("--dtype", dtype, get_args(Dtype))
    asked = EmbedJob(
        input=file,
        output=output,
        what=what,
        concatenate=concatenate,
        dtype=numbers,
        options=read_options(job),
        whole_files=whole_files,
        overwrite=overwrite,
    )
    log = ProblemLog()
    asked.source(log)  # refuses, if it does, before the model is loaded
    embedder = load_encoder(
        model,
        device=job.device,
        precision=job.precision,
        layers=None if layers is None else _layers(layers),
        pooling=how,
        normalize=normalize,
        max_length=max_length,
        say=tell,
    )
    report = embed_file(embedder, asked, model_name=model, progress=not quiet, log=log)
    print_report(report, output, log, as_json)
    return 0


def _one_of(flag: str, value: str, known: tuple[str, ...]) -> Any:
    from bertfit.errors import ConfigError

    if value not in known:
        raise ConfigError(
            _("{flag} {value}: choose one of {known}.").format(
                flag=flag, value=value, known=", ".join(known)
            )
        )
    return value


def _layers(text: str) -> list[int]:
    from bertfit.errors import ConfigError

    try:
        return [int(part) for part in text.split("+")]
    except ValueError:
        raise ConfigError(
            _("--layers {text}: write a number such as 4 or -1, or several as 9+10.").format(
                text=text
            )
        ) from None


command = with_fields(_embed, reading_fields(JobConfig))
