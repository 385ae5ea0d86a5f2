"""`bertfit attach`: the bars of a run in the background; Ctrl-C leaves it running."""

import sys
import time
from typing import Annotated

import typer

from bertfit.cli.runs import print_end
from bertfit.jobs.runs import Run, find_run, look
from bertfit.language import _

REFRESH_SECONDS = 0.5


def command(
    run: Annotated[str, typer.Argument(help=_("id or folder of a run"), metavar="RUN")],
) -> int:
    """Show a run while it works."""
    found = find_run(run)
    try:
        if found.is_live:
            found = _watch(found)
    except KeyboardInterrupt:
        print(
            _("{name} goes on. Stop it with `bertfit stop {name}`.").format(name=found.id),
            file=sys.stderr,
        )
        return 0
    print_end(found)
    return 0 if found.state == "finished" else 1


def _watch(run: Run) -> Run:
    from tqdm.auto import tqdm

    with tqdm(unit=_("step"), desc=run.id, dynamic_ncols=True, initial=run.step) as bar:
        while run.is_live:
            bar.total = run.num_steps or None
            if run.score is not None:
                bar.set_postfix({"F1": f"{run.score:.3f}"}, refresh=False)
            bar.update(max(0, run.step - bar.n))
            bar.refresh()
            time.sleep(REFRESH_SECONDS)
            now = look(run.folder, run.id)
            if now is None:
                break
            run = now
    return run
