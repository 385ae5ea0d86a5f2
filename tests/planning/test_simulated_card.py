"""The card made of RAM: it fails where a card would, leaks nothing and changes no result."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bertfit.config import Precision, job_config
from bertfit.data.batches import cut, pack, pad
from bertfit.engine.host_state import make_update as place
from bertfit.engine.optim import Update, parameter_groups
from bertfit.engine.recovery import Steps
from bertfit.engine.step import train_step
from bertfit.errors import BudgetError, ConfigError
from bertfit.jobs.train import train
from bertfit.memory.device import resolve_device
from bertfit.planning.simulated_card import SimulatedCard
from bertfit.planning.workplace import workplace_of
from bertfit.types import Batch
from bertfit.units import GIB, MIB
from jobs.corpora import write_corpus
from tiny_models import random_window, tiny_model

SPEC = resolve_device("rtx-3050-4gb")
CONTEXT = SPEC.context_bytes


def make_update(model: nn.Module, device: torch.device, precision: Precision) -> Update:
    groups = parameter_groups(
        model, [], learning_rate=1e-3, head_learning_rate=1e-3, weight_decay=0.01
    )
    return place(model, groups, device=device, precision=precision, max_grad_norm=1.0)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return tiny_model(dropout=0.1).train()


def card_for(model: nn.Module, budget_bytes: int | None = None) -> SimulatedCard:
    card = SimulatedCard(SPEC, budget_bytes=budget_bytes, precision="fp32")
    card.load(model, make_update, 64)
    return card


def batches(lengths: list[int], tokens: int) -> list[Batch]:
    windows = [random_window(length, seed) for seed, length in enumerate(lengths)]
    return [pad(part, 0) for part in cut(windows, tokens)]


def count(card: SimulatedCard, step: list[Batch]) -> None:
    card.charge(step, with_update=True)


def test_weights_and_moments_are_there_before_step_one(model: nn.Module) -> None:
    card = card_for(model)
    tensors = [p.numel() * 4 for p in model.parameters()]
    expected = sum(3 * (-(-size // 512) * 512) + 512 for size in tensors)
    buffers = sum(-(-b.numel() * b.element_size() // 512) * 512 for b in model.buffers())
    assert card.allocator.allocated_bytes == expected + buffers


def test_every_step_leaves_as_much_as_the_one_before(model: nn.Module) -> None:
    card = card_for(model)
    live = []
    for lengths in ([9, 20, 31], [40, 8], [9, 20, 31], [12], [40, 41, 42, 8]):
        count(card, batches(lengths, 64))
        live.append(card.allocator.allocated_bytes)
    assert len(set(live)) == 1


def test_a_step_that_does_not_fit_gives_everything_back(model: nn.Module) -> None:
    card = card_for(model, CONTEXT + 24 * MIB)
    held = card.allocator.allocated_bytes
    with pytest.raises(
        torch.OutOfMemoryError, match=r"Tried to allocate 2 MiB.*\(simulated\).* in forward of bert"
    ):
        count(card, batches([60] * 300, 100_000))
    card.free_cached()
    # The two workspaces of cuBLAS (8 MiB each) are there from the first attempt on.
    assert card.allocator.allocated_bytes - held <= 17 * MIB
    assert card.peak_reserved_bytes() <= 24 * MIB


KNOWN = SimulatedCard(SPEC, precision="fp32")
KNOWN.know(tiny_model(dropout=0.1).train(), make_update, 64)  # one architecture: learn it once


def test_a_packed_batch_is_counted_as_a_card_pads_it(model: nn.Module) -> None:
    windows = [random_window(length, seed) for seed, length in enumerate((40, 9, 20, 40))]
    counted = []
    for collate in (lambda part: pad(part, 0), pack):
        card = card_for(model)
        count(card, [collate(windows), collate(windows[:1])])
        counted.append(card.allocator.peak_allocated_bytes)
    assert counted[0] == counted[1]


@settings(max_examples=15, deadline=None)
@given(
    budget=st.integers(26, 80),
    lengths=st.lists(st.integers(3, 64), min_size=1, max_size=60),
)
def test_law_3_every_step_is_made_within_every_budget(budget: int, lengths: list[int]) -> None:
    model = tiny_model(dropout=0.1).train()
    card = KNOWN.emptied(CONTEXT + budget * MIB)
    card.hold_state()
    steps = Steps(
        model,
        make_update(model, torch.device("cpu"), "fp32"),
        device=torch.device("cpu"),
        precision="fp32",
        pad_id=0,
        seed=1,
        card=card,
        micro_batch_tokens=8192,
        step=card.counted(train_step),
        gradients=card.gradients,
    )
    windows = [random_window(length, seed) for seed, length in enumerate(lengths)]
    done = steps.run(0, windows)
    assert sum(done.cuts) == len(windows)
    assert card.peak_reserved_bytes() <= budget * MIB


def test_a_forecast_is_never_under_what_the_same_steps_take_nor_over_the_budget(
    model: nn.Module,
) -> None:
    steps = [batches(lengths, 64) for lengths in ([9, 20, 31], [40, 8], [12], [60, 60, 60])]
    card = card_for(model)
    forecast = card.forecast(steps)
    assert card.allocator.peak_reserved_bytes < 12 * MIB, "nothing of it is on this card"
    for step in steps:
        count(card, step)
    held = card.read().peak_bytes
    assert held <= forecast <= held + (held - CONTEXT) // 99
    tight = card_for(model, CONTEXT + 24 * MIB)
    assert tight.forecast([batches([60] * 300, 100_000)]) == CONTEXT + 24 * MIB


def test_a_job_on_a_simulated_card_gives_the_results_of_the_processor(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 40)

    def steps(device: str, cuts: Sequence[Sequence[int]] = ()) -> list[dict[str, object]]:
        folder = tmp_path / device.replace(":", "-")
        job = job_config(
            {
                "model": "tiny", "train_file": data, "output_dir": folder, "device": device,
                "num_train_epochs": 1, "precision": "fp32", "micro_batch_tokens": 64,
            }
        )  # fmt: skip
        train(job, progress=False, say=lambda message: None, cuts=cuts)
        return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]

    card = steps("sim:rtx-3050-4gb")
    # A processor does not pad, so it would cut the steps otherwise.
    processor = steps("cpu", [row["cuts"] for row in card])  # type: ignore[misc]
    assert [row["loss"] for row in card] == [row["loss"] for row in processor]
    assert [row["grad_norm"] for row in card] == [row["grad_norm"] for row in processor]
    samples = (tmp_path / "sim-rtx-3050-4gb" / "memory.jsonl").read_text().splitlines()
    assert f'"card_total_bytes": {SPEC.total_bytes}' in samples[-1]


def test_a_simulated_card_is_named_by_size_or_name_and_refuses_more_than_it_has() -> None:
    def job(device: str, budget: str | None = None) -> object:
        return job_config({"model": "m", "train_file": "x", "device": device, "budget": budget})

    assert workplace_of(job("sim:4GiB")).total_bytes == 4 * GIB  # type: ignore[arg-type]
    assert workplace_of(job("sim:rtx-3050-4gb")).is_card  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"has 4\.00 GiB"):
        workplace_of(job("sim:4GiB", "5GiB"))  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match="context"):
        workplace_of(job("sim:4GiB", "100MiB"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        workplace_of(job("sim:no-such-card"))  # type: ignore[arg-type]
