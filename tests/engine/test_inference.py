"""Models made ready to predict: the tags and vectors of the plain model, on any batch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny_models import random_window, tiny_model

from bertfit.data.batches import pad
from bertfit.engine.backends import torch_encoder, torch_tagger
from bertfit.engine.inference import Batching, batching_of, first_rows, make_ready
from bertfit.engine.packing import FAMILIES
from bertfit.engine.precision import cpu_has_bf16
from bertfit.engine.prepacked import PrepackedLinear, can_prepack, store_prepacked

CPU = torch.device("cpu")
LENGTHS = (31, 5, 30, 30, 6, 29, 4, 3, 3)
FAMILIES_TRIED = (*sorted(FAMILIES), "distilbert", "deberta-v2", "albert", "mpnet")
needs_prepacking = pytest.mark.skipif(
    not can_prepack("bf16", CPU), reason="this processor or torch has no bfloat16 to prepack"
)


def windows_of(lengths=LENGTHS):
    ordered = sorted(lengths, reverse=True)
    return [random_window(length, seed) for seed, length in enumerate(ordered)]


def rows_of(batch, values, windows):
    """The values (T, ...) of every window of a batch."""
    flat = values.flatten(0, 1)
    return [
        flat[start : start + len(window.input_ids)]
        for start, window in zip(first_rows(batch).tolist(), windows, strict=True)
    ]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES_TRIED)
def test_logits_are_those_of_the_plain_model_alone(family, precision):
    if precision == "bf16" and not cpu_has_bf16():
        pytest.skip("this processor has no bfloat16")
    plain, ready = (tiny_model(model_type=family).eval() for __ in range(2))
    left = make_ready(ready, CPU, precision)
    batching = batching_of(ready, CPU, 1)
    windows = windows_of()
    batch = batching.batch(windows)
    with torch.inference_mode():
        found = rows_of(batch, torch_tagger(ready, CPU, left)(batch), windows)
        for window, logits in zip(windows, found, strict=True):
            expected = torch_tagger(plain, CPU, "fp32")(pad([window], 1))[0]
            # bfloat16 has 8 bits: two layers of sums of 32 to 64 products.
            error = {"fp32": 1e-5, "bf16": 0.03}[precision]
            torch.testing.assert_close(logits.float(), expected, atol=error, rtol=error)


@pytest.mark.parametrize("layers", [(), (0,), (1, 2)])
def test_states_of_packed_windows_are_those_of_each_alone(layers):
    plain, ready = (tiny_model().eval().base_model for __ in range(2))
    make_ready(ready, CPU, "fp32")
    windows = windows_of()
    batch = Batching(pad_id=0, packed=True).batch(windows)
    with torch.inference_mode():
        found = rows_of(batch, torch_encoder(ready, CPU, "fp32", layers)(batch), windows)
        for window, states in zip(windows, found, strict=True):
            expected = torch_encoder(plain, CPU, "fp32", layers)(pad([window], 0))[0]
            torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)


@given(st.lists(st.integers(2, 60), min_size=1, max_size=80), st.sampled_from([40, 100, 240, 700]))
def test_no_batch_of_a_chunk_is_a_scrap(lengths, budget):
    windows = [random_window(length, i) for i, length in enumerate(lengths)]
    parts = Batching(pad_id=0, packed=True).cut(windows, budget)
    ordered = [window for part in parts for window in part]
    assert sorted(w.index for w in ordered) == list(range(len(windows)))
    sizes = [len(window.input_ids) for window in ordered]
    assert sizes == sorted(sizes, reverse=True)
    totals = [sum(len(window.input_ids) for window in part) for part in parts]
    assert all(total <= budget or len(part) == 1 for total, part in zip(totals, parts, strict=True))
    if budget >= 240 and len(parts) > 1:  # windows are a quarter of it at most
        assert totals[-1] >= budget / 2 - 60


@pytest.mark.parametrize("packed", [False, True])
def test_windows_of_a_batch_begin_where_first_rows_says(packed):
    windows = windows_of()
    batch = Batching(pad_id=0, packed=packed).batch(windows)
    flat = batch.input_ids.reshape(-1)
    for start, window in zip(first_rows(batch), windows, strict=True):
        assert np.array_equal(flat[start : start + len(window.input_ids)], window.input_ids)


def test_making_ready_twice_changes_nothing():
    model = tiny_model().eval()
    batch = pad(windows_of(), 0)
    left = make_ready(model, CPU, "bf16" if cpu_has_bf16() else "fp32")
    with torch.inference_mode():
        once = torch_tagger(model, CPU, left)(batch)
        assert make_ready(model, CPU, "bf16" if cpu_has_bf16() else "fp32") == left
        assert torch.equal(torch_tagger(model, CPU, left)(batch), once)


@needs_prepacking
@pytest.mark.parametrize("rows", [1, 7, 2048, 5000])
@pytest.mark.parametrize("bias", [True, False])
def test_a_prepacked_layer_is_the_layer_in_bfloat16(rows, bias):
    torch.manual_seed(0)
    layer = torch.nn.Linear(96, 160, bias=bias)
    states = torch.randn(2, rows, 96).bfloat16()
    packed = PrepackedLinear(layer)
    with torch.inference_mode():
        expected = layer.bfloat16()(states)
        torch.testing.assert_close(packed(states), expected, atol=0.01, rtol=0.01)
        assert torch.equal(packed.weight, layer.weight)


@needs_prepacking
def test_prepacking_leaves_no_second_copy_of_a_weight():
    model = tiny_model()
    linear = sum(isinstance(m, torch.nn.Linear) for m in model.modules())
    store_prepacked(model)
    assert not any(isinstance(m, torch.nn.Linear) for m in model.modules())
    assert sum(isinstance(m, PrepackedLinear) for m in model.modules()) == linear
    # Embeddings, norms and the tag layer's bias are all that is left as it was.
    assert all("embeddings" in n or "LayerNorm" in n for n, __ in model.named_parameters())
