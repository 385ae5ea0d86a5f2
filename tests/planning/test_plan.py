"""The fastest plan that fits: laws 2 and 10, monotone by budget, refusals, and its texts."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bertfit.config import job_config
from bertfit.errors import BudgetError, ConfigError
from bertfit.jobs.train import train
from bertfit.memory.allocator import CachingAllocator
from bertfit.memory.device import resolve_device
from bertfit.models.encoder import build_classifier
from bertfit.planning.candidates import JobFacts, Pins, candidates, cut_step, hardest_step
from bertfit.planning.choice import choose
from bertfit.planning.cost import StepCost
from bertfit.planning.estimate import simulate
from bertfit.planning.levers import TrainSettings
from bertfit.planning.mixed_steps import StepFamily
from bertfit.planning.plan import make_plan
from bertfit.planning.planner import Planner
from bertfit.planning.sample import features, sample_step
from bertfit.types import LengthProfile
from bertfit.units import GIB, MIB
from jobs.corpora import sentence, write_records

CONFIG = {
    "model_type": "bert",
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
}


def build() -> nn.Module:
    with torch.device("meta"):
        return build_classifier(CONFIG, ("O", "B-X", "I-X"))


def facts(histogram: dict[int, int], windows: int = 8, **changed: object) -> JobFacts:
    card = resolve_device("rtx-3050-4gb")
    made = JobFacts(
        model="small",
        build_model=build,
        settings=TrainSettings(steps=(((1, 1),),), num_tags=3, precision="bf16"),
        lengths=LengthProfile(histogram=histogram),
        windows_per_step=windows,
        num_steps=10,
        device=card,
        budget_bytes=card.total_bytes,
        host_bytes=64 * GIB,
    )
    return replace(made, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("positions", [2, 11, 64, 100, 200])
def test_models_of_few_positions_are_planned(positions: int) -> None:
    def build_short() -> nn.Module:
        with torch.device("meta"):
            config = {**CONFIG, "max_position_embeddings": positions}
            return build_classifier(config, ("O", "B-X", "I-X"))

    asked = facts({positions: 3, 1: 1}, build_model=build_short)
    plan = make_plan(Planner(asked))
    assert plan.estimate.required_bytes <= asked.budget_bytes


@pytest.fixture(scope="module")
def planners() -> list[Planner]:
    """Planners remember what they estimated, so a later budget costs little."""
    return [Planner(facts({256: 1})), Planner(facts({16: 50, 40: 30, 256: 1}, windows=6))]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_larger_budget_is_never_slower(planners: list[Planner], data: st.DataObject) -> None:
    planner = data.draw(st.sampled_from(planners))
    small = data.draw(st.integers(300 * MIB, 420 * MIB))
    large = small + data.draw(st.integers(0, 100 * MIB))
    first, __ = choose(planner, small, 64 * GIB)
    second, __ = choose(planner, large, 64 * GIB)
    if first is not None:
        assert second is not None
        assert planner.seconds[second] <= planner.seconds[first]


def test_what_is_chosen_fits_and_everything_faster_does_not(planners: list[Planner]) -> None:
    planner = planners[0]
    budget = 340 * MIB
    chosen, rejected = choose(planner, budget, 64 * GIB)
    assert chosen is not None
    assert planner.need(chosen).required_bytes <= budget
    for loser in rejected:
        assert planner.need(loser.candidate).required_bytes > budget
        assert loser.step_seconds <= planner.seconds[chosen]


def test_the_screen_is_never_above_the_exact_need(planners: list[Planner]) -> None:
    for planner in planners:
        for candidate in planner.ordered[::7]:
            assert planner.about_bytes(candidate) <= planner.need(candidate).required_bytes


def test_the_screen_is_close_where_the_embedding_outweighs_the_layers() -> None:
    planner = Planner(facts({256: 1}, windows=64, build_model=large_vocabulary))
    for candidate in planner.ordered[::12]:
        about, exact = planner.about_bytes(candidate), planner.need(candidate).required_bytes
        assert 0.9 * exact <= about <= exact, candidate


def large_vocabulary() -> nn.Module:
    with torch.device("meta"):
        return build_classifier({**CONFIG, "vocab_size": 90_000}, ("O", "B-X", "I-X"))


@pytest.mark.parametrize("host_state", [False, True])
def test_near_the_fence_the_peak_is_that_of_an_allocator_with_the_cap(host_state: bool) -> None:
    planner = Planner(facts({16: 50, 40: 30, 256: 1}, windows=64, build_model=large_vocabulary))
    candidate = next(c for c in planner.ordered if c.host_state is host_state)
    need, context = planner.need(candidate), planner.facts.device.context_bytes
    events = list(
        simulate(large_vocabulary, planner.settings(candidate), planner.facts.device).trace.events()
    )
    peaks = set()
    for cap in range(need.peak_allocated_bytes, need.peak_reserved_bytes + 8 * MIB, 2 * MIB):
        planner.facts = replace(planner.facts, budget_bytes=cap + context)
        allocator = CachingAllocator(reserved_limit_bytes=cap, expandable_segments=True)
        fits = allocator.replay(events)
        fenced = planner.need_in_fence(candidate)
        if fits:
            assert fenced.peak_reserved_bytes == allocator.peak_reserved_bytes <= cap
        else:
            assert fenced == need
        peaks.add(fenced.peak_reserved_bytes)
    assert len(peaks) > 1, "some cap is to make it give back"


def test_without_a_budget_nothing_is_given_back_to_a_cap() -> None:
    planner = Planner(facts({256: 1}))
    candidate = planner.ordered[0]
    need = planner.need(candidate)
    planner.facts = replace(planner.facts, budget_bytes=need.required_bytes, is_fenced=False)
    assert planner.need_in_fence(candidate) == need


def test_a_host_without_memory_is_no_home_for_the_state(planners: list[Planner]) -> None:
    planner = planners[0]
    least = min(planner.need(c).required_bytes for c in planner.frugal if not c.host_state)
    assert choose(planner, least, 0)[0] is None
    chosen, __ = choose(planner, least, 64 * GIB)
    assert chosen is not None


def test_candidates_do_not_depend_on_the_budget() -> None:
    one, other = facts({64: 1}), facts({64: 1}, budget_bytes=GIB)
    assert candidates(one, 3, shares_layers=False) == candidates(other, 3, shares_layers=False)


def test_a_step_of_even_windows_is_cut_into_equal_parts() -> None:
    even = facts({64: 1}, windows=8)
    assert cut_step(even.steps()[0], 2 * 64) == [(2, 64)] * 4
    # A third micro-batch of one shape asks for nothing new.
    assert hardest_step(even, 2 * 64) == [(2, 64)] * 2
    assert hardest_step(facts({64: 1}, windows=7), 3 * 64)[-1] == (1, 64)


def test_gaps_that_steps_of_other_lengths_leave_are_counted(planners: list[Planner]) -> None:
    even, mixed = planners
    assert len(even.settings(even.ordered[0]).steps) == 1
    candidate = mixed.ordered[0]
    hardest, usual = mixed.settings(candidate).steps
    family = StepFamily(build, mixed.settings(candidate), mixed.facts.device, longest=256)
    assert mixed.need(candidate) == family.estimate((hardest, usual))
    assert usual == tuple(cut_step(mixed.facts.steps()[0], candidate.micro_batch_tokens))


def test_flops_are_those_of_the_matrix_products() -> None:
    card = resolve_device("rtx-3050-4gb")
    samples = sample_step(
        build, lambda steps: TrainSettings(steps=steps, num_tags=3, padded=False), card
    )
    # By hand: 3 layers of 4 H x H and 2 H x 4H products and 2 of attention, then the head.
    width, tokens, length = 64, 32 * 128, 128
    layer = 2 * 12 * width * width * tokens + 4 * width * length * tokens
    forward = 3 * layer + 2 * width * 3 * tokens
    work = samples[0].work
    counted = sum(
        flops
        for flops, (phase, __) in zip(work.flops, work.places, strict=True)
        if phase == "forward"
    )
    assert samples[0].shape == (32, 128)
    assert counted == 2 * forward  # two micro-batches


def test_recomputing_a_layer_takes_its_forward_once_more() -> None:
    card = resolve_device("rtx-3050-4gb")
    samples = sample_step(
        build, lambda steps: TrainSettings(steps=steps, num_tags=3, padded=False), card
    )
    cost = StepCost(samples, card, is_half=False)
    step = [(64, 512)] * 2  # large, so that launches do not count
    none, one, all_three = (cost.seconds(step, count) for count in (0, 1, 3))
    assert one - none == pytest.approx((all_three - none) / 3, rel=1e-6)
    assert 0.2 < (all_three - none) / none < 0.5
    assert features((2, 3)).tolist() == [1.0, 6.0, 18.0]


def test_a_pinned_lever_that_contradicts_the_budget_is_the_users_to_mend() -> None:
    pinned = facts({256: 1}, budget_bytes=335 * MIB, pins=Pins(micro_batch_tokens=8 * 256))
    with pytest.raises(ConfigError, match="--micro-batch-tokens 2048") as caught:
        make_plan(Planner(pinned))
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_pinned_lever_that_the_host_has_no_memory_for_is_told_so() -> None:
    job = facts({256: 1}, pins=Pins(host_state=True))
    with pytest.raises(ConfigError, match=r"host-state true: .* of this machine's memory, and 1"):
        make_plan(Planner(replace(job, host_bytes=facts_of_host(job) - MIB)))


def facts_of_host(job: JobFacts) -> int:
    """Return the least memory of the host with which a plan fits."""
    planner = Planner(job)
    needs = [planner.need(candidate) for candidate in planner.ordered]
    return min(need.host_bytes + need.pinned_bytes for need in needs)


def test_a_host_without_room_for_layer_inputs_gets_a_plan_without_them() -> None:
    job = facts({256: 1}, pins=Pins(host_state=True))
    planner = Planner(job)
    assert planner.frugal[0].checkpointed_layers == 3
    least = facts_of_host(job)
    frugal = planner.need(planner.frugal[0])
    assert frugal.host_bytes + frugal.pinned_bytes > least
    plan = make_plan(Planner(replace(job, host_bytes=least)))
    assert plan.estimate.host_bytes + plan.estimate.pinned_bytes == least


def test_more_layers_computed_twice_than_there_are_are_refused() -> None:
    with pytest.raises(ConfigError, match="has 3 layers"):
        Planner(facts({64: 1}, pins=Pins(activation_checkpointing=4)))


def test_what_cannot_fit_is_refused_with_its_floor() -> None:
    with pytest.raises(BudgetError, match="needs at least") as caught:
        make_plan(Planner(facts({256: 1}, budget_bytes=301 * MIB)))
    assert caught.value.exit_code == 3
    assert "64.00 GiB" not in str(caught.value), "the host is not what lacks"


def test_pins_are_kept_to() -> None:
    plan = make_plan(
        Planner(facts({64: 1}, pins=Pins(activation_checkpointing=2, expandable_segments=False)))
    )
    assert plan.chosen.checkpointed_layers == 2
    assert plan.settings.checkpointed_layers == 2
    assert not plan.settings.expandable_segments


@pytest.mark.parametrize(
    "model",
    [
        "bert-base-chinese",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("bert-large-uncased", "xlm-roberta-base", "xlm-roberta-large")
        ),
    ],
)
def test_a_plan_is_never_slower_than_what_trainer_does_in_the_same_memory(model: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        import cost_vs_trainer
    finally:
        del sys.path[0]
    for row in cost_vs_trainer.compare(model):
        assert row["plan_seconds"] <= row["trainer_seconds"], row
        assert row["required_mib"] <= row["budget_mib"]


def test_law_10_the_same_job_at_five_budgets_has_the_same_losses(tmp_path: Path) -> None:
    import random

    rng = random.Random(0)
    records = [
        {"text": " ".join(str(sentence(rng)["text"]) for __ in range(8)), "entities": []}
        for __ in range(24)
    ]
    data = write_records(tmp_path / "train.jsonl", records)
    losses, plans = [], []
    for budget in ("3.8GiB", "345MiB", "340MiB", "336MiB", "333MiB"):
        folder = tmp_path / budget
        train(
            job_config(
                {
                    "model": "tiny",
                    "train_file": data,
                    "eval_fraction": 0.0,
                    "output_dir": folder,
                    "device": "sim:rtx-3050-4gb",
                    "budget": budget,
                    "num_train_epochs": 1,
                    "batch_size": 12,
                    "dropout": 0.0,
                    "precision": "fp32",
                    "logging_steps": 1,
                    "save_every": "never",
                }
            ),
            progress=False,
            say=lambda message: None,
        )
        rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
        losses.append([row["loss"] for row in rows])
        plans.append(json.loads((folder / "plan.json").read_text())["chosen"])
    assert len({json.dumps(plan) for plan in plans}) >= 3, "the budgets are to need other plans"
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-6)
