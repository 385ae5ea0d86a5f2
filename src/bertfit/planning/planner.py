"""The candidates of one job, what they cost and what they need; the budget is no part of it."""

import copy
from dataclasses import replace
from functools import cached_property
from typing import Self

from torch import nn

from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.planning.candidates import (
    Candidate,
    JobFacts,
    candidates,
    cut_step,
    hardest_step,
    hardest_steps,
)
from bertfit.planning.cost import StepCost
from bertfit.planning.estimate import least_bytes, required_bytes, summarize
from bertfit.planning.levers import TrainSettings, encoder_layers
from bertfit.planning.mixed_steps import StepFamily
from bertfit.planning.sample import Sample, sample_step
from bertfit.planning.screen import Screen
from bertfit.types import DeviceSpec, MemoryEstimate


class Planner:
    """The candidates of one job, what they cost and what they need; the budget is not in it.

    Args:
        facts: the job; its budget is not looked at.

    Attributes:
        needs: what was exactly estimated so far.
        micro_batches: micro-batch tokens -> micro-batches of a usual step, their mean.
        step_tokens: real tokens of a usual step.
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
        self._screens: dict[bool, Screen] = {}
        self._families: dict[bool, StepFamily] = {}
        self._least: dict[Candidate, int] = {}
        self.needs: dict[Candidate, MemoryEstimate] = {}
        drawn = facts.steps()
        self._cuts = {
            tokens: [cut_step(step, tokens) for step in drawn]
            for tokens in {c.micro_batch_tokens for c in self._candidates}
        }
        self.micro_batches = {
            tokens: sum(map(len, steps)) / len(steps) for tokens, steps in self._cuts.items()
        }
        self.step_tokens = sum(map(sum, drawn)) / len(drawn)

    def on(self, device: DeviceSpec, budget_bytes: int) -> Self:
        """Return the planner for another card that the same kernels run on, with its speed."""
        other = copy.copy(self)
        other.facts = replace(self.facts, device=device, budget_bytes=budget_bytes)
        other._card_samples = self._card_samples
        for name in ("seconds", "ordered"):
            other.__dict__.pop(name, None)
        return other

    @cached_property
    def _card_samples(self) -> list[Sample]:
        return self._samples(replace(self._candidates[0], host_state=False))

    @cached_property
    def seconds(self) -> dict[Candidate, float]:
        """What a step of each candidate takes, estimated."""
        is_half = self.facts.settings.precision != "fp32"
        cost = StepCost(self._card_samples, self.facts.device, is_half=is_half)
        return {
            c: sum(
                cost.seconds(step, c.checkpointed_layers, host_state=c.host_state)
                for step in self._cuts[c.micro_batch_tokens]
            )
            / len(self._cuts[c.micro_batch_tokens])
            for c in self._candidates
        }

    @cached_property
    def ordered(self) -> list[Candidate]:
        """The candidates, the fastest first; among equals the one that needs less."""
        return sorted(
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
            samples = (
                self._samples(candidate, with_work=False)
                if candidate.host_state
                else self._card_samples
            )
            self._screens[candidate.host_state] = Screen(samples, host_state=candidate.host_state)
        screen = self._screens[candidate.host_state]
        hardest = hardest_step(self.facts, candidate.micro_batch_tokens)
        about = max(screen.about_bytes(s, candidate.checkpointed_layers) for s in hardest)
        return required_bytes(about, self.facts.device)

    def least_bytes(self, candidate: Candidate) -> int:
        """Return what is surely less than must be free on the card; see `estimate.least_bytes`."""
        if candidate not in self._least:
            facts = self.facts
            self._least[candidate] = least_bytes(
                facts.build_model, candidate.settings(facts, facts.settings.steps), facts.device
            )
        return required_bytes(self._least[candidate], self.facts.device)

    def need(self, candidate: Candidate) -> MemoryEstimate:
        """Return exactly what a candidate needs."""
        if candidate not in self.needs:
            settings, family = self.settings(candidate), self._family(candidate)
            self.needs[candidate] = family.estimate(settings.steps, candidate.checkpointed_layers)
        known = self.needs[candidate]
        if known.context_bytes == self.facts.device.context_bytes:
            return known
        return replace(
            known,
            context_bytes=self.facts.device.context_bytes,
            required_bytes=required_bytes(known.peak_reserved_bytes, self.facts.device),
        )

    def need_in_fence(self, candidate: Candidate) -> MemoryEstimate:
        """Return what a candidate that fits holds where the allocator is capped at the budget.

        Near the cap it gives back cached blocks, so the peak may be lower than that of `need`. The
        cap is no part of what fits: that would not be the same question for every budget.
        """
        facts, need = self.facts, self.need(candidate)
        cap = facts.budget_bytes - facts.device.context_bytes
        # The cap is held against all that is reserved and the whole of a request.
        if not facts.is_fenced or 2 * need.peak_reserved_bytes <= cap:
            return need
        # What is given back is asked for again, so every micro-batch of the step counts.
        whole = tuple(map(tuple, self._cuts[candidate.micro_batch_tokens]))
        simulation = self._family(candidate).simulate(
            whole if facts.is_even else self.settings(candidate).steps,
            candidate.checkpointed_layers,
            reserved_limit_bytes=cap,
        )
        # Where memory ends in that the run cuts a step smaller, and the cap is what it takes.
        return need if simulation.failure is not None else summarize(simulation, facts.device)

    def _family(self, candidate: Candidate) -> StepFamily:
        family = self._families.get(candidate.host_state)
        if family is None:
            family = StepFamily(
                self.facts.build_model,
                self.settings(candidate),
                self.facts.device,
                longest=self.facts.longest,
            )
            self._families[candidate.host_state] = family
        return family

    def settings(self, candidate: Candidate) -> TrainSettings:
        """Return the settings of a candidate, with steps that need as much as the job's."""
        return candidate.settings(
            self.facts, hardest_steps(self.facts, candidate.micro_batch_tokens)
        )

    @cached_property
    def frugal(self) -> list[Candidate]:
        """The candidates that need least of the card: one for each home of the state."""
        return [
            min(
                (c for c in self._candidates if c.host_state is on_host),
                key=lambda c: (c.micro_batch_tokens, -c.checkpointed_layers),
            )
            for on_host in sorted({c.host_state for c in self._candidates})
        ]

    def most_frugal(self) -> Candidate:
        """Return the candidate whose need of the card is the floor of the job."""
        best, *others = reversed(self.frugal)  # that on the host mostly needs far less
        for other in others:
            floor = self.need(best).required_bytes
            if self.least_bytes(other) <= floor and self.need(other).required_bytes <= floor:
                best = other
        return best

    def _samples(self, candidate: Candidate, *, with_work: bool = True) -> list[Sample]:
        like = replace(candidate, checkpointed_layers=0)
        return sample_step(
            self.facts.build_model,
            lambda steps: like.settings(self.facts, steps),
            self.facts.device,
            with_work=with_work,
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


def _shares_layers(model: nn.Module) -> bool:
    """Say whether the encoder runs one layer several times, as ALBERT does."""
    config = model.config
    groups = getattr(config, "num_hidden_groups", None)
    return groups is not None and groups < getattr(config, "num_hidden_layers", 0)
