"""Packed batches: the logits and gradients of padded ones, and draws with the right chance."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny_models import random_window, tiny_model

from bertfit.data.batches import ROW_MULTIPLE, cut, pack, pad
from bertfit.engine import packing
from bertfit.engine.optim import Update, parameter_groups
from bertfit.engine.packing import (
    FAMILIES,
    Dropout,
    _Attention,
    attention_blocks,
    can_pack,
    draw_fast,
    keep_mask,
    prepare_packing,
)
from bertfit.engine.recovery import Steps
from bertfit.engine.step import forward, gradients
from bertfit.memory.gauges import gauge_of

CPU = torch.device("cpu")
LENGTHS = (31, 5, 30, 30, 6, 29, 4, 3)


def windows_of(lengths=LENGTHS):
    return [random_window(length, seed) for seed, length in enumerate(lengths)]


def packable(model_type="bert", **options):
    model = tiny_model(model_type=model_type, **options)
    assert can_pack(model)
    prepare_packing(model)
    return model


@pytest.fixture
def cheap_blocks(monkeypatch):
    """Let few short windows be cut into several blocks, as long ones are."""
    monkeypatch.setattr(packing, "BLOCK_COST_SCORES", 100)


@pytest.mark.usefixtures("cheap_blocks")
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_logits_are_those_of_each_window_alone(family):
    model = packable(family).eval()
    plain = tiny_model(model_type=family).eval()
    ordered = sorted(windows_of(), key=lambda w: -len(w.input_ids))
    batch = pack(ordered)
    assert len(attention_blocks(batch.packed_lengths, 2)) > 1
    with torch.no_grad():
        packed = forward(model, batch, CPU)[0, : batch.num_tokens]
        alone = [forward(plain, pad([window], pad_id=1), CPU)[0] for window in ordered]
    torch.testing.assert_close(packed, torch.cat(alone), atol=1e-6, rtol=1e-5)


def test_a_prepared_model_takes_padded_batches_as_before():
    model, plain = packable().eval(), tiny_model().eval()
    batch = pad(windows_of(), pad_id=0)
    with torch.no_grad():
        real = torch.from_numpy(batch.attention_mask == 1)
        torch.testing.assert_close(
            forward(model, batch, CPU)[real], forward(plain, batch, CPU)[real]
        )


def test_one_window_is_blind_to_the_others():
    model = packable().eval()
    first, others = random_window(20, 0), windows_of((20, 19, 7))
    changed = [replace(w, input_ids=w.input_ids[::-1].copy()) for w in others]
    with torch.no_grad():
        before = forward(model, pack([first, *others]), CPU)[0, :20]
        after = forward(model, pack([first, *changed]), CPU)[0, :20]
    assert torch.equal(before, after)


def gradient_of(model, batches):
    update = Update(
        parameter_groups(model, [], learning_rate=0.1, head_learning_rate=0.1, weight_decay=0),
        max_grad_norm=0,
    )
    loss = gradients(model, update, batches, device=CPU, precision="fp32")
    return loss, torch.cat([p.grad.flatten() for p in update.parameters])


@pytest.mark.usefixtures("cheap_blocks")
@pytest.mark.parametrize("tokens", [1000, 60, 35])
def test_gradient_is_that_of_padded_batches(tokens):
    windows = windows_of()
    loss, gradient = gradient_of(tiny_model().train(), [pad(windows, 0)])
    parts = cut(windows, tokens, packed=True)
    packed_loss, packed = gradient_of(packable().train(), [pack(part) for part in parts])
    torch.testing.assert_close(packed_loss, loss, rtol=1e-6, atol=0)
    assert (packed - gradient).norm() <= 1e-6 * gradient.norm()


@pytest.mark.parametrize("dropout", [0.3, 0])
def test_gradient_of_attention(monkeypatch, dropout):
    torch.manual_seed(1)
    monkeypatch.setattr(packing, "BLOCK_COST_SCORES", 5)
    blocks = attention_blocks((4, 3, 2), heads=2)
    assert [block.shape for block in blocks] == [(1, 4), (2, 3)]
    inputs = [torch.randn(1, 2, 9, 5, dtype=torch.float64, requires_grad=True) for __ in range(3)]

    def attention(*inputs):
        torch.manual_seed(7)
        return _Attention.apply(*inputs, 0.5, dropout, blocks)

    assert torch.autograd.gradcheck(attention, inputs)


def test_attention_with_dropout_is_the_formula():
    torch.manual_seed(2)
    query, key, value = (torch.randn(1, 2, 8, 5) for __ in range(3))
    torch.manual_seed(3)
    blocks = attention_blocks((3, 3, 2), heads=2)
    found = _Attention.apply(query, key, value, 0.4, 0.25, blocks)
    assert len(blocks) == 1
    torch.manual_seed(3)
    kept = keep_mask(torch.empty(6, 3, 3), 0.25).view(3, 2, 3, 3)
    for window, (start, end) in enumerate(((0, 3), (3, 6), (6, 8))):
        for head in range(2):
            q, k, v = (x[0, head, start:end] for x in (query, key, value))
            here = kept[window, head, : end - start, : end - start]
            weights = (q @ k.T * 0.4).softmax(-1) * here
            torch.testing.assert_close(found[0, start:end, head], weights @ v)


@pytest.mark.parametrize("by_products", [True, False])
@pytest.mark.parametrize("few_shapes", [True, False])
@pytest.mark.parametrize("lengths", [(1,), (13, 13, 5), (97, 60, 60, 2), (192, 1), (9,) * 70])
def test_attention_without_gradients_is_sdpa_of_each_window(
    monkeypatch, by_products, lengths, few_shapes
):
    torch.manual_seed(0)
    monkeypatch.setattr(packing, "_is_faster_by_products", lambda query: by_products)
    query, key, value = (torch.randn(1, 2, sum(lengths) + 3, 8) for __ in range(3))
    blocks = attention_blocks(lengths, heads=2, few_shapes=few_shapes)
    found = packing._attend(query, key, value, 0.3, 0.0, blocks)
    for start, length in zip(np.cumsum((0, *lengths)), lengths, strict=False):
        q, k, v = (x[:, :, start : start + length] for x in (query, key, value))
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.3)
        torch.testing.assert_close(found[:, start : start + length].transpose(1, 2), expected)
    assert not found[:, sum(lengths) :].any()


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_draws_have_the_chance_that_was_asked_for(dropout):
    torch.manual_seed(0)
    kept = keep_mask(torch.empty(1000, 1001), dropout)
    share = (kept == 0).double().mean().item()
    assert abs(share - dropout) < 4 * (dropout * (1 - dropout) / kept.numel()) ** 0.5 + 1 / 131072
    assert torch.equal(kept.unique(), torch.tensor([0, 1 / (1 - dropout)]))
    # No row or column is drawn alike: neighbours come from one 64-bit draw.
    assert abs(torch.corrcoef(kept[:, :8].T).fill_diagonal_(0)).max() < 0.15


def test_fast_dropout_follows_the_generator_and_its_mask():
    layer = torch.nn.Sequential(torch.nn.Dropout(0.5))
    draw_fast(layer)
    assert type(layer[0]) is Dropout
    states = torch.randn(64, 65, requires_grad=True)
    torch.manual_seed(5)
    first = layer(states)
    first.sum().backward()
    torch.manual_seed(5)
    assert torch.equal(layer(states), first)
    assert torch.equal(first == 0, states.grad == 0)
    assert torch.equal(states.grad.unique(), torch.tensor([0.0, 2.0]))
    layer.eval()
    assert torch.equal(layer(states), states)


@given(st.lists(st.integers(2, 60), min_size=1, max_size=30), st.integers(1, 200))
def test_packing_loses_no_token(lengths, tokens):
    windows = windows_of(lengths)
    parts = cut(windows, tokens, packed=True)
    assert sorted(w.index for part in parts for w in part) == list(range(len(windows)))
    for part in parts:
        total = sum(len(w.input_ids) for w in part)
        assert total <= tokens or len(part) == 1
        batch = pack(part)
        assert batch.num_tokens == total
        assert batch.packed_lengths == tuple(len(w.input_ids) for w in part)
        row = batch.input_ids[0]
        assert np.array_equal(row[:total], np.concatenate([w.input_ids for w in part]))
        assert len(row) == -(-total // ROW_MULTIPLE) * ROW_MULTIPLE and set(row[total:]) <= {
            row[total - 1]
        }


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.booleans())
def test_attention_blocks_hold_every_token_once(lengths, few_shapes):
    lengths = sorted(lengths, reverse=True)
    blocks = attention_blocks(lengths, heads=2, few_shapes=few_shapes)
    assert sum(block.shape[0] for block in blocks) == len(lengths)
    tokens = [token for block in blocks for token in range(block.tokens.start, block.tokens.stop)]
    assert tokens == list(range(sum(lengths)))
    for block in blocks:
        rows = 2 * (block.tokens.stop - block.tokens.start)
        there_and_back = block.padded[block.real]
        assert torch.equal(there_and_back, torch.arange(rows))
        assert sum(block.groups) == block.shape[0]
        if few_shapes:
            assert block.padded.max() < rows
        else:
            assert (block.padded == rows).sum() == block.padded.numel() - rows


def test_products_of_predictions_have_few_shapes():
    rng = np.random.default_rng(0)
    shapes = set()
    for __ in range(1000):
        longest = int(rng.integers(2, 193))
        shortest = max(2, longest // int(rng.integers(1, 5)))
        lengths = sorted(rng.integers(shortest, longest + 1, 2048 // longest).tolist())[::-1]
        for block in attention_blocks(lengths, heads=2, few_shapes=True):
            shapes |= {(group, block.shape[1]) for group in block.groups}
    for group, length in shapes:
        assert length in (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192)
        assert group in (1, 2, 4, 8, 16, 32, 64, 512 // length) and group * length <= 512


def test_a_packed_step_that_runs_out_of_memory_is_cut_smaller_until_it_fits():
    model = packable(dropout=0.1).train()
    update = Update(
        parameter_groups(model, [], learning_rate=0.1, head_learning_rate=0.1, weight_decay=0),
        max_grad_norm=0,
    )
    seen = []

    def small_card(model, update, batches, **options):
        seen.append([batch.num_tokens for batch in batches])
        if max(seen[-1]) > 60:
            raise MemoryError
        return None

    steps = Steps(
        model,
        update,
        device=CPU,
        precision="fp32",
        pad_id=0,
        seed=0,
        card=gauge_of(CPU),
        micro_batch_tokens=1000,
        step=small_card,
        packed=True,
    )
    done = steps.run(0, windows_of((60, 10, 10, 10)))
    assert seen[0] == [90]
    assert max(seen[-1]) <= 60
    assert done.oom_retries == len(seen) - 1
