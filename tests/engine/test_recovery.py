"""Law 3: a step happens whole or not at all."""

import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from bertfit.data.batches import cut
from bertfit.engine.optim import Update, UpdateBroken, parameter_groups
from bertfit.engine.precision import LossScale
from bertfit.engine.recovery import StepDone, Steps
from bertfit.engine.step import StepResult, train_step
from bertfit.engine.step import gradients as gradients_of_step
from bertfit.errors import BudgetError
from bertfit.memory.gauges import HostGauge, Reading
from bertfit.types import Window
from injection import Allocations
from tiny_models import random_window, tiny_model

CPU = torch.device("cpu")
LENGTHS = (4, 30, 6, 28, 5, 31, 3, 29, 8, 9, 16, 17)
Weights = dict[str, torch.Tensor]


class Workshop:
    """A tiny model with its steps; every one that is made is equal."""

    def __init__(
        self,
        dropout: float = 0.1,
        tokens: int = 128,
        step: Callable[..., StepResult] = train_step,
        gauge: HostGauge | None = None,
        gradients: Callable[..., torch.Tensor] = gradients_of_step,
    ) -> None:
        self.model = tiny_model(dropout=dropout).train()
        groups = parameter_groups(
            self.model, [], learning_rate=1e-3, head_learning_rate=1e-3, weight_decay=0.01
        )
        self.update = Update(groups, max_grad_norm=1.0)
        self.steps = Steps(
            self.model,
            self.update,
            device=CPU,
            precision="fp32",
            pad_id=0,
            seed=7,
            card=gauge or HostGauge(),
            micro_batch_tokens=tokens,
            step=step,
            gradients=gradients,
        )

    def weights(self) -> Weights:
        return {n: p.detach().clone() for n, p in self.model.named_parameters()}


def windows_of(step: int) -> list[Window]:
    return [random_window(length, 100 * step + i) for i, length in enumerate(LENGTHS)]


def equal(a: Weights, b: Weights) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def undisturbed(
    cuts: Sequence[Sequence[int] | None], **options: object
) -> tuple[Weights, list[float]]:
    """Run steps with pinned cuts and nothing in the way."""
    shop = Workshop(**options)  # type: ignore[arg-type]
    losses = [
        float(shop.steps.run(i, windows_of(i), pinned).result.loss) for i, pinned in enumerate(cuts)
    ]
    return shop.weights(), losses


def allocations_of_a_step(tokens: int = 128) -> int:
    shop = Workshop(tokens=tokens)
    with Allocations() as seen:
        shop.steps.run(0, windows_of(0))
    return seen.count


def made(shop: Workshop, step: int, fail_at: set[int]) -> tuple[StepDone, float, int]:
    """Make a step; return what it recorded, its loss, and the bytes alive afterwards."""
    with Allocations(fail_at) as seen:
        done = shop.steps.run(step, windows_of(step))
        loss = float(done.result.loss)
        done = replace(done, result=None)  # type: ignore[arg-type]
        shop.update.clear()
        return done, loss, seen.live_bytes


def inject(numbers: Sequence[int], dropout: float = 0.1, tokens: int = 128, steps: int = 3) -> None:
    """Fail at allocations of the second step; compare with the undisturbed run, bit for bit."""
    failing = Workshop(dropout=dropout, tokens=tokens)
    rows = [made(failing, step, set(numbers) if step == 1 else set()) for step in range(steps)]
    assert rows[1][0].oom_retries == len(numbers)
    assert rows[0][2] == rows[1][2] == rows[2][2], "something is alive that was not before"
    cuts = [done.cuts for done, __, __ in rows]
    weights, losses = undisturbed(cuts, dropout=dropout, tokens=tokens)
    assert [loss for __, loss, __ in rows] == losses
    assert equal(failing.weights(), weights)


def test_law_3_out_of_memory_at_random_allocations_changes_nothing() -> None:
    draw = random.Random(5)
    most = allocations_of_a_step()
    for __ in range(20):
        inject([draw.randrange(most - 8)])


def test_twice_in_one_step() -> None:
    most = allocations_of_a_step()
    inject([most // 3, most // 3 + most // 4])


def test_where_the_cut_cannot_be_smaller_the_retry_is_the_plain_run() -> None:
    failing, plain = Workshop(tokens=1), Workshop(tokens=1)
    with Allocations({150}):
        done = failing.steps.run(0, windows_of(0))
    assert done.oom_retries == 1 and done.cuts == (1,) * len(LENGTHS)
    plain.steps.run(0, windows_of(0))
    assert equal(failing.weights(), plain.weights())


def test_smaller_cuts_without_dropout_give_the_same_loss() -> None:
    failing, plain = Workshop(dropout=0.0), Workshop(dropout=0.0)
    with Allocations({20, 60}):
        done = failing.steps.run(0, windows_of(0))
    whole = plain.steps.run(0, windows_of(0))
    assert done.oom_retries == 2 and len(done.cuts) > len(whole.cuts)
    assert float(done.result.loss) == pytest.approx(float(whole.result.loss), rel=1e-6)
    assert float(done.result.grad_norm) == pytest.approx(float(whole.result.grad_norm), rel=1e-6)


def test_the_failed_attempt_is_gone_before_the_retry() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def step(model: torch.nn.Module, update: Update, batches: object, **more: object) -> StepResult:
        if not held:
            activations = torch.ones(100, requires_grad=True).exp()
            held.append(weakref.ref(activations))
            next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
            raise torch.OutOfMemoryError("CUDA out of memory.")
        assert held[0]() is None, "the failed attempt is alive"
        assert all(p.grad is None for p in model.parameters()), "its gradients are alive"
        return train_step(model, update, batches, **more)  # type: ignore[arg-type]

    assert Workshop(step=step).steps.run(0, windows_of(0)).oom_retries == 1


def test_memory_that_ends_in_the_update_is_never_retried() -> None:
    calls = []

    def step(model: torch.nn.Module, update: Update, batches: object, **more: object) -> StepResult:
        calls.append(1)
        result = train_step(model, update, batches, **more)  # type: ignore[arg-type]
        assert update.begun
        del result
        raise MemoryError("in the update")

    shop = Workshop(step=step)
    with pytest.raises(UpdateBroken, match="in the update"):
        shop.steps.run(0, windows_of(0))
    assert len(calls) == 1


def test_memory_that_ends_after_a_refused_update_is_retried() -> None:
    calls: list[float] = []

    def step(
        model: torch.nn.Module,
        update: Update,
        batches: object,
        *,
        loss_scale: float,
        **more: object,
    ) -> StepResult:
        calls.append(loss_scale)
        if len(calls) == 1:  # fp16 refuses: the weights are as they were
            update.begun = True
            return StepResult(loss=torch.ones(()), grad_norm=torch.ones(()), refused=torch.ones(()))
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return train_step(model, update, batches, **{**more, "precision": "fp32"})  # type: ignore[arg-type]

    shop = Workshop(step=step)
    shop.steps.loss_scale = LossScale()
    assert shop.steps.run(0, windows_of(0)).oom_retries == 1
    assert calls == [65536.0, 32768.0, 32768.0]


def test_the_update_allocates_nothing() -> None:
    shop = Workshop()
    shop.steps.run(0, windows_of(0))
    shop.update.apply(torch.zeros(()), 1.0)
    with Allocations() as seen:
        shop.update.optimizer.step()
    assert seen.count == 0


def test_one_window_that_does_not_fit_is_told_with_what_would() -> None:
    limit = 16

    def gradients(model: object, update: object, batches: object, **more: object) -> torch.Tensor:
        if max(batch.input_ids.shape[1] for batch in batches) > limit:  # type: ignore[attr-defined]
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore.")
        return gradients_of_step(model, update, batches, **more)  # type: ignore[arg-type]

    def step(model: object, update: object, batches: object, **more: object) -> StepResult:
        gradients(model, update, batches)
        raise AssertionError("too large")

    shop = Workshop(step=step, gradients=gradients)
    before = shop.weights()
    with pytest.raises(BudgetError) as caught:
        shop.steps.run(4, windows_of(0))
    message = str(caught.value)
    assert "Step 5" in message and "31 tokens" in message and "--max-length 15" in message
    assert "Tried to allocate 2.00 GiB" in message and "More" not in message
    assert equal(shop.weights(), before)


class SharedGauge(HostGauge):
    """A card of 4 GiB that another program holds 3 GiB of."""

    def read(self) -> Reading:
        return Reading(card_total_bytes=4 << 30, other_bytes=3 << 30, peak_bytes=1 << 29)


@pytest.mark.parametrize(
    ("gauge", "held"),
    [
        (SharedGauge(), "of the card's 4.00 GiB other programs hold 3.00 GiB now, and this run "
         "has held 512 MiB at most"),
        (HostGauge(), "of the machine's memory, and "),
    ],
)  # fmt: skip
def test_a_window_that_fits_alone_is_not_blamed(gauge: HostGauge, held: str) -> None:
    """Memory ends three times at single windows, and each time somebody else had it."""

    def step(model: object, update: object, batches: object, **more: object) -> StepResult:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB.")

    shop = Workshop(tokens=1, step=step, gauge=gauge)
    before = shop.weights()
    with pytest.raises(BudgetError) as caught:
        shop.steps.run(4, windows_of(0))
    message = str(caught.value)
    assert "Step 5: memory ended 3 times" in message and "does not fit" not in message
    assert "31 tokens, fits now" in message and "Tried to allocate 20 MiB" in message
    assert held in message and "the same command again" in message
    assert equal(shop.weights(), before)


class ThrashingGauge(HostGauge):
    """An allocator that empties its cache in every step while micro-batches are large."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.retries, self.largest = limit, 0, 0

    def num_alloc_retries(self) -> int:
        return self.retries


def test_thrashing_in_two_steps_running_shrinks_and_an_epoch_regrows() -> None:
    gauge = ThrashingGauge(64)

    def step(model: object, update: object, batches: list, **more: object) -> StepResult:  # type: ignore[type-arg]
        if max(batch.input_ids.size for batch in batches) > gauge.limit:
            gauge.retries += 1
        return train_step(model, update, batches, **more)  # type: ignore[arg-type]

    shop = Workshop(step=step, gauge=gauge, tokens=128)
    tokens = []
    for number in range(6):
        done = shop.steps.run(number, windows_of(number))
        assert done.oom_retries == 0
        tokens.append(shop.steps.micro_batch_tokens)
    assert tokens[0] == 128 and tokens[1] == 62 and tokens[5] == 62
    shop.steps.regrow()
    assert shop.steps.micro_batch_tokens == 128


def test_law_3_checkpointing_as_a_last_resort_changes_nothing() -> None:
    from bertfit.planning.levers import TrainSettings, prepare_model

    def relieve() -> bool:
        settings = TrainSettings(steps=(((1, 1),),), num_tags=5, checkpointed_layers=2)
        prepare_model(shop.model, settings)
        return True

    shop, plain = Workshop(tokens=1), Workshop(tokens=1)
    shop.steps._relieve = relieve
    with Allocations({150}) as seen:
        done = shop.steps.run(0, windows_of(0), (1,) * len(LENGTHS))
    assert done.oom_retries == 1 and shop.steps.relieved and seen.count > 150
    expected = plain.steps.run(0, windows_of(0))
    assert done.cuts == expected.cuts
    assert equal(shop.weights(), plain.weights()), "dropout on: the second forward draws the same"


def test_the_cuts_of_a_step_are_those_of_its_parts() -> None:
    done = Workshop(tokens=64).steps.run(0, windows_of(0))
    assert done.cuts == tuple(len(part) for part in cut(windows_of(0), 64))


def test_a_rehearsal_finds_the_size_that_fits_and_leaves_the_weights_alone() -> None:
    def gradients(model: object, update: object, batches: list, **more: object) -> torch.Tensor:  # type: ignore[type-arg]
        if max(batch.input_ids.size for batch in batches) > 40:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return gradients_of_step(model, update, batches, **more)  # type: ignore[arg-type]

    shop = Workshop(tokens=128, gradients=gradients)
    before = shop.weights()
    assert shop.steps.rehearse(windows_of(0)) > 0
    assert shop.steps.micro_batch_tokens <= 62
    shop.steps.regrow()
    assert shop.steps.micro_batch_tokens <= 62, "what did not fit before step 1 is not tried again"
    assert equal(shop.weights(), before)
    assert all(p.grad is None for p in shop.model.parameters())
