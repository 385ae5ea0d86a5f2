"""One lever of a plan: what it does, what it costs, and what its other values would need here."""

from dataclasses import dataclass, replace

from bertfit.language import N_, _
from bertfit.planning.plan import Plan
from bertfit.planning.planner import Planner

# What a lever does to memory, to time and to the result.
LEVERS = {
    "micro_batch_tokens": N_(
        "A step is cut into micro-batches of at most so many padded tokens. Memory grows with "
        "them. Small ones leave the card idle between operations, large ones gain little. The "
        "loss is divided once by all labelled tokens of the step, so the cut changes no result."
    ),
    "activation_checkpointing": N_(
        "The activations of so many of the first layers are not kept but computed again in the "
        "backward pass. Each such layer costs one more forward of itself: a third of its time. "
        "The result is the same, dropout included."
    ),
    "host_state": N_(
        "The fp32 weights and AdamW's two numbers per weight live in the host's memory; the card "
        "has the 16-bit weights that it multiplies with. Gradients leave while they are made. It "
        "costs a pass over the weights on the host and two over the bus for each step."
    ),
    "autocast_cache": N_(
        "Autocast can keep the 16-bit copy of a weight until the forward ends. That only saves "
        "time where one weight is used several times in a forward (ALBERT); else it only takes "
        "memory while layers are computed twice."
    ),
    "expandable_segments": N_(
        "The allocator grows its segments page by page, so blocks of other lengths find their "
        "place. It costs no time. Windows has it not."
    ),
}
_MOST_ROWS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverRow:
    """One value of a lever, all others as in the plan."""

    value: int | bool
    required_bytes: int
    tokens_per_second: float
    fits: bool
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverExplained:
    """What a lever does, and what its values would do to this job."""

    lever: str
    meaning: str
    rows: tuple[LeverRow, ...]


def explain_lever(name: str, plan: Plan, planner: Planner) -> LeverExplained:
    """Compare the values of one lever, exactly.

    Args:
        name: a key of `LEVERS`.
        plan: whose other levers stay.
        planner: that made it.
    """
    field = {"activation_checkpointing": "checkpointed_layers"}.get(name, name)
    chosen = getattr(plan.chosen, field)
    values = sorted({getattr(candidate, field) for candidate in planner.ordered})
    rows = []
    for value in _near(values, chosen):
        candidate = replace(plan.chosen, **{field: value})  # type: ignore[arg-type]
        if candidate not in planner.seconds:
            continue
        required = planner.need(candidate).required_bytes
        rows.append(
            LeverRow(
                value=value,
                required_bytes=required,
                tokens_per_second=planner.step_tokens / planner.seconds[candidate],
                fits=required <= planner.facts.budget_bytes,
                is_chosen=value == chosen,
            )
        )
    return LeverExplained(lever=name.replace("_", "-"), meaning=_(LEVERS[name]), rows=tuple(rows))


def _near(values: list[int], chosen: int) -> list[int]:
    """Return the values around the chosen one, and the ends."""
    at = values.index(chosen)
    around = values[max(0, at - 2) : at + 3]
    return sorted({values[0], *around, values[-1]})[: _MOST_ROWS + 1]
