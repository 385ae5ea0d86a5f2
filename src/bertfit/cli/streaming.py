"""What `predict` and `embed` share: their input, their output, and what is told at the end."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertfit.cli.output import print_json, tell
from bertfit.config import JobConfig, job_config
from bertfit.language import _

if TYPE_CHECKING:
    from bertfit.data.formats import ProblemLog
    from bertfit.jobs.stream_job import StreamReport

Model = Annotated[str, typer.Argument(help=_("run folder, model folder or hub id"))]
TextFile = typer.Argument(
    help=_("texts in any format that bertfit reads: file, folder, .gz; - is stdin")
)
WholeFiles = Annotated[
    bool, typer.Option("--whole-files", help=_("every file is one text [every line]"))
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help=_("replace an output that is there"))]
AsJson = Annotated[bool, typer.Option("--json", help=_("print one JSON document on stdout"))]
Quiet = Annotated[bool, typer.Option("--quiet", help=_("no progress bars"))]


def reading_job(fields: dict[str, Any], model: str, file: str) -> JobConfig:
    """Check the flags that say how texts are read and where the work runs."""
    # One bad record among millions is told, and does not end the work, unless that is asked for.
    fields["on_error"] = fields.get("on_error") or "skip"
    return job_config({**fields, "model": model, "train_file": file})


def refuse_together(flags: dict[str, bool], reason: str) -> None:
    """Refuse the flags of those that are wrong together, all at once.

    Raises:
        ConfigError: there is one.
    """
    from bertfit.errors import ConfigError

    given = [flag for flag, is_wrong in flags.items() if is_wrong]
    if given:
        raise ConfigError(f"{', '.join(given)}: {reason}")


def reading_flags(job: JobConfig) -> dict[str, bool]:
    """Return the flags that say how a file is read, and whether each was given."""
    names = ("format", "file_scheme", "tag_column", "separator", "offsets")
    return {"--" + name.replace("_", "-"): getattr(job, name) is not None for name in names}


def refuse_whole(job: JobConfig) -> None:
    """Refuse with `--whole-files` what says how records are found in a file.

    Raises:
        ConfigError: there is such a flag.
    """
    refuse_together(
        {**reading_flags(job), "--format": job.format not in (None, "text")},
        _("not with --whole-files, which takes every file for one text. Leave it out."),
    )


def print_report(report: "StreamReport", output: Path, log: "ProblemLog", as_json: bool) -> None:
    """Print what was wrong with the texts, and the counts of a job that streams."""
    from bertfit.jobs.corpus import report_problems

    report_problems(log, tell)
    if as_json:
        print_json({"output": output, "counts": report})
        return
    if report.num_resumed:
        tell(_("{count:,} texts were done before.").format(count=report.num_resumed))
    lost = report.num_left_out + report.num_unreadable
    message = _("{count:,} texts written to {path}.").format(count=report.num_written, path=output)
    if lost:
        message += _(" {count:,} left out; see above.").format(count=lost)
    tell(message)
