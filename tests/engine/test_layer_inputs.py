"""Law 10: inputs of layers kept on the host. The numbers are the same, and rows are used again."""

import copy
import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from bertfit.engine import layer_inputs
from bertfit.planning.levers import set_checkpointed
from tiny_models import tiny_model

MODELS = ["bert", "roberta", "modernbert", "electra", "distilbert"]


class Pinned:
    """Memory of the processor in place of pinned memory; the processor stands for a card."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int]] = []
        self.rows: weakref.WeakSet[Tensor] = weakref.WeakSet()

    def take(self, count: int, size: int) -> list[Tensor]:
        self.blocks.append((count, size))
        rows = list(torch.full((count, size), 255, dtype=torch.uint8))  # NaN
        for row in rows:
            self.rows.add(row)
        return rows


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> Pinned:
    memory = Pinned()
    monkeypatch.setattr(layer_inputs, "_is_on_card", lambda tensor: True)
    monkeypatch.setattr(layer_inputs, "_pinned", memory.take)
    return memory


def ids(windows: int, tokens: int) -> Tensor:
    return torch.arange(windows * tokens).view(windows, tokens) % 150


def gradients(model: nn.Module, *shapes: tuple[int, int]) -> list[Tensor]:
    """Return the gradient of some micro-batches, with dropout."""
    model.zero_grad()
    for number, shape in enumerate(shapes):
        torch.manual_seed(number)
        model(input_ids=ids(*shape)).logits.square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def with_inputs_on_host(model_type: str, count: int = 2) -> nn.Module:
    model = tiny_model(dropout=0.1, model_type=model_type).train()
    set_checkpointed(model, count, host_state=True)
    return model


@pytest.mark.parametrize("model_type", MODELS)
def test_gradients_are_those_of_the_plain_step(model_type: str, pinned: Pinned) -> None:
    plain = tiny_model(dropout=0.1, model_type=model_type).train()
    shapes = (3, 20), (2, 9), (4, 30)
    expected = gradients(plain, *shapes)
    found = gradients(with_inputs_on_host(model_type), *shapes)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert pinned.blocks, "nothing left"


@pytest.mark.parametrize("model_type", MODELS)
def test_rows_are_taken_once_and_used_again(model_type: str, pinned: Pinned) -> None:
    model = with_inputs_on_host(model_type)
    gradients(model, (3, 20))
    before = list(pinned.blocks)
    gradients(model, (2, 20), (3, 20), (1, 4))
    assert pinned.blocks == before
    assert sum(count * size for count, size in before) == 2 * 3 * 20 * 32 * 4


def test_only_layers_computed_twice_send_their_input(pinned: Pinned) -> None:
    gradients(with_inputs_on_host("bert", 1), (3, 20))
    assert pinned.blocks == [(1, 3 * 20 * 32 * 4)]


def test_a_step_that_fails_gives_its_rows_back(pinned: Pinned) -> None:
    model = with_inputs_on_host("bert")
    logits = model(input_ids=ids(3, 20)).logits
    del logits  # no backward comes
    gradients(model, (3, 20))
    assert len(pinned.blocks) == 1


def test_two_forwards_that_wait_for_their_backward_keep_their_own_inputs(pinned: Pinned) -> None:
    plain, held = tiny_model().train(), tiny_model().train()
    set_checkpointed(held, 2, host_state=True)
    found = []
    for model in (plain, held):
        first, second = model(input_ids=ids(3, 20)).logits, model(input_ids=ids(3, 20) + 1).logits
        model.zero_grad()
        (first.square().mean() - second.square().mean()).backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_larger_micro_batch_takes_longer_rows(pinned: Pinned) -> None:
    model = with_inputs_on_host("bert")
    gradients(model, (1, 20), (3, 20), (1, 20))
    assert pinned.blocks == [(2, 20 * 32 * 4), (2, 3 * 20 * 32 * 4)]


def test_after_memory_ended_a_smaller_micro_batch_asks_for_less(
    pinned: Pinned, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_inputs_on_host("bert")

    def refuse(count: int, size: int) -> list[Tensor]:
        if size > 20 * 32 * 4:
            raise RuntimeError("CUDA error: out of memory")
        return pinned.take(count, size)

    monkeypatch.setattr(layer_inputs, "_pinned", refuse)
    with pytest.raises(RuntimeError, match="out of memory"):
        gradients(model, (3, 20))
    gradients(model, (1, 20))
    assert pinned.blocks == [(2, 20 * 32 * 4)]


def test_rows_go_when_another_number_of_layers_is_computed_twice(pinned: Pinned) -> None:
    model = with_inputs_on_host("bert")
    gradients(model, (3, 20))
    rows = [weakref.ref(row) for row in pinned.rows]
    set_checkpointed(model, 0, host_state=True)
    gc.collect()
    assert rows and not any(row() is not None for row in rows)
    gradients(model, (3, 20))
    assert len(pinned.blocks) == 1


def test_a_copy_of_the_model_has_rows_of_its_own(pinned: Pinned) -> None:
    model = with_inputs_on_host("bert")
    expected = gradients(model, (3, 20))
    twin = copy.deepcopy(model)
    logits = model(input_ids=ids(3, 20)).logits
    found = gradients(twin, (3, 20))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert len(pinned.blocks) == 2 and logits.isfinite().all()


def test_on_a_processor_nothing_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Pinned()
    monkeypatch.setattr(layer_inputs, "_pinned", memory.take)
    gradients(with_inputs_on_host("bert"), (3, 20))
    assert memory.blocks == []
