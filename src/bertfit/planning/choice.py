"""Which candidate is taken: the fastest that fits card and host, and why the others are not.

Costs do not depend on the budget and what fits is exact, so a larger budget is never slower.
"""

from dataclasses import dataclass

from bertfit.language import _
from bertfit.planning.candidates import Candidate
from bertfit.planning.planner import Planner
from bertfit.units import format_bytes


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


def slower(planner: Planner, chosen: Candidate) -> list[Rejected]:
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
        for candidate in sorted(found, key=planner.seconds.__getitem__)
    ]


def runners_up(planner: Planner, chosen: Candidate, count: int = 2) -> list[Candidate]:
    """Return the next fastest that fit too and differ only in what can be changed at once."""
    found: list[Candidate] = []
    after = planner.ordered[planner.ordered.index(chosen) + 1 :]
    for candidate in after:
        if len(found) == count:
            break
        if candidate.host_state != chosen.host_state:
            continue
        if fits(planner, candidate):
            found.append(candidate)
    return found


def is_hopeless(planner: Planner) -> bool:
    """Say, before anything is put in order, that not even what needs least fits."""
    return not any(fits(planner, candidate) for candidate in reversed(planner.frugal))


def is_tight(planner: Planner) -> bool:
    """Say that the card has no room for weights and optimizer."""
    budget = planner.facts.budget_bytes
    return all(planner.least_bytes(c) > budget for c in planner.frugal if not c.host_state)


def fits(planner: Planner, candidate: Candidate) -> bool:
    """Say whether a candidate fits card and host of its job."""
    facts = planner.facts
    return _misfit(planner, candidate, facts.budget_bytes, facts.host_bytes)[0] is None


def _misfit(
    planner: Planner, candidate: Candidate, budget_bytes: int, host_bytes: int
) -> tuple[str | None, int | None]:
    """Say why a candidate does not fit, None where it does, and what it needs if that is known."""
    # Nothing but what is exact or surely too little decides over what needs least: its need is the
    # floor that a refusal names. The rough figure is up to 5% below the exact one.
    is_frugal = candidate in planner.frugal
    about = planner.least_bytes(candidate) if is_frugal else planner.about_bytes(candidate)
    if about > budget_bytes:
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
