"""The workplace of a job: the processor, a card that is here, or one that is made of RAM."""

from dataclasses import replace
from functools import partial

import torch

from bertfit.config import JobConfig
from bertfit.engine.attention import with_fused_attention
from bertfit.engine.fence import check_budget, set_expandable_segments
from bertfit.engine.precision import choose_precision
from bertfit.engine.step import train_step
from bertfit.engine.workplace import Workplace, choose_workplace
from bertfit.memory.device import SIMULATED, resolve_device
from bertfit.planning.levers import TrainSettings
from bertfit.planning.request import card_precision
from bertfit.planning.simulated_card import SimulatedCard


def workplace_of(job: JobConfig, settings: TrainSettings | None = None) -> Workplace:
    """Return where a job works.

    `--device sim:4GiB` and `--device sim:NAME` run on the processor and count memory as a card of
    that size or name. The processor computes in its own precision; what is counted is the job's
    precision, or the card's best.

    Args:
        job: what is asked.
        settings: the levers, once they are decided; nothing may be on the card yet.

    Raises:
        ConfigError: no such device or card, or a budget above what it has.
        BudgetError: the budget does not hold the card's context.
    """
    if job.device is not None and job.device.startswith(SIMULATED):
        place = _simulated(job, settings)
    else:
        place = choose_workplace(job.device, job.precision)
    if place.spec is not None and place.device.type == "cuda":
        twin = SimulatedCard(
            place.spec, budget_bytes=job.budget, precision=place.precision, **_levers(settings)
        )
        place = replace(place, load=twin.know, forecast=twin.forecast)
    if settings is not None:
        if place.device.type == "cuda":
            set_expandable_segments(settings.expandable_segments)
        place = replace(
            place,
            step=partial(place.step, autocast_cache=settings.autocast_cache),
            gradients=partial(place.gradients, autocast_cache=settings.autocast_cache),
        )
        if place.device.type == "cuda":
            place = replace(
                place,
                step=with_fused_attention(place.step, job.attn_kernel),
                gradients=with_fused_attention(place.gradients, job.attn_kernel),
            )
    if job.budget is not None:
        check_budget(job.budget, place.total_bytes, place.context_bytes, place.name)
    return place


def _levers(settings: TrainSettings | None) -> dict[str, bool]:
    """Return the levers that a simulated card must know."""
    if settings is None:
        return {}
    return {
        "expandable_segments": settings.expandable_segments,
        "autocast_cache": settings.autocast_cache,
    }


def _simulated(job: JobConfig, settings: TrainSettings | None) -> Workplace:
    assert job.device is not None
    spec = resolve_device(job.device.removeprefix(SIMULATED))
    card = SimulatedCard(
        spec,
        budget_bytes=job.budget,
        precision=job.precision or card_precision(spec),
        **_levers(settings),
    )
    cpu = torch.device("cpu")
    # A processor has no fp16; it computes in fp32 what the card would in fp16.
    asked = "fp32" if job.precision == "fp16" else job.precision
    return Workplace(
        device=cpu,
        name=f"{SIMULATED}{spec.name}",
        gauge=card,
        total_bytes=spec.total_bytes,
        context_bytes=spec.context_bytes,
        spec=spec,
        precision=choose_precision(asked, cpu),
        load=card.load,
        forecast=card.forecast,
        step=card.counted(train_step),
        gradients=card.gradients,
    )
