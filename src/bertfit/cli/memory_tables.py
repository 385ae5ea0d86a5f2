"""Tables of memory for people: the parts of an estimate, what levers change, and capacity."""

import math
from collections.abc import Mapping, Sequence

from bertfit.diagnose.explain import Effect, Part
from bertfit.language import _
from bertfit.units import format_bytes

# From "nothing fits" to "plenty", readable on dark and light terminals.
_HEAT = (
    "white on grey35",
    "white on red3",
    "black on dark_orange3",
    "black on gold3",
    "white on chartreuse4",
    "white on green4",
)


def print_parts(parts: Sequence[Part], peak_phase: str) -> None:
    """Print what a job needs, part by part, with a bar for its share."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(_("part"))
    table.add_column(_("size"), justify="right")
    table.add_column(_("share"), justify="right")
    table.add_column("")
    table.add_column(_("what it is"), overflow="fold")
    for part in parts:
        table.add_row(
            part.name,
            format_bytes(part.size_bytes),
            f"{part.share:.0%}",
            "█" * round(part.share * 20),
            part.meaning,
        )
    table.add_section()
    total = sum(part.size_bytes for part in parts)
    table.add_row(_("required"), format_bytes(total), "100%", "", _("must be free on the card"))
    console = Console(highlight=False)
    console.print(table)
    if peak_phase:
        console.print(_("The peak is in: {phase}.").format(phase=peak_phase), style="dim")


def print_positions(model: str, length: int) -> None:
    """Say that the lengths that nobody asked for end where the model does."""
    from rich.console import Console

    Console(highlight=False).print(
        _("Windows of up to {length} tokens: the position table of {model} ends there.").format(
            length=length, model=model
        ),
        style="dim",
    )


def print_effects(effects: Sequence[Effect]) -> None:
    """Print what each single change would do, the largest saving first."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(_("with this change"))
    table.add_column(_("required"), justify="right")
    table.add_column(_("difference"), justify="right")
    for effect in effects:
        sign = "+" if effect.difference_bytes > 0 else "-" if effect.difference_bytes < 0 else ""
        table.add_row(
            effect.change,
            format_bytes(effect.required_bytes),
            sign + format_bytes(abs(effect.difference_bytes)),
        )
    Console(highlight=False).print(table)


def print_capacity(batches: Mapping[int, Mapping[str, int]], *, title: str = "") -> None:
    """Print the largest batch for every length and setting, coloured by how much fits.

    Without a terminal, or with NO_COLOR, it is the same table without colours.

    Args:
        batches: tokens in a sequence -> setting -> sequences that fit; 0 where not even one does.
        title: a line above the table.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    settings = list(dict.fromkeys(name for row in batches.values() for name in row))
    most = max((count for row in batches.values() for count in row.values()), default=0)
    table = Table(box=None, pad_edge=False)
    table.add_column(_("tokens"), justify="right")
    for name in settings:
        table.add_column(name, justify="right")
    for length, row in batches.items():
        cells = [
            Text(f" {row[name]} " if row.get(name) else " - ", style=heat(row.get(name, 0), most))
            for name in settings
        ]
        table.add_row(str(length), *cells)
    console = Console(highlight=False)
    if title:  # as wide as the terminal: a table's own title is as narrow as the table
        console.print(title, style="bold", markup=False)
    console.print(table)


def heat(count: int, most: int) -> str:
    """Choose the colour of a batch size, on a logarithmic scale from 1 to `most`."""
    if count < 1:
        return _HEAT[0]
    scale = math.log(count) / math.log(most) if most > 1 else 1.0
    return _HEAT[1 + round(scale * (len(_HEAT) - 2))]
