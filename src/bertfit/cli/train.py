"""`bertfit train`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bertfit.cli.options import with_fields
from bertfit.cli.output import print_json, print_scores, tell
from bertfit.config import JobConfig, job_config
from bertfit.language import _
from bertfit.units import format_seconds


def _train(
    fields: dict[str, Any],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", help=_("YAML file with the same names; flags override it"), metavar="PATH"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help=_("print one JSON document on stdout"))
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help=_("no progress bars"))] = False,
) -> int:
    job = job_config(fields, config)  # before torch is imported: faults show at once
    from bertfit.jobs.train import train

    report = train(job, progress=not quiet, say=tell)
    if as_json:
        print_json(report)
        return 0
    if report.scores is not None:
        print_scores(report.scores)
    print(
        _(
            "{steps} steps in {time}, {rate:.1f} texts/s. The model of step {best} is in {folder}."
        ).format(
            steps=report.steps,
            time=format_seconds(report.seconds),
            rate=report.sentences_per_second,
            best=report.best_step or report.steps,
            folder=report.output_dir,
        )
    )
    print(_("Next: bertfit predict {folder} FILE").format(folder=report.output_dir))
    return 0


command = with_fields(_train, JobConfig.model_fields)
