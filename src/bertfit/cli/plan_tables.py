"""Plans as tables for people: what was chosen, what it needs, what lost, and which card is best."""

from collections.abc import Sequence

from bertfit.cli.memory_tables import print_parts
from bertfit.diagnose.explain import explain
from bertfit.diagnose.explain_plan import LeverExplained
from bertfit.jobs.plan import Ranked
from bertfit.language import _
from bertfit.planning.candidates import Candidate, JobFacts
from bertfit.planning.plan import Plan
from bertfit.units import format_bytes, format_seconds


def print_plan(plan: Plan, facts: JobFacts) -> None:
    """Print a plan: the verdict, the levers, the parts of its memory, and the losers."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(
        _("{model} on {card}: {required} required of {budget}.").format(
            model=facts.model,
            card=facts.device.name,
            required=format_bytes(plan.estimate.required_bytes),
            budget=format_bytes(facts.budget_bytes),
        ),
        style="green",
    )
    console.print(
        _("About {rate:,.0f} tokens/s: {step} a step, {job} for {steps} steps.").format(
            rate=plan.tokens_per_second,
            step=_step_time(plan.step_seconds),
            job=format_seconds(plan.job_seconds),
            steps=facts.num_steps,
        )
    )
    table = Table(box=None, pad_edge=False)
    table.add_column(_("lever"))
    table.add_column(_("chosen"))
    table.add_column(_("what it means"), overflow="fold")
    for name, value, meaning in levers_in_words(plan, facts):
        table.add_row(name, value, meaning)
    console.print()
    console.print(table)
    console.print()
    print_parts(explain(plan.estimate), plan.estimate.peak_phase)
    console.print(
        _("On the host: {host}, {pinned} of it pinned.").format(
            host=format_bytes(plan.estimate.host_bytes + plan.estimate.pinned_bytes),
            pinned=format_bytes(plan.estimate.pinned_bytes),
        )
    )
    console.print()
    _print_rejected(plan, facts)


def levers_in_words(plan: Plan, facts: JobFacts) -> list[tuple[str, str, str]]:
    """Return each lever, its value, and what that means for this job."""
    chosen, settings = plan.chosen, plan.settings
    windows = max(1, min(chosen.micro_batch_tokens // facts.longest, facts.windows_per_step))
    rows = [
        (
            "precision",
            settings.precision,
            _("what the card computes fastest at the same quality")
            if settings.precision != "fp32"
            else _("32-bit numbers throughout"),
        ),
        (
            "micro-batch-tokens",
            str(chosen.micro_batch_tokens),
            _(
                "{windows} windows of {length} tokens at once; {parts:.1f} micro-batches a step"
            ).format(windows=windows, length=facts.longest, parts=plan.micro_batches),
        ),
        (
            "activation-checkpointing",
            str(chosen.checkpointed_layers),
            _("layers computed twice, so that their activations need not be kept")
            if chosen.checkpointed_layers
            else _("nothing is computed twice"),
        ),
        (
            "host-state",
            _on_off(chosen.host_state),
            _("fp32 weights and AdamW are in the host's memory")
            if chosen.host_state
            else _("weights and AdamW are on the card"),
        ),
        (
            "autocast-cache",
            _on_off(chosen.autocast_cache),
            _("16-bit copies of weights are kept during a forward")
            if chosen.autocast_cache
            else _("16-bit copies of weights are made when they are needed"),
        ),
        (
            "expandable-segments",
            _on_off(chosen.expandable_segments),
            _("the allocator grows its segments, so gaps are few")
            if chosen.expandable_segments
            else _("the allocator's ordinary segments"),
        ),
    ]
    if settings.precision == "fp32":
        rows = [row for row in rows if row[0] != "autocast-cache"]
    return rows


def _print_rejected(plan: Plan, facts: JobFacts) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=_("not chosen"), title_justify="left")
    table.add_column(_("candidate"), overflow="fold")
    table.add_column(_("tokens/s"), justify="right")
    table.add_column(_("why not"), overflow="fold")
    # The losers next to the winner say most: the last that were too large, then the slower ones.
    for loser in plan.nearest_rejected():
        rate = plan.tokens_per_second * plan.step_seconds / loser.step_seconds
        table.add_row(candidate_in_words(loser.candidate, facts), f"{rate:,.0f}", loser.reason)
    if table.row_count:
        Console(highlight=False).print(table)


def candidate_in_words(candidate: Candidate, facts: JobFacts) -> str:
    """Describe a candidate in a line."""
    windows = max(1, candidate.micro_batch_tokens // facts.longest)
    words = [
        _("{windows} x {length} tokens").format(windows=windows, length=facts.longest),
        _twice(candidate.checkpointed_layers),
    ]
    if candidate.host_state:
        words.append(_("state on the host"))
    return ", ".join(words)


def _twice(count: int) -> str:
    if count < 2:
        return _("1 layer twice") if count else _("nothing twice")
    return _("{count} layers twice").format(count=count)


def print_ranking(model: str, ranked: Sequence[Ranked]) -> None:
    """Print the cards of the catalogue, the fastest first."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        box=None,
        pad_edge=False,
        title=_("{model}: every card of the catalogue").format(model=model),
        title_justify="left",
    )
    table.add_column(_("card"))
    for name in (_("memory"), _("tokens/s"), _("job"), _("required"), _("micro-batch")):
        table.add_column(name, justify="right")
    table.add_column(_("levers"))
    for row in ranked:
        if row.plan is None:
            table.add_row(
                row.card, format_bytes(row.total_bytes), "-", "-", "-", "-", _("does not fit")
            )
            continue
        chosen = row.plan.chosen
        levers = []
        if chosen.checkpointed_layers:
            levers.append(_twice(chosen.checkpointed_layers))
        if chosen.host_state:
            levers.append(_("state on the host"))
        table.add_row(
            row.card,
            format_bytes(row.total_bytes),
            f"{row.plan.tokens_per_second:,.0f}",
            format_seconds(row.plan.job_seconds),
            format_bytes(row.plan.estimate.required_bytes),
            f"{chosen.micro_batch_tokens:,}",
            ", ".join(levers),
        )
    Console(highlight=False).print(table)


def _step_time(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


def _on_off(value: bool) -> str:
    return _("on") if value else _("off")


def print_lever(told: LeverExplained) -> None:
    """Print what a lever does and what its values need."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(told.meaning)
    table = Table(box=None, pad_edge=False)
    for name in (told.lever, _("required"), _("tokens/s")):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in told.rows:
        mark = _("chosen") if row.is_chosen else "" if row.fits else _("does not fit")
        table.add_row(
            _on_off(row.value) if isinstance(row.value, bool) else f"{row.value:,}",
            format_bytes(row.required_bytes),
            f"{row.tokens_per_second:,.0f}",
            mark,
        )
    console.print()
    console.print(table)
