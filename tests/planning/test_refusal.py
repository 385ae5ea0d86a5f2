"""What is said where nothing fits: a floor that is enough, and trade-offs as a fresh trace has them."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertfit.errors import BudgetError
from bertfit.planning import program
from bertfit.planning.candidates import JobFacts, Pins, hardest_steps
from bertfit.planning.estimate import estimate_memory, least_bytes, required_bytes
from bertfit.planning.levers import Shape, TrainSettings
from bertfit.planning.plan import make_plan
from bertfit.planning.planner import Planner
from bertfit.planning.refusal import nothing_fits, trade_offs_that_fit
from bertfit.planning.tradeoffs import CATALOGUE, with_trade_offs
from bertfit.types import Batch, LengthProfile
from bertfit.units import MIB, format_floor, parse_bytes
from planning.test_plan import facts, large_vocabulary

EVEN, MIXED = {256: 1}, {16: 50, 40: 30, 200: 5, 256: 1}


@pytest.fixture(scope="module")
def planners() -> list[Planner]:
    """Planners remember what they estimated, so a later budget costs little."""
    return [
        Planner(facts(EVEN)),
        Planner(facts(MIXED, windows=6)),
        Planner(facts(MIXED, windows=6, build_model=large_vocabulary)),
        Planner(facts({5: 3, 8: 1}, windows=2)),
        Planner(facts(MIXED, pins=Pins(host_state=False))),
    ]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_the_floor_that_a_refusal_names_is_enough(
    planners: list[Planner], data: st.DataObject
) -> None:
    # Where a lever is set, what is to be left out is named, and no floor.
    planner = data.draw(st.sampled_from([p for p in planners if not p.facts.pins.given()]))
    floor = planner.need(planner.most_frugal()).required_bytes
    context = planner.facts.device.context_bytes
    budget = data.draw(st.integers(context + 1, floor - 1))
    planner.facts = replace(planner.facts, budget_bytes=budget)
    with pytest.raises(BudgetError) as caught:
        make_plan(planner)
    named = re.search(r"needs at least ([0-9.]+ [KMG]iB)", str(caught.value))
    assert named is not None
    planner.facts = replace(planner.facts, budget_bytes=parse_bytes(named[1]))
    assert make_plan(planner).estimate.required_bytes <= planner.facts.budget_bytes


def test_no_candidate_is_judged_frugal_that_needs_more_than_another(
    planners: list[Planner],
) -> None:
    for planner in planners:
        floor = planner.need(planner.most_frugal()).required_bytes
        assert floor == min(planner.need(c).required_bytes for c in planner.frugal)


def as_fresh_traces_say(planner: Planner) -> dict[str, str]:
    """Return what each trade-off needs, every one traced anew from beginning to end."""
    candidate, found = planner.most_frugal(), {}
    for offer in CATALOGUE:
        job = planner.facts
        if offer.name == "shorter-windows":
            job = replace(job, lengths=LengthProfile(histogram={128: 1}))
        else:
            changed = with_trade_offs(job.settings, {offer.name: None}, 3)  # type: ignore[dict-item]
            if changed == job.settings or (candidate.host_state and changed.optimizer != "adamw"):
                continue
            job = replace(job, settings=changed)
        layers = min(candidate.checkpointed_layers, job.settings.first_layers or 3)
        tokens = min(candidate.micro_batch_tokens, job.longest)
        frugal = replace(candidate, checkpointed_layers=layers, micro_batch_tokens=tokens)
        need = estimate_memory(
            job.build_model, frugal.settings(job, hardest_steps(job, tokens)), job.device
        )
        if need.required_bytes <= job.budget_bytes:
            found[offer.name] = format_floor(need.required_bytes)
    return found


@pytest.mark.parametrize("host_state", [None, False])
@pytest.mark.parametrize("histogram", [EVEN, MIXED], ids=["even", "mixed"])
def test_trade_offs_are_those_that_fresh_traces_find(
    histogram: dict[int, int], host_state: bool | None
) -> None:
    planner = Planner(facts(histogram, windows=6, pins=Pins(host_state=host_state)))
    floor = planner.need(planner.most_frugal()).required_bytes
    planner.facts = replace(planner.facts, budget_bytes=floor - 1)
    lines = trade_offs_that_fit(planner, planner.most_frugal())
    told = [re.match(r"--allow ([\w-]+): ([0-9.]+ [KMG]iB);", line) for line in lines]
    assert {line[1]: line[2] for line in told if line} == as_fresh_traces_say(planner)
    assert len(told) == len(lines) > 0


LEVERS: list[dict[str, object]] = [
    {},
    {"host_state": True},
    {"lora_rank": 8},
    {"lora_rank": 8, "host_state": True},
    {"frozen_layers": 2, "frozen_embeddings": True, "optimizer": "adamw-8bit"},
    {"first_layers": 1, "precision": "fp32"},
    {"optimizer": "adafactor", "checkpointed_layers": 3},
]


@pytest.mark.parametrize("levers", LEVERS, ids=str)
def test_what_surely_does_not_suffice_is_below_what_is_allocated(levers: dict[str, object]) -> None:
    job: JobFacts = facts(EVEN, build_model=large_vocabulary)
    values = {"precision": "bf16", **levers}
    steps = (((1, 8),),)
    made = TrainSettings(steps=steps, num_tags=3, padded=False, **values)  # type: ignore[arg-type]
    least = least_bytes(job.build_model, made, job.device)
    need = estimate_memory(job.build_model, made, job.device)
    assert 0.4 * need.peak_allocated_bytes < least <= need.peak_allocated_bytes
    assert required_bytes(least, job.device) < need.required_bytes


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
    """Count work, not seconds: the micro-batches that are traced take the time of a refusal."""
    made: list[Shape] = []
    blank = program.blank_batch

    def counted(shape: Shape, padded: bool, *, labels: bool) -> Batch:
        made.append(shape)
        return blank(shape, padded, labels=labels)

    monkeypatch.setattr(program, "blank_batch", counted)
    return made


def test_a_hopeless_budget_costs_one_trace_of_what_needs_least(batches: list[Shape]) -> None:
    job = facts(MIXED, windows=6, build_model=large_vocabulary, budget_bytes=301 * MIB)
    planner = Planner(job)
    with pytest.raises(BudgetError, match="needs at least"):
        make_plan(planner)
    # The very first, and in a second step every shape once.
    hardest, usual = planner.settings(planner.most_frugal()).steps
    assert len(batches) == 1 + len({*hardest, *usual})


def test_a_trade_off_that_could_be_enough_costs_one_trace(batches: list[Shape]) -> None:
    planner = Planner(facts(EVEN, build_model=large_vocabulary))
    floor = planner.need(planner.most_frugal()).required_bytes
    planner.facts = replace(planner.facts, budget_bytes=floor - 1)
    before = len(batches)
    lines = str(nothing_fits(planner)).splitlines()[1:]
    assert lines
    # The very first micro-batch and one of a later step, each with its state on the host.
    assert len(batches) - before <= 2 * len(CATALOGUE)
