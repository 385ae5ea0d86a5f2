"""`bertfit capacity`: the largest batch for each length, as a table and a heat map."""

import re
from typing import Annotated, Any

import typer

from bertfit.cli.options import with_fields
from bertfit.cli.output import print_json, tell
from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.planning.request_config import EstimateConfig
from bertfit.units import format_bytes
from bertfit.validation import validated

_SKIPPED = ("batch_size", "max_length", "lengths")


def _capacity(
    fields: dict[str, Any],
    lengths: Annotated[
        str | None,
        typer.Option("--lengths", help=_("lengths in tokens, by commas"), metavar="N,N"),
    ] = None,
    precisions: Annotated[
        str | None,
        typer.Option(
            "--precisions", help=_("one column each: fp32,fp16,bf16 [--precision]"), metavar="P,P"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help=_("print one JSON document on stdout"))
    ] = False,
) -> int:
    rows = [fields.get("precision")] if precisions is None else precisions.split(",")
    if precisions is not None and fields.get("precision") is not None:
        raise ConfigError(_("--precision and --precisions say the same thing: give one of them."))
    questions = [validated(EstimateConfig, {**fields, "precision": row}) for row in rows]
    wanted = _lengths(lengths)
    from bertfit.memory.host import map_large_blocks
    from bertfit.planning.capacity import LENGTHS, capacity
    from bertfit.planning.request import card_precision, suited

    map_large_blocks()
    table = [capacity(question, wanted or None, say=tell) for question in questions]
    device = table[0][1]
    names = [suited(question, device).precision or card_precision(device) for question in questions]
    if as_json:
        print_json(
            {
                "model": questions[0].model,
                "card": device,
                "rows": [
                    {"precision": name, "cells": cells}
                    for name, (cells, __) in zip(names, table, strict=True)
                ],
            }
        )
        return 0
    from bertfit.cli.memory_tables import print_capacity, print_positions

    print_capacity(
        {
            cells[0].max_length: {
                name: cell.batch_size for name, cell in zip(names, cells, strict=True)
            }
            for cells in zip(*(cells for cells, __ in table), strict=True)
        },
        title=_("Largest micro-batch of {model} on {card} ({total})").format(
            model=questions[0].model, card=device.name, total=format_bytes(device.total_bytes)
        ),
    )
    longest = table[0][0][-1].max_length
    if not wanted and longest < LENGTHS[-1]:
        print_positions(questions[0].model, longest)
    return 0 if any(cell.batch_size for cells, __ in table for cell in cells) else 3


def _lengths(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = text.split(",")
    if not all(re.fullmatch(r" *0*([2-9]|[1-9][0-9]{1,8}) *", part) for part in parts):
        raise ConfigError(
            _("--lengths {text}: write whole numbers of 2 or more, by commas: 64,128,512.").format(
                text=text
            )
        )
    return tuple(int(part) for part in parts)


command = with_fields(
    _capacity,
    {name: f for name, f in EstimateConfig.model_fields.items() if name not in _SKIPPED},
)
