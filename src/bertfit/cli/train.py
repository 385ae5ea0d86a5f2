"""`bertfit train`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bertfit.cli.options import with_fields
from bertfit.cli.output import print_json, print_scores, tell
from bertfit.config import JobConfig, job_config
from bertfit.errors import ConfigError
from bertfit.jobs.detach import start_detached
from bertfit.jobs.resume import resumed
from bertfit.jobs.run_folder import RunFolder, default_folder
from bertfit.jobs.runs import find_run
from bertfit.language import _, current_language
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
    resume: Annotated[
        str | None,
        typer.Option("--resume", help=_("go on with a run: its id or folder"), metavar="RUN"),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help=_("train in the background; see `bertfit runs`"))
    ] = False,
) -> int:
    if resume is not None:
        if config is not None:
            raise ConfigError(
                _(
                    "--config {path}: not with --resume, which takes the settings of the run. Say "
                    "with flags what is to differ."
                ).format(path=config)
            )
        fields = resumed(find_run(resume).folder, fields)
    job = job_config(fields, config)  # before torch is imported: faults show at once
    if detach:
        return _detach(job, as_json)
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
    if report.scores is not None and not report.scores.micro.predicted:
        print(
            _(
                "The model tags nothing yet. {steps} steps may be too few: raise "
                "--num-train-epochs. If the loss no longer falls, lower --learning-rate."
            ).format(steps=report.steps)
        )
    print(_("Next: bertfit predict {folder} FILE").format(folder=report.output_dir))
    return 0


def _detach(job: JobConfig, as_json: bool) -> int:
    folder = job.output_dir or default_folder(job)
    # Nothing is emptied here: the process in the background does that, once it has read the data.
    asked = RunFolder.announce(folder, job.model_copy(update={"output_dir": folder}))
    name = start_detached(
        ["train", "--config", str(asked), "--quiet", "--lang", current_language()], folder
    )
    if as_json:
        print_json({"id": name, "folder": folder})
        return 0
    print(
        _(
            "Run {name} is at work in {folder}. See it: bertfit attach {name}, its words: bertfit "
            "logs -f {name}, all runs: bertfit runs. Stop it: bertfit stop {name}"
        ).format(name=name, folder=folder)
    )
    return 0


command = with_fields(_train, JobConfig.model_fields)
