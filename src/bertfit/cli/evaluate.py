"""`bertfit evaluate`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bertfit.cli.options import with_fields
from bertfit.cli.output import print_json, print_scores, tell
from bertfit.config import JobConfig, job_config, reading_fields
from bertfit.language import _


def _evaluate(
    fields: dict[str, Any],
    model: Annotated[str, typer.Argument(help=_("run folder, model folder or hub id"))],
    files: Annotated[list[Path], typer.Argument(help=_("labelled files"))],
    errors: Annotated[
        bool, typer.Option("--errors", help=_("list every mistake in its context"))
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help=_("print one JSON document on stdout"))
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help=_("no progress bars"))] = False,
) -> int:
    job = job_config({**fields, "model": model, "train_file": files})
    from bertfit.api import evaluate
    from bertfit.data.mistakes import Mistake
    from bertfit.jobs.corpus import read_options

    found: list[Mistake] = []
    report = evaluate(
        model,
        files,
        options=read_options(job),
        device=job.device,
        precision=job.precision,
        progress=not quiet,
        say=tell,
        on_mistake=found.append if errors else None,
    )
    if as_json:
        document = {"scores": report.scores, "unannotated": report.num_unannotated}
        if errors:
            document["errors"] = [str(mistake) for mistake in found]
        print_json(document)
        return 0
    for mistake in found:
        print(mistake)
    print_scores(report.scores)
    return 0


command = with_fields(_evaluate, reading_fields(JobConfig))
