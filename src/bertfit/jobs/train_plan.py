"""The settings of a run on a card: planned from its model and texts, before anything is made."""

from dataclasses import dataclass, replace

import psutil

from bertfit.config import JobConfig
from bertfit.engine.workplace import Workplace
from bertfit.errors import ConfigError, ModelError
from bertfit.jobs.corpus import Say
from bertfit.jobs.lessons import Lessons
from bertfit.jobs.plan import profile_of, windows_in_step
from bertfit.jobs.trade_offs import lever_settings
from bertfit.language import _
from bertfit.memory.host import available_bytes
from bertfit.models.tagger import Tagger
from bertfit.planning.candidates import Candidate, JobFacts, Pins
from bertfit.planning.choice import runners_up
from bertfit.planning.levers import TrainSettings
from bertfit.planning.plan import Plan, make_plan
from bertfit.planning.planner import Planner
from bertfit.planning.request import check_kernel, precision_for
from bertfit.planning.step_events import blank_twin
from bertfit.units import format_bytes

CPU_MICRO_BATCH_TOKENS = 1024
CARD_MICRO_BATCH_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What is decided before a run begins.

    Attributes:
        settings: the levers; their steps stand for nothing.
        micro_batch_tokens: padded tokens of a micro-batch, to begin with.
        plan: why; None on a processor.
        timed: candidates to be timed on the card that is here, the planned one first.
    """

    settings: TrainSettings
    micro_batch_tokens: int
    plan: Plan | None = None
    timed: tuple[Candidate, ...] = ()


def settle(job: JobConfig, place: Workplace, tagger: Tagger, lessons: Lessons, say: Say) -> Settled:
    """Decide the levers of a run; on a card by a plan, which is said.

    Args:
        job: what is asked; levers that it sets are kept to.
        place: where it trains.
        tagger: on the host, with the rows it trains.
        lessons: its texts.
        say: told what was chosen.

    Raises:
        BudgetError: nothing fits.
        ConfigError: a lever that the job sets does not fit, or the model has it not.
    """
    settings = replace(
        lever_settings(job, tagger), checkpointed_layers=job.activation_checkpointing or 0
    )
    if place.spec is None:
        if job.attn_kernel is not None:
            raise ConfigError(
                _("--attn-kernel {kernel}: only on a CUDA card. Leave it out.").format(
                    kernel=job.attn_kernel
                )
            )
        return Settled(
            settings=settings, micro_batch_tokens=job.micro_batch_tokens or CPU_MICRO_BATCH_TOKENS
        )
    try:
        planner = Planner(_facts(job, place, tagger, lessons, settings))
        plan = make_plan(planner)
        is_here = place.device.type == "cuda"
        timed = [plan.chosen, *runners_up(planner, plan.chosen)] if is_here else []
    except ModelError as error:  # an operation whose memory is not known
        say(_("No plan is made, and memory is tried out instead: {reason}").format(reason=error))
        return Settled(
            settings=settings, micro_batch_tokens=job.micro_batch_tokens or CARD_MICRO_BATCH_TOKENS
        )
    say(_in_words(plan, place, job.budget or place.total_bytes))
    return Settled(
        settings=plan.settings,
        micro_batch_tokens=plan.chosen.micro_batch_tokens,
        plan=plan,
        timed=tuple(timed),
    )


def _facts(
    job: JobConfig, place: Workplace, tagger: Tagger, lessons: Lessons, settings: TrainSettings
) -> JobFacts:
    assert place.spec is not None, "a plan is made for a card"
    # A card made of RAM computes as the processor does, and counts as the card would.
    precision = place.precision
    if place.device.type != "cuda":
        precision = precision_for(job.precision, place.spec)
    check_kernel(job.attn_kernel, precision, place.spec)
    return JobFacts(
        model=job.model,
        build_model=lambda: blank_twin(tagger.model),
        settings=replace(settings, precision=precision, max_grad_norm=job.max_grad_norm),
        lengths=profile_of(lessons),
        windows_per_step=windows_in_step(lessons, job.batch_size),
        num_steps=-(-len(lessons.train) // job.batch_size) * job.num_train_epochs,
        device=place.spec,
        budget_bytes=_free_bytes(job, place),
        host_bytes=available_bytes() + psutil.Process().memory_info().rss,
        pins=Pins.of(job),
        is_fenced=job.budget is not None or place.device.type != "cuda",
    )


def _free_bytes(job: JobConfig, place: Workplace) -> int:
    """Return what the job may take: its budget, or what other programs leave of the card."""
    reading = place.gauge.read()
    own = reading.reserved_bytes + place.context_bytes
    others = max(0, reading.card_used_bytes - own)
    return min(job.budget or place.total_bytes, place.total_bytes - others)


def _in_words(plan: Plan, place: Workplace, budget_bytes: int) -> str:
    chosen = plan.chosen
    levers = [_("micro-batches of {tokens} tokens").format(tokens=chosen.micro_batch_tokens)]
    if chosen.checkpointed_layers:
        levers.append(_("{count} layers computed twice").format(count=chosen.checkpointed_layers))
    if chosen.host_state:
        levers.append(_("fp32 weights and optimizer on the host"))
    return _("Plan for {card}: {levers}; {required} required of {budget}.").format(
        card=place.name,
        levers=", ".join(levers),
        required=format_bytes(plan.estimate.required_bytes),
        budget=format_bytes(budget_bytes),
    )
