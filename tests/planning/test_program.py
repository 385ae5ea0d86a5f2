import tracemalloc

import numpy as np
import torch

from bertfit.planning.program import blank_batch


def test_a_blank_batch_of_any_size_takes_no_memory() -> None:
    tracemalloc.start()
    batch = blank_batch((1 << 20, 64), True, labels=True)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    assert batch.num_tokens == batch.num_labelled == 1 << 26
    for array in (batch.input_ids, batch.attention_mask, batch.labels):
        assert array is not None
        assert array.shape == (1 << 20, 64)


def test_torch_takes_a_blank_batch_as_any_other() -> None:
    batch = blank_batch((3, 5), True, labels=True)
    assert batch.attention_mask is not None
    mask = torch.from_numpy(batch.attention_mask)
    assert mask.tolist() == [[1, 1, 0, 0, 0]] * 3
    ids = torch.from_numpy(batch.input_ids)
    assert not ids.to("cpu", torch.float32).any()
    assert np.array_equal(ids.contiguous().numpy(), np.zeros((3, 5)))
    assert blank_batch((3, 5), False, labels=False).attention_mask is None
