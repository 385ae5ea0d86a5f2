"""Which candidate is taken: the fastest that fits card and host, and why the others are not.

Costs and needs do not depend on the budget, so a larger budget is never slower. What is chosen fits
exactly; what a rough figure shuts out may be short by little.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bertfit.language import _
from bertfit.planning.candidates import Candidate
from bertfit.planning.planner import Planner
from bertfit.units import format_bytes

# So many losers next to the winner are shown with what they need.
NEAREST = 4


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

    Of candidates that differ in the layers computed twice alone, it is the one with fewest of them
    that fits. Every test is against a figure that the budget is no part of, so whatever fits one
    budget fits a larger one.
    """
    fewest: dict[Candidate, Candidate | None] = {}
    before: list[Candidate] = []
    for candidate in planner.ordered:
        alike = replace(candidate, checkpointed_layers=0)
        if _about(planner, candidate) > budget_bytes:
            before.append(candidate)
            continue
        if alike not in fewest:
            fewest[alike] = _fewest_layers_twice(planner, candidate, budget_bytes)
        if candidate == fewest[alike]:
            if _misfit(planner, candidate, budget_bytes, host_bytes)[0] is None:
                return candidate, _rejected(planner, before, budget_bytes, host_bytes)
            fewest[alike] = None  # the host: with more layers twice it needs more, not less
        before.append(candidate)
    return None, _rejected(planner, before, budget_bytes, host_bytes)


def _fewest_layers_twice(
    planner: Planner, candidate: Candidate, budget_bytes: int
) -> Candidate | None:
    """Return the one with fewest layers computed twice that the card holds, of all like this one.

    Each more of them needs less, but where the peak lies outside of the layers: so with each look
    half of those that are left are out. A larger budget never ends at more layers.
    """

    def holds(one: Candidate) -> bool:
        return _misfit_of_card(planner, one, budget_bytes)[0] is None

    layers = sorted(
        other.checkpointed_layers
        for other in planner.ordered
        if replace(other, checkpointed_layers=candidate.checkpointed_layers) == candidate
    )
    like = [replace(candidate, checkpointed_layers=count) for count in layers]
    if holds(like[0]):
        return like[0]
    fewest = bisect_left(like, True, lo=1, key=holds)
    return like[fewest] if fewest < len(like) else None


def _rejected(
    planner: Planner, candidates: Sequence[Candidate], budget_bytes: int, host_bytes: int
) -> list[Rejected]:
    """Say why candidates do not fit; of the last of them, and of what is known, by how much."""
    found = []
    for place, candidate in enumerate(candidates, 1):
        reason, needed = None, None
        is_near = place > len(candidates) - NEAREST
        is_rough = _about(planner, candidate) > budget_bytes
        if is_near or is_rough or candidate in planner.needs:
            reason, needed = _misfit(planner, candidate, budget_bytes, host_bytes)
        found.append(
            Rejected(
                candidate=candidate,
                reason=reason or _("does not fit even with more layers twice"),
                step_seconds=planner.seconds[candidate],
                required_bytes=needed,
            )
        )
    return found


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
    """Say, before anything is put in order, that the card does not even hold what needs least.

    The host is not asked: other candidates need less of it.
    """
    budget = planner.facts.budget_bytes
    return all(
        planner.least_bytes(candidate) > budget or planner.need(candidate).required_bytes > budget
        for candidate in reversed(planner.frugal)
    )


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
    reason, needed = _misfit_of_card(planner, candidate, budget_bytes)
    if reason is None:
        need = planner.need(candidate)
        on_host = need.host_bytes + need.pinned_bytes
        if on_host > host_bytes:
            reason = _("needs {size} of the host's memory, which has {all}").format(
                size=format_bytes(on_host), all=format_bytes(host_bytes)
            )
    return reason, needed


def _misfit_of_card(
    planner: Planner, candidate: Candidate, budget_bytes: int
) -> tuple[str | None, int | None]:
    """Say why the card does not hold a candidate; see `_misfit`."""
    about = _about(planner, candidate)
    if about > budget_bytes:
        is_frugal = candidate in planner.frugal
        told = _("needs more than {size}") if is_frugal else _("needs about {size}")
        return told.format(size=format_bytes(about)), None
    need = planner.need(candidate)
    if need.required_bytes > budget_bytes:
        return (
            _("needs {size}, {over} more than there is").format(
                size=format_bytes(need.required_bytes),
                over=format_bytes(need.required_bytes - budget_bytes),
            ),
            need.required_bytes,
        )
    return None, need.required_bytes


def _about(planner: Planner, candidate: Candidate) -> int:
    """Return a figure that spares the exact one where it is too much already.

    Nothing but what is exact or surely too little decides over what needs least: its need is the
    floor that a refusal names. The rough figure of the others is up to 5% below the exact one.
    """
    is_frugal = candidate in planner.frugal
    return planner.least_bytes(candidate) if is_frugal else planner.about_bytes(candidate)
