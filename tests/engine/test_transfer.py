import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from late_copies import late_copies
from torch import Tensor

from bertfit.engine import transfer
from bertfit.engine.transfer import CardTransfer, DirectTransfer, Transfer

CPU = torch.device("cpu")
SIZES = st.lists(st.integers(1, 200), min_size=1, max_size=12)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


def sums(way: Transfer, tensors: list[Tensor], rounds: int) -> list[Tensor]:
    """Send every tensor and overwrite it at once, as a card's allocator would."""
    totals = [torch.full(t.shape, 99.0) for t in tensors]
    for number in range(rounds):
        for tensor, total in zip(tensors, totals, strict=True):
            gradient = tensor * (number + 1)
            way.to_host(gradient, total, add=number > 0)
            gradient.fill_(float("nan"))
    way.wait()
    return totals


@given(sizes=SIZES, dtype=DTYPES, rounds=st.integers(1, 3))
def test_the_host_has_the_sum_however_late_the_copies_are(
    sizes: list[int], dtype: torch.dtype, rounds: int
) -> None:
    tensors = [torch.arange(size).to(dtype) + at for at, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "CHUNK_BYTES", 64)  # so that tensors go in several pieces
        with late_copies(patch):
            found = sums(CardTransfer(CPU), tensors, rounds)
    for total, expected in zip(found, sums(DirectTransfer(), tensors, rounds), strict=True):
        assert torch.equal(total, expected)


@given(sizes=SIZES, dtype=DTYPES)
def test_the_device_has_the_new_weights_in_its_own_dtype(
    sizes: list[int], dtype: torch.dtype
) -> None:
    masters = [torch.arange(size) / 7 + at for at, size in enumerate(sizes)]
    weights = [torch.zeros(size, dtype=dtype) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "CHUNK_BYTES", 64)
        with late_copies(patch):
            way = CardTransfer(CPU)
            for master, weight in zip(masters, weights, strict=True):
                sent = master.clone()
                way.to_device(sent, weight)
                sent.fill_(float("nan"))
    for master, weight in zip(masters, weights, strict=True):
        assert torch.equal(weight, master.to(dtype))


def test_what_fails_while_the_host_adds_is_not_lost() -> None:
    with pytest.MonkeyPatch.context() as patch, late_copies(patch):
        way = CardTransfer(CPU)
        way.to_host(torch.ones(4), torch.ones(4, requires_grad=True), add=True)
        with pytest.raises(RuntimeError, match="leaf Variable"):
            way.wait()
        way.wait()  # said once


def test_pinned_memory_is_a_power_of_two() -> None:
    pinned = transfer.HOST_CHUNKS * transfer.CHUNK_BYTES
    assert pinned & (pinned - 1) == 0
