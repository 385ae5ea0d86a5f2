"""The fastest settings that fit: order the candidates by cost, take the first that fits.

Costs do not depend on the budget and what fits is exact, so a larger budget is never slower.
"""

import copy
from dataclasses import dataclass, replace
from typing import Self

from torch import nn

from bertfit.config import TradeOff
from bertfit.errors import BudgetError, ConfigError
from bertfit.language import _
from bertfit.planning.candidates import (
    Candidate,
    JobFacts,
    Pins,
    candidates,
    cut_step,
    hardest_step,
)
from bertfit.planning.cost import StepCost
from bertfit.planning.estimate import estimate_memory, required_bytes
from bertfit.planning.levers import TrainSettings, encoder_layers
from bertfit.planning.sample import Sample, sample_step
from bertfit.planning.screen import Screen
from bertfit.planning.tradeoffs import CATALOGUE, DEFAULT_SHORT_WINDOW, with_trade_offs
from bertfit.types import DeviceSpec, LengthProfile, MemoryEstimate
from bertfit.units import format_bytes

# The screen is up to 5% below the exact figure (bert-base, ModernBERT), never above it.
SCREEN_SHARE = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A candidate that was not chosen.

    Attributes:
        candidate: its levers.
        reason: why not.
        step_seconds: what a step would take, estimated.
        required_bytes: exact, or None where the rough figure was enough.
    """

    candidate: Candidate
    reason: str
    step_seconds: float
    required_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a job runs, and why.

    Attributes:
        chosen: the levers.
        settings: the whole of the settings; their step is the hardest, not a usual one.
        estimate: what it needs.
        micro_batches: in a usual step, the mean of those that were drawn.
        step_seconds: of a usual step, estimated.
        tokens_per_second: real tokens, padding not counted.
        job_seconds: of all steps, evaluation not counted.
        rejected: candidates that were faster but do not fit, then such as fit but are slower.
    """

    chosen: Candidate
    settings: TrainSettings
    estimate: MemoryEstimate
    micro_batches: float
    step_seconds: float
    tokens_per_second: float
    job_seconds: float
    rejected: tuple[Rejected, ...]

    def nearest_rejected(self, count: int = 4) -> list[Rejected]:
        """Return the losers next to the winner: too large by least, then the slower ones."""
        slower = [r for r in self.rejected if r.step_seconds >= self.step_seconds]
        large = [r for r in self.rejected if r.step_seconds < self.step_seconds]
        return large[-count:] + slower[:count]


class Planner:
    """The candidates of one job, what they cost and what they need; the budget is not in it.

    Args:
        facts: the job; its budget is not looked at.
    """

    def __init__(self, facts: JobFacts) -> None:
        self.facts = facts
        model = facts.build_model()
        self.num_layers = len(encoder_layers(model))
        can_checkpoint = bool(getattr(model, "supports_gradient_checkpointing", False))
        self._check_pins(can_checkpoint)
        self._candidates = candidates(
            facts,
            self.num_layers if can_checkpoint else 0,
            shares_layers=_shares_layers(model),
        )
        self._card_samples = self._samples(replace(self._candidates[0], host_state=False))
        self._screens = {False: Screen(self._card_samples)}
        self._needs: dict[Candidate, MemoryEstimate] = {}
        drawn = facts.steps()
        self._cuts = {
            tokens: [cut_step(step, tokens) for step in drawn]
            for tokens in {c.micro_batch_tokens for c in self._candidates}
        }
        self.micro_batches = {
            tokens: sum(map(len, steps)) / len(steps) for tokens, steps in self._cuts.items()
        }
        self.step_tokens = sum(map(sum, drawn)) / len(drawn)
        self._put_in_order()

    def on(self, device: DeviceSpec, budget_bytes: int) -> Self:
        """Return the planner for another card that the same kernels run on, with its speed."""
        other = copy.copy(self)
        other.facts = replace(self.facts, device=device, budget_bytes=budget_bytes)
        other._put_in_order()
        return other

    def _put_in_order(self) -> None:
        """Cost the candidates: the fastest first; among equals the one that needs less."""
        is_half = self.facts.settings.precision != "fp32"
        cost = StepCost(self._card_samples, self.facts.device, is_half=is_half)
        self.seconds = {
            c: sum(
                cost.seconds(step, c.checkpointed_layers, host_state=c.host_state)
                for step in self._cuts[c.micro_batch_tokens]
            )
            / len(self._cuts[c.micro_batch_tokens])
            for c in self._candidates
        }
        self.ordered = sorted(
            self._candidates,
            key=lambda c: (
                self.seconds[c],
                c.host_state,
                c.micro_batch_tokens,
                c.checkpointed_layers,
            ),
        )

    def about_bytes(self, candidate: Candidate) -> int:
        """Return about what must be free on the card."""
        if candidate.host_state not in self._screens:
            self._screens[candidate.host_state] = Screen(self._samples(candidate))
        screen = self._screens[candidate.host_state]
        hardest = hardest_step(self.facts, candidate.micro_batch_tokens)
        about = max(screen.about_bytes(s, candidate.checkpointed_layers) for s in hardest)
        return required_bytes(about, self.facts.device)

    def need(self, candidate: Candidate) -> MemoryEstimate:
        """Return exactly what a candidate needs."""
        if candidate not in self._needs:
            self._needs[candidate] = estimate_memory(
                self.facts.build_model, self.settings(candidate), self.facts.device
            )
        known = self._needs[candidate]
        if known.context_bytes == self.facts.device.context_bytes:
            return known
        return replace(
            known,
            context_bytes=self.facts.device.context_bytes,
            required_bytes=required_bytes(known.peak_reserved_bytes, self.facts.device),
        )

    def settings(self, candidate: Candidate) -> TrainSettings:
        """Return the settings of a candidate, with the hardest step."""
        hardest = hardest_step(self.facts, candidate.micro_batch_tokens)
        return candidate.settings(self.facts, (tuple(hardest),))

    def frugal(self) -> list[Candidate]:
        """Return the candidates that need least of the card: one for each home of the state."""
        return [
            min(
                (c for c in self.ordered if c.host_state is on_host),
                key=lambda c: (c.micro_batch_tokens, -c.checkpointed_layers),
            )
            for on_host in sorted({c.host_state for c in self.ordered})
        ]

    def _samples(self, candidate: Candidate) -> list[Sample]:
        like = replace(candidate, checkpointed_layers=0)
        return sample_step(
            self.facts.build_model,
            lambda steps: like.settings(self.facts, steps),
            self.facts.device,
        )

    def _check_pins(self, can_checkpoint: bool) -> None:
        wanted = self.facts.pins.activation_checkpointing or 0
        if wanted and not can_checkpoint:
            raise ConfigError(
                _(
                    "--activation-checkpointing {count}: {model} cannot compute layers twice."
                ).format(count=wanted, model=self.facts.model)
            )
        if wanted > self.num_layers:
            raise ConfigError(
                _(
                    "--activation-checkpointing {count}: {model} has {layers} layers. Give at most "
                    "that, or leave it out."
                ).format(count=wanted, model=self.facts.model, layers=self.num_layers)
            )


def make_plan(planner: Planner) -> Plan:
    """Choose the fastest settings that fit the budget and the host's memory of the job.

    Raises:
        ConfigError: a lever that the user has set does not fit, and without it the job would.
        BudgetError: nothing fits; the message has the floor.
    """
    facts = planner.facts
    chosen, rejected = choose(planner, facts.budget_bytes, facts.host_bytes)
    if chosen is None:
        raise _nothing_fits(planner)
    seconds = planner.seconds[chosen]
    return Plan(
        chosen=chosen,
        settings=planner.settings(chosen),
        estimate=planner.need(chosen),
        micro_batches=planner.micro_batches[chosen.micro_batch_tokens],
        step_seconds=seconds,
        tokens_per_second=planner.step_tokens / seconds,
        job_seconds=seconds * facts.num_steps,
        rejected=(*rejected, *_slower(planner, chosen)),
    )


def choose(
    planner: Planner, budget_bytes: int, host_bytes: int
) -> tuple[Candidate | None, list[Rejected]]:
    """Return the fastest candidate that fits, and those before it that do not.

    Every test is against a figure that the budget is no part of, so whatever fits one budget fits
    a larger one.
    """
    rejected: list[Rejected] = []
    for candidate in planner.ordered:
        reason, needed = _misfit(planner, candidate, budget_bytes, host_bytes)
        if reason is None:
            return candidate, rejected
        rejected.append(
            Rejected(
                candidate=candidate,
                reason=reason,
                step_seconds=planner.seconds[candidate],
                required_bytes=needed,
            )
        )
    return None, rejected


def runners_up(planner: Planner, plan: Plan, count: int = 2) -> list[Candidate]:
    """Return the next fastest that fit too and differ only in what can be changed at once."""
    facts = planner.facts
    found: list[Candidate] = []
    after = planner.ordered[planner.ordered.index(plan.chosen) + 1 :]
    for candidate in after:
        if len(found) == count:
            break
        if candidate.host_state != plan.chosen.host_state:
            continue
        if _misfit(planner, candidate, facts.budget_bytes, facts.host_bytes)[0] is None:
            found.append(candidate)
    return found


def _misfit(
    planner: Planner, candidate: Candidate, budget_bytes: int, host_bytes: int
) -> tuple[str | None, int | None]:
    """Say why a candidate does not fit, None where it does, and what it needs if that is known."""
    about = planner.about_bytes(candidate)
    if about * SCREEN_SHARE > budget_bytes:
        return _("needs about {size}").format(size=format_bytes(about)), None
    need = planner.need(candidate)
    if need.required_bytes > budget_bytes:
        return (
            _("needs {size}, {over} more than there is").format(
                size=format_bytes(need.required_bytes),
                over=format_bytes(need.required_bytes - budget_bytes),
            ),
            need.required_bytes,
        )
    on_host = need.host_bytes + need.pinned_bytes
    if on_host > host_bytes:
        return (
            _("needs {size} of the host's memory, which has {all}").format(
                size=format_bytes(on_host), all=format_bytes(host_bytes)
            ),
            need.required_bytes,
        )
    return None, need.required_bytes


def _slower(planner: Planner, chosen: Candidate) -> list[Rejected]:
    """Return what was not chosen because it is slower: for each lever the next best."""
    after = planner.ordered[planner.ordered.index(chosen) + 1 :]
    found: list[Candidate] = []
    for name in ("micro_batch_tokens", "checkpointed_layers", "host_state"):
        value = getattr(chosen, name)
        other = next((c for c in after if getattr(c, name) != value and c not in found), None)
        if other is not None:
            found.append(other)
    return [
        Rejected(
            candidate=candidate,
            reason=_("{share:.0%} slower").format(
                share=planner.seconds[candidate] / planner.seconds[chosen] - 1
            ),
            step_seconds=planner.seconds[candidate],
            required_bytes=None,
        )
        for candidate in found
    ]


def _nothing_fits(planner: Planner) -> ConfigError | BudgetError:
    facts = planner.facts
    if facts.pins.given():
        free = Planner(replace(facts, pins=Pins()))
        if choose(free, facts.budget_bytes, facts.host_bytes)[0] is not None:
            flags = " ".join(
                f"--{name.replace('_', '-')} {_flag(value)}"
                for name, value in facts.pins.given().items()
            )
            needed = min(planner.need(c).required_bytes for c in planner.frugal())
            return ConfigError(
                _(
                    "{flags}: with that the job needs {needed}, and {budget} is there. Without it "
                    "the job fits: leave it out, or give a larger --budget."
                ).format(
                    flags=flags,
                    needed=format_bytes(needed),
                    budget=format_bytes(facts.budget_bytes),
                )
            )
        planner = free
    frugal = min(planner.frugal(), key=lambda c: planner.need(c).required_bytes)
    least = planner.need(frugal)
    message = _(
        "{model} with windows of {length} tokens needs at least {floor} of {card} and {host} of "
        "this machine's memory, whatever the settings; there are {budget} and {there}."
    ).format(
        model=facts.model,
        length=facts.longest,
        floor=format_bytes(least.required_bytes),
        card=facts.device.name,
        host=format_bytes(least.host_bytes + least.pinned_bytes),
        budget=format_bytes(facts.budget_bytes),
        there=format_bytes(facts.host_bytes),
    )
    would = trade_offs_that_fit(planner, frugal)
    if would:
        advice = _("With your word, at some cost in quality, it would fit:")
        return BudgetError("\n  ".join([f"{message} {advice}", *would]))
    advice = _("Give more, shorter windows (--max-length) or a smaller model (docs/models.md).")
    return BudgetError(f"{message} {advice}")


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
        steps = (tuple(hardest_step(changed, tokens)),)
        need = estimate_memory(facts.build_model, frugal.settings(changed, steps), facts.device)
        if need.required_bytes <= facts.budget_bytes and (
            need.host_bytes + need.pinned_bytes <= facts.host_bytes
        ):
            lines.append(
                _("--allow {name}: {required}; {what}. Published cost: {price} ({source})").format(
                    name=offer.name,
                    required=format_bytes(need.required_bytes),
                    what=_(offer.what),
                    price=_(offer.price),
                    source=offer.source,
                )
            )
    return lines


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


def _shares_layers(model: nn.Module) -> bool:
    """Say whether the encoder runs one layer several times, as ALBERT does."""
    config = model.config
    groups = getattr(config, "num_hidden_groups", None)
    return groups is not None and groups < getattr(config, "num_hidden_layers", 0)
