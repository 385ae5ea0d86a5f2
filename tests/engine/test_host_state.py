"""Law 10: state on the host is a neutral lever. The numbers are the same, in another place."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bertfit.config import Precision
from bertfit.data.batches import cut, pad
from bertfit.engine.host_state import HostUpdate, held_bytes, make_update
from bertfit.engine.optim import Update, parameter_groups
from bertfit.engine.recovery import Steps
from bertfit.engine.step import StepResult, train_step
from bertfit.engine.weights import stored_bytes
from bertfit.memory.gauges import HostGauge
from bertfit.models.head import head_parameters
from bertfit.models.rows import keep_rows, whole_embedding
from bertfit.types import Batch
from tiny_models import random_window, tiny_model

CPU = torch.device("cpu")
PRECISIONS: list[Precision] = ["fp32", "bf16"]


def update_of(
    model: nn.Module,
    precision: Precision = "fp32",
    *,
    on_host: bool,
    device: torch.device = CPU,
) -> Update:
    groups = parameter_groups(
        model,
        [p for __, p in head_parameters(model)],
        learning_rate=1e-3,
        head_learning_rate=1e-2,
        weight_decay=0.01,
    )
    return make_update(
        model, groups, device=device, precision=precision, max_grad_norm=0.5, host_state=on_host
    )


def batches_of(step: int, budget: int = 60) -> list[Batch]:
    lengths = (4, 30, 6, 28, 5, 31, 3, 29)
    windows = [random_window(length, 10 * step + at) for at, length in enumerate(lengths)]
    return [pad(part, 0) for part in cut(windows, budget)]


def run(
    precision: Precision,
    *,
    on_host: bool,
    budget: int = 60,
    steps: int = 6,
    scale: float = 1.0,
    device: torch.device = CPU,
) -> tuple[list[tuple[float, float]], dict[str, torch.Tensor]]:
    """Train a model with dropout, and return losses, norms and the weights to be saved."""
    model = tiny_model(dropout=0.1).train()
    rows = keep_rows(model, range(150))
    update = update_of(model, precision, on_host=on_host, device=device)
    records = []
    for step in range(steps):
        torch.manual_seed(step)
        batches = [clip_ids(batch) for batch in batches_of(step, budget)]
        result = train_step(
            model, update, batches, device=device, precision=precision, loss_scale=scale
        )
        records.append((float(result.loss), float(result.grad_norm)))
    with update.unrounded(), whole_embedding(model, rows, 1.0):
        return records, {n: t.detach().clone() for n, t in model.state_dict().items()}


def clip_ids(batch: Batch) -> Batch:
    batch.input_ids.clip(0, 149, out=batch.input_ids)
    return batch


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("budget", [1, 60, 300])
def test_law_10_losses_norms_and_weights_are_those_of_the_plain_step(
    precision: Precision, budget: int
) -> None:
    plain, expected = run(precision, on_host=False, budget=budget)
    held, weights = run(precision, on_host=True, budget=budget)
    assert held == plain
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, expected[name]), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_law_10_on_a_card_losses_and_norms_are_those_of_the_plain_step(
    precision: Precision,
) -> None:
    card = torch.device("cuda")
    plain, __ = run(precision, on_host=False, steps=30, scale=1024.0, device=card)
    held, __ = run(precision, on_host=True, steps=30, scale=1024.0, device=card)
    for now, then in zip(held, plain, strict=True):
        assert now == pytest.approx(then, rel=1e-4 if precision == "fp32" else 2e-2)


@settings(max_examples=10)
@given(budget=st.integers(1, 300), scale=st.sampled_from([1.0, 1024.0, 65536.0]))
def test_the_loss_scale_and_any_cut_keep_the_update(budget: int, scale: float) -> None:
    plain, __ = run("fp32", on_host=False, budget=budget, steps=2, scale=scale)
    held, __ = run("fp32", on_host=True, budget=budget, steps=2, scale=scale)
    assert held == plain


def test_the_device_holds_linear_weights_in_16_bits_and_no_gradient() -> None:
    model = tiny_model().train()
    update = update_of(model, "bf16", on_host=True)
    train_step(model, update, batches_of(0), device=CPU, precision="bf16")
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            assert parameter.grad is None
            linear = isinstance(module, nn.Linear)
            assert parameter.dtype == (torch.bfloat16 if linear else torch.float32)
    assert all(master.grad is not None for master in update.masters)


def test_a_gradient_is_gone_from_the_device_before_the_next_is_made() -> None:
    model = tiny_model().train()
    update = update_of(model, "bf16", on_host=True)
    assert isinstance(update, HostUpdate)
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def watch(parameter: torch.Tensor) -> None:
        alive.append(sum(ref() is not None for ref in made))
        assert parameter.grad is None

    for parameter in update.parameters:
        parameter.register_hook(lambda gradient: made.append(weakref.ref(gradient)))
        parameter.register_post_accumulate_grad_hook(watch)
    gc.disable()
    try:
        train_step(model, update, batches_of(0), device=CPU, precision="bf16")
    finally:
        gc.enable()
    assert len(alive) == len(update.parameters) * len(batches_of(0)) and max(alive) <= 1


@pytest.mark.parametrize("poison", ["weight", "scale"])
def test_a_refused_step_reaches_neither_host_nor_device(poison: str) -> None:
    model = tiny_model().train()
    with torch.no_grad():
        if poison == "weight":
            model.classifier.weight[0, 0] = float("nan")  # type: ignore[index, union-attr]
    update = update_of(model, "bf16", on_host=True)
    before = [p.detach().clone() for p in (*update.parameters, *update.masters)]
    result = train_step(
        model,
        update,
        batches_of(0),
        device=CPU,
        precision="bf16",
        loss_scale=float("inf") if poison == "scale" else 1.0,
    )
    assert float(result.refused) == 1.0
    for now, then in zip((*update.parameters, *update.masters), before, strict=True):
        assert torch.equal(now.detach().nan_to_num(7.0), then.nan_to_num(7.0))


class _Ends(list[Batch]):
    """Micro-batches that end in an out-of-memory after the first was run."""

    passes = 0

    def __iter__(self) -> Iterator[Batch]:
        self.passes += 1  # the first only counts the labels
        for batch in super().__iter__():
            yield batch
            if self.passes == 2:
                raise torch.OutOfMemoryError


def test_law_3_a_step_that_ended_half_done_leaves_no_gradient_behind() -> None:
    def step(model: nn.Module, update: Update, batches: list[Batch]) -> StepResult:
        torch.manual_seed(0)
        return train_step(model, update, batches, device=CPU, precision="bf16")

    model = tiny_model(dropout=0.1).train()
    update = update_of(model, "bf16", on_host=True)
    with pytest.raises(torch.OutOfMemoryError):
        step(model, update, _Ends(batches_of(0)))
    assert any(master.grad is not None for master in update.masters), "it was half done"
    assert not update.begun
    update.clear()
    assert all(master.grad is None for master in update.masters)
    again = step(model, update, batches_of(0))
    fresh = tiny_model(dropout=0.1).train()
    once = step(fresh, update_of(fresh, "bf16", on_host=True), batches_of(0))
    assert float(again.loss) == float(once.loss)
    assert float(again.grad_norm) == float(once.grad_norm)


def test_law_3_memory_that_ends_in_the_backward_changes_no_result() -> None:
    attempts = []

    def step(model: nn.Module, update: Update, batches: list[Batch], **more: Any) -> StepResult:
        attempts.append(len(batches))
        ends = _Ends(batches) if len(attempts) == 1 else batches
        return train_step(model, update, ends, **more)

    def steps_of(step: Callable[..., StepResult]) -> Steps:
        model = tiny_model(dropout=0.1).train()
        return Steps(
            model,
            update_of(model, "bf16", on_host=True),
            device=CPU,
            precision="bf16",
            pad_id=0,
            seed=7,
            card=HostGauge(),
            micro_batch_tokens=64,
            step=step,
        )

    windows = [random_window(length, length) for length in (4, 30, 6, 28, 5, 31)]
    done = steps_of(step).run(0, windows)
    assert done.oom_retries == 1 and attempts[1] > attempts[0]
    undisturbed = steps_of(train_step).run(0, windows, done.cuts)
    assert float(done.result.loss) == float(undisturbed.result.loss)
    assert float(done.result.grad_norm) == float(undisturbed.result.grad_norm)


def test_frozen_weights_are_saved_with_all_their_digits() -> None:
    model = tiny_model()
    expected = {n: p.detach().clone() for n, p in model.named_parameters()}
    model.base_model.requires_grad_(False)  # type: ignore[operator, union-attr]
    update = update_of(model, "bf16", on_host=True)
    with update.unrounded():
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, expected[name])
    assert model.base_model.encoder.layer[0].output.dense.weight.dtype == torch.bfloat16  # type: ignore[union-attr, index]


def test_the_bytes_of_the_host_counted_by_hand() -> None:
    model = tiny_model().train()
    count = sum(p.numel() for p in model.parameters())
    assert held_bytes(model) == 16 * count  # weight, sum and two moments in fp32
    update = update_of(model, "bf16", on_host=True)
    train_step(model, update, batches_of(0), device=CPU, precision="bf16")
    moments = [t for state in update.optimizer.state.values() for t in state.values() if t.ndim]
    gradients = [master.grad for master in update.masters]
    held = [t for t in (*update.masters, *gradients, *moments) if t is not None]
    assert sum(t.nbytes for t in held) == 16 * count


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_bytes_of_stored_weights_are_those_of_the_device(precision: Precision) -> None:
    model = tiny_model()
    expected = stored_bytes(model, precision)
    update_of(model, precision, on_host=True)
    assert sum(p.nbytes for p in model.parameters()) == expected
