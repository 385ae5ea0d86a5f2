"""`bertfit estimate`: what a job needs on a card, and what would change it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertfit.cli.options import with_fields
from bertfit.cli.output import print_json, tell
from bertfit.language import _
from bertfit.planning.request_config import EstimateConfig
from bertfit.units import format_bytes
from bertfit.validation import validated

if TYPE_CHECKING:
    from bertfit.types import MemoryEstimate


def _estimate(
    fields: dict[str, Any],
    levers: Annotated[
        bool, typer.Option("--levers", help=_("also show what one step of each lever would change"))
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help=_("print one JSON document on stdout"))
    ] = False,
) -> int:
    asked = validated(EstimateConfig, fields)
    from bertfit.diagnose.explain import compare, explain
    from bertfit.memory.host import map_large_blocks
    from bertfit.models.transformers_log import log_held_back
    from bertfit.planning.request import estimate, within_positions

    map_large_blocks()
    whole = asked.max_length
    with log_held_back():
        asked = within_positions(asked)
        found, device, settings = estimate(asked, tell)
    fits = found.required_bytes <= device.total_bytes
    if as_json:
        effects = compare(found, _lever_steps(asked)) if levers else []
        print_json(
            {
                "model": asked.model,
                "card": device,
                "settings": settings,
                "estimate": found,
                "fits": fits,
                "parts": explain(found),
                "levers": effects,
            }
        )
        return 0 if fits else 3
    from rich.console import Console

    from bertfit.cli.memory_tables import print_effects, print_parts, print_positions

    console = Console(highlight=False)
    print_parts(explain(found), "")
    verdict = _("fits") if fits else _("does not fit")
    console.print(
        _(
            "{model} on {card}: {required} required of {total}: {verdict}. The peak is in {phase} "
            "({module})."
        ).format(
            model=asked.model,
            card=device.name,
            required=format_bytes(found.required_bytes),
            total=format_bytes(device.total_bytes),
            verdict=verdict,
            phase=found.peak_phase or "-",
            module=found.peak_module or "-",
        ),
        style="green" if fits else "red",
    )
    if asked.max_length < whole:
        print_positions(asked.model, asked.max_length)
    console.print(
        _("On the host: {host}, of which {pinned} are pinned; the data come on top.").format(
            host=format_bytes(found.host_bytes), pinned=format_bytes(found.pinned_bytes)
        )
    )
    if asked.mode == "train" and asked.used_rows is None and not asked.frozen_embeddings:
        console.print(
            _(
                "Every row of the embedding is counted. A job trains only those of pieces that "
                "occur in its data: say how many with --used-rows."
            ),
            style="dim",
        )
    if levers:
        print_effects(compare(found, _lever_steps(asked)))
    return 0 if fits else 3


def _lever_steps(asked: EstimateConfig) -> "dict[str, MemoryEstimate]":
    from tqdm import tqdm

    from bertfit.planning.lever_steps import lever_steps

    return lever_steps(asked, lambda rows: tqdm(rows, desc=_("levers"), delay=2, leave=False))


command = with_fields(_estimate, EstimateConfig.model_fields)
