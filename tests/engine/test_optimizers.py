"""Every optimizer: against a reference, refusing a step without a trace, and by its bytes."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.optimization import Adafactor as ReferenceAdafactor

from bertfit.config import OptimizerName
from bertfit.engine.compact_adamw import BLOCK_SIZE, PIECE_SIZE, CompactAdamW, dynamic_levels
from bertfit.engine.optim import Update

NAMES: tuple[OptimizerName, ...] = get_args(OptimizerName)
SHAPES = ((70, 64), (5000,), (3, 3), (64,), (9, 500))  # 4,500 is no multiple of a block


def parameters(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator) * 0.05) for shape in SHAPES]


def groups_of(made: list[nn.Parameter], rate: float = 1e-3) -> list[dict[str, Any]]:
    matrices = [p for p in made if p.ndim > 1]
    vectors = [p for p in made if p.ndim == 1]
    return [
        {"params": matrices, "lr": rate, "peak_lr": rate, "weight_decay": 0.01},
        {"params": vectors, "lr": rate, "peak_lr": rate, "weight_decay": 0.0},
    ]


def give_gradients(
    made: list[nn.Parameter], step: int, factor: float = 1.0, decades: float = 2.0
) -> None:
    """Noise around a mean, of sizes over some decades that differ from number to number."""
    sizes = torch.Generator().manual_seed(7)
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in made:
        spread = 10.0 ** (-decades * torch.rand(parameter.shape, generator=sizes))
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.grad = (noise + 0.1) * spread * factor


def learn(
    name: OptimizerName, steps: int, scale: float = 1.0, decades: float = 2.0
) -> list[nn.Parameter]:
    made = parameters()
    update = Update(groups_of(made), max_grad_norm=0.0, optimizer=name)
    for step in range(steps):
        update.clear()
        give_gradients(made, step, scale, decades)
        update.apply(torch.tensor(1.0), scale)
    return made


def reference(steps: int, make: Callable[..., torch.optim.Optimizer]) -> list[nn.Parameter]:
    made = parameters()
    optimizer = make(groups_of(made))
    for step in range(steps):
        give_gradients(made, step)
        optimizer.step()
    return made


def moved(made: list[nn.Parameter], other: list[nn.Parameter]) -> float:
    """The distance between two results, as a share of the way they came."""
    begun = torch.cat([p.detach().flatten() for p in parameters()])
    first, second = (torch.cat([p.detach().flatten() for p in each]) for each in (made, other))
    return float((first - second).norm() / (second - begun).norm())


def test_adafactor_computes_what_transformers_adafactor_does() -> None:
    expected = reference(
        20,
        lambda groups: ReferenceAdafactor(
            [{k: v for k, v in g.items() if k != "peak_lr"} for g in groups],
            lr=1e-3,
            scale_parameter=False,
            relative_step=False,
            warmup_init=False,
        ),
    )
    for found, wanted in zip(learn("adafactor", 20), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["adamw", "adamw-foreach"])
def test_full_moments_compute_what_torch_does(name: OptimizerName) -> None:
    expected = reference(20, lambda groups: torch.optim.AdamW(groups, foreach=False))
    for found, wanted in zip(learn(name, 20), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


def test_the_first_step_is_exact_whatever_the_moments_are_kept_in() -> None:
    plain = learn("adamw", 1)
    for name in ("adamw-bf16", "adamw-8bit"):
        for found, wanted in zip(learn(name, 1), plain, strict=True):
            assert torch.equal(found, wanted), name


@pytest.mark.parametrize(("decades", "farthest"), [(0.0, 0.025), (2.0, 0.07), (4.0, 0.16)])
def test_compact_moments_stay_near_full_ones_over_100_steps(
    decades: float, farthest: float
) -> None:
    plain = learn("adamw", 100, decades=decades)
    assert 0 < moved(learn("adamw-bf16", 100, decades=decades), plain) < 0.005
    assert 0 < moved(learn("adamw-8bit", 100, decades=decades), plain) < farthest


def test_small_tensors_are_as_with_full_moments() -> None:
    for found, wanted in zip(learn("adamw-8bit", 20)[2:4], learn("adamw", 20)[2:4], strict=True):
        assert torch.equal(found, wanted)


def test_a_tensor_of_several_pieces_is_updated_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = learn("adamw-8bit", 5)
    monkeypatch.setattr("bertfit.engine.compact_adamw.PIECE_SIZE", BLOCK_SIZE)
    for found, wanted in zip(learn("adamw-8bit", 5), whole, strict=True):
        assert torch.equal(found, wanted)
    assert PIECE_SIZE % BLOCK_SIZE == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_scale_is_divided_out(name: OptimizerName) -> None:
    plain, scaled = learn(name, 5), learn(name, 5, scale=2.0**14)
    for found, wanted in zip(scaled, plain, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("poison", [float("inf"), float("nan")])
def test_a_refused_step_leaves_no_bit_changed(name: OptimizerName, poison: float) -> None:
    made = parameters()
    update = Update(groups_of(made), max_grad_norm=1.0, optimizer=name)
    for step in range(3):
        update.clear()
        give_gradients(made, step)
        update.apply(torch.tensor(1.0), 1.0)
    before = [p.detach().clone() for p in made], state_of(update)
    give_gradients(made, 3)
    assert made[0].grad is not None
    made[0].grad[1, 1] = poison
    __, refused = update.apply(torch.tensor(1.0), 1.0)
    assert float(refused) == 1.0
    after = [p.detach().clone() for p in made], state_of(update)
    for old, new in zip(before[0] + before[1], after[0] + after[1], strict=True):
        assert torch.equal(old, new)


def state_of(update: Update) -> list[Tensor]:
    return [
        tensor.clone()
        for parameter in update.parameters
        for tensor in update.optimizer.state[parameter].values()
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_state_is_made_before_the_first_step_and_does_not_grow(name: OptimizerName) -> None:
    made = parameters()
    update = Update(groups_of(made), max_grad_norm=1.0, optimizer=name)
    before = [tensor.data_ptr() for tensor in state_of_storage(update)]
    give_gradients(made, 0)
    update.apply(torch.tensor(1.0), 1.0)
    assert [tensor.data_ptr() for tensor in state_of_storage(update)] == before


def state_of_storage(update: Update) -> list[Tensor]:
    return [t for p in update.parameters for t in update.optimizer.state[p].values()]


@pytest.mark.parametrize(
    ("name", "bytes_per_weight"),
    [
        ("adamw", 8.0),
        ("adamw-bf16", 4.0),
        ("adamw-8bit", 2 + 8 / BLOCK_SIZE),
        ("adafactor", 8 / 512),
        ("sgd", 0.0),
    ],
)
def test_the_state_takes_the_bytes_that_are_said(
    name: OptimizerName, bytes_per_weight: float
) -> None:
    weight = nn.Parameter(torch.zeros(512, 512))
    update = Update(groups_of([weight]), max_grad_norm=0.0, optimizer=name)
    held = sum(t.nbytes for t in update.optimizer.state.get(weight, {}).values() if t.ndim)
    assert held == bytes_per_weight * weight.numel()


def test_the_levels_are_those_of_the_paper() -> None:
    signed, unsigned = dynamic_levels(True), dynamic_levels(False)
    for levels in (signed, unsigned):
        assert len(levels.unique()) == 256 and torch.equal(levels, levels.sort().values)
        assert levels[-1] == 1.0
    # The top decade of the signed map has 64 levels between 0.1 and 1, the middles of 64 steps.
    assert float(signed[-2]) == pytest.approx(1 - 0.9 / 128)
    assert float(unsigned[-2]) == pytest.approx(1 - 0.9 / 256)
    assert float(signed[signed > 0][0]) == pytest.approx(0.55e-6)
    assert torch.equal(-signed[signed < 0].flip(0), signed[(signed > 0) & (signed < 1)])
    assert float(unsigned.min()) == 0.0


@given(st.integers(0, 10_000), st.floats(1e-12, 1e6))
def test_a_number_is_kept_within_half_a_step_of_its_level(seed: int, size: float) -> None:
    optimizer = CompactAdamW(groups_of(parameters()), storage="8bit")
    weight = optimizer.param_groups[1]["params"][0]
    state = optimizer.state[weight]
    optimizer.found_inf = torch.zeros(())
    values = torch.randn(5120, generator=torch.Generator().manual_seed(seed)) * size
    values[:BLOCK_SIZE] = 0.0
    optimizer._write(state, "exp_avg", 0, 5000, values.clone())
    kept = optimizer._read(state, "exp_avg", 0, 5000)
    optimizer._write(state, "exp_avg_sq", 0, 5000, values.square())
    root = optimizer._read(state, "exp_avg_sq", 0, 5000).sqrt()
    assert torch.equal(kept[:BLOCK_SIZE], values[:BLOCK_SIZE])
    largest = values.view(-1, BLOCK_SIZE).abs().amax(1).repeat_interleave(BLOCK_SIZE)
    # The widest gap between levels is 0.9 / 64 of the largest, at its upper end; -1 is 0.9/128 off.
    assert bool(((kept - values).abs() <= largest * (0.9 / 128) * 1.001).all())
    assert bool(((root - values.abs()).abs() <= largest * (0.9 / 256) * 1.001).all())
