"""`bertfit runs`: which runs there are and how far they are."""

from typing import Annotated

import typer

from bertfit.cli.output import print_json
from bertfit.jobs.runs import STATE_NAMES, Run, list_runs
from bertfit.language import _
from bertfit.units import format_seconds

_PIPE_WIDTH = 10_000


def command(
    as_json: Annotated[
        bool, typer.Option("--json", help=_("print one JSON document on stdout"))
    ] = False,
) -> int:
    """List the runs."""
    runs = list_runs()
    if as_json:
        print_json(runs)
        return 0
    if not runs:
        print(_("No runs yet. Start one: bertfit train --detach ..."))
        return 0
    _print_table(runs)
    for run in runs:
        if run.message and run.state in ("failed", "killed", "silent", "unreadable"):
            print(f"{run.id}: {run.message}")
    return 0


def _print_table(runs: list[Run]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(_("run"), overflow="fold")
    table.add_column(_("state"))
    for name in (_("step"), "F1", _("time left")):
        table.add_column(name, justify="right")
    table.add_column(_("folder"), overflow="fold")
    for run in runs:
        table.add_row(
            run.id,
            _(STATE_NAMES[run.state]),
            f"{run.step}/{run.num_steps}" if run.num_steps else "-",
            "-" if run.score is None else f"{run.score:.4f}",
            "-" if run.seconds_left is None else format_seconds(run.seconds_left),
            str(run.folder),
        )
    # Names and folders are shown as they are: `[x]` in them is no markup, and who reads them from
    # a pipe wants one run a line.
    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.print(table)


def print_end(run: Run) -> None:
    """Say how a run is, in one line or two."""
    print(
        _("{name}: {state}, step {step} of {all}.").format(
            name=run.id, state=_(STATE_NAMES[run.state]), step=run.step, all=run.num_steps or "?"
        )
    )
    if run.message:
        print(run.message)
    if run.state == "killed" and run.step:
        print(_("Go on with it: bertfit train --resume {name}").format(name=run.id))
