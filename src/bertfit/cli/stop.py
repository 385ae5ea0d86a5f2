"""`bertfit stop`: have a run save itself and end."""

from typing import Annotated

import typer

from bertfit.cli.runs import print_end
from bertfit.jobs.runs import find_run, stop_run
from bertfit.language import _


def command(
    run: Annotated[str, typer.Argument(help=_("id or folder of a run"), metavar="RUN")],
) -> int:
    """Stop a run; it can be resumed."""
    found = stop_run(find_run(run))
    print_end(found)
    if found.is_live:
        print(_("It was told, and has not ended yet. Look again with `bertfit runs`."))
        return 1
    return 0
