"""What a command prints: one JSON document on stdout, or lines for people."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertfit.language import _
from bertfit.types import Scores


def print_json(document: object) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(_plain(document), ensure_ascii=False, allow_nan=False))


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def tell(message: str) -> None:
    """Tell people something, beside whatever goes to stdout."""
    from tqdm import tqdm

    tqdm.write(message, file=sys.stderr)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal that something is under way whose end is not known; beside stdout."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


def print_scores(scores: Scores) -> None:
    """Print the scores as a table: every label, micro and macro, and the partial counts."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(_("label"))
    for name in (_("precision"), _("recall"), "F1", _("gold"), _("predicted"), _("right")):
        table.add_column(name, justify="right")
    rows = [*scores.by_label.items(), (_("micro"), scores.micro), (_("macro"), scores.macro)]
    for position, (label, score) in enumerate(rows):
        if position == len(scores.by_label):
            table.add_section()
        table.add_row(
            label,
            *(f"{value:.4f}" for value in (score.precision, score.recall, score.f1)),
            *(f"{count:,}" for count in (score.support, score.predicted, score.correct)),
        )
    console = Console()
    console.print(table)
    if scores.accuracy is not None:
        console.print(_("accuracy {accuracy:.4f}").format(accuracy=scores.accuracy))
        return
    partial = "   ".join(f"{name} {values['f1']:.4f}" for name, values in scores.partial.items())
    console.print(_("F1 as nervaluate counts it: {partial}").format(partial=partial), style="dim")
