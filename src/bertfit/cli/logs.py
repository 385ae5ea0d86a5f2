"""`bertfit logs`: what a run in the background has said."""

from typing import Annotated

import typer

from bertfit.jobs.run_status import LOG_FILE, read_status
from bertfit.jobs.runs import find_run, follow_log
from bertfit.language import _


def command(
    run: Annotated[str, typer.Argument(help=_("id or folder of a run"), metavar="RUN")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help=_("go on until the run ends"))
    ] = False,
) -> int:
    """Print the log of a run."""
    found = find_run(run)
    status = read_status(found.folder)
    # A log may be there all the same: of a run before it in the folder.
    elsewhere = status is not None and status.in_log is False
    if elsewhere or not (found.folder / LOG_FILE).is_file():
        print(_("{name} runs in a terminal, and says there what it has to say.").format(name=run))
        return 0
    for line in follow_log(found, follow=follow):
        print(line, flush=follow)
    return 0
