"""What is said where nothing fits: the floor, a lever that stands in the way, or trade-offs."""

from dataclasses import replace

from bertfit.config import TradeOff
from bertfit.errors import BudgetError, ConfigError
from bertfit.language import _
from bertfit.planning.candidates import Candidate, JobFacts, Pins, hardest_steps
from bertfit.planning.choice import choose, is_hopeless
from bertfit.planning.estimate import least_bytes, required_bytes
from bertfit.planning.levers import TrainSettings
from bertfit.planning.mixed_steps import StepFamily
from bertfit.planning.planner import Planner
from bertfit.planning.tradeoffs import CATALOGUE, DEFAULT_SHORT_WINDOW, with_trade_offs
from bertfit.types import LengthProfile, MemoryEstimate
from bertfit.units import format_bytes, format_floor


def nothing_fits(planner: Planner) -> ConfigError | BudgetError:
    """Return why no candidate of a job fits, and what to do next."""
    facts = planner.facts
    if facts.pins.given():
        free = Planner(replace(facts, pins=Pins()))
        fit = None if is_hopeless(free) else choose(free, facts.budget_bytes, facts.host_bytes)[0]
        if fit is not None:
            return _pins_do_not_fit(planner)
        planner = free
    frugal = planner.most_frugal()
    least = planner.need(frugal)
    on_host = least.host_bytes + least.pinned_bytes
    text = (
        _(
            "{model} with windows of {length} tokens needs at least {floor} of {card}, and then "
            "{host} of this machine's memory; there are {budget} and {there}."
        )
        if on_host > facts.host_bytes
        else _(
            "{model} with windows of {length} tokens needs at least {floor} of {card}, whatever "
            "the settings, and then {host} of the machine's memory; the card has {budget} for it."
        )
    )
    message = text.format(
        model=facts.model,
        length=facts.longest,
        floor=format_floor(least.required_bytes),
        card=facts.device.name,
        host=format_bytes(on_host),
        budget=format_bytes(facts.budget_bytes),
        there=format_bytes(facts.host_bytes),
    )
    would = trade_offs_that_fit(planner, frugal)
    if would:
        advice = _("With your word, at some cost in quality, it would fit:")
        return BudgetError("\n  ".join([f"{message} {advice}", *would]))
    advice = _("Give more, shorter windows (--max-length) or a smaller model (docs/models.md).")
    return BudgetError(f"{message} {advice}")


def _pins_do_not_fit(planner: Planner) -> ConfigError:
    """Return that a job fits, but not with the levers that the user has set."""
    facts = planner.facts
    flags = " ".join(
        f"--{name.replace('_', '-')} {_flag(value)}" for name, value in facts.pins.given().items()
    )
    need = planner.need(planner.most_frugal())
    if need.required_bytes > facts.budget_bytes:
        return ConfigError(
            _(
                "{flags}: with that the job needs {needed}, and {budget} is there. Without it "
                "the job fits: leave it out, or give a larger --budget."
            ).format(
                flags=flags,
                needed=format_floor(need.required_bytes),
                budget=format_bytes(facts.budget_bytes),
            )
        )
    return ConfigError(
        _(
            "{flags}: with that the job needs {needed} of this machine's memory, and {there} is "
            "there. Without it the job fits: leave it out."
        ).format(
            flags=flags,
            needed=format_floor(need.host_bytes + need.pinned_bytes),
            there=format_bytes(facts.host_bytes),
        )
    )


def trade_offs_that_fit(planner: Planner, candidate: Candidate) -> list[str]:
    """Return a line for each single trade-off with which a candidate fits: memory and price."""
    facts = planner.facts
    lines = []
    for offer in CATALOGUE:
        changed = _with_trade_off(facts, offer.name, planner.num_layers)
        if changed is None or (candidate.host_state and changed.settings.optimizer != "adamw"):
            continue
        tokens = min(candidate.micro_batch_tokens, changed.longest)
        frugal = replace(
            candidate,
            micro_batch_tokens=tokens,
            checkpointed_layers=min(
                candidate.checkpointed_layers,
                changed.settings.first_layers or candidate.checkpointed_layers,
            ),
        )
        settings = frugal.settings(changed, hardest_steps(changed, tokens))
        try:
            need = _need_within(changed, settings)
        except ConfigError:  # a library that is not installed, or not for this model
            continue
        if need is not None and need.host_bytes + need.pinned_bytes <= facts.host_bytes:
            lines.append(
                _("--allow {name}: {required}; {what}. Published cost: {price} ({source})").format(
                    name=offer.name,
                    required=format_floor(need.required_bytes),
                    what=_(offer.what),
                    price=_(offer.price),
                    source=offer.source,
                )
            )
    return lines


def _need_within(facts: JobFacts, settings: TrainSettings) -> MemoryEstimate | None:
    """Return what settings need, None where that is more than the budget.

    The more it takes to know, the later it is asked.
    """

    def is_too_much(reserved: int) -> bool:
        return required_bytes(reserved, facts.device) > facts.budget_bytes

    if is_too_much(least_bytes(facts.build_model, settings, facts.device)):
        return None
    family = StepFamily(facts.build_model, settings, facts.device, longest=facts.longest)
    if is_too_much(family.surely_reserved(settings.steps)):
        return None
    need = family.estimate(settings.steps)
    return None if is_too_much(need.peak_reserved_bytes) else need


def _with_trade_off(facts: JobFacts, name: str, num_layers: int) -> JobFacts | None:
    """Return the job with one trade-off, None where it does not change what the card needs."""
    if name == "shorter-windows":
        if facts.longest <= DEFAULT_SHORT_WINDOW:
            return None
        short = LengthProfile(histogram={DEFAULT_SHORT_WINDOW: 1})
        return replace(facts, lengths=short)
    allowed: dict[TradeOff, int | None] = {name: None}  # type: ignore[dict-item]
    settings = with_trade_offs(facts.settings, allowed, num_layers)
    return None if settings == facts.settings else replace(facts, settings=settings)


def _flag(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
