import pytest

from bertfit.memory.index_kernels import count_bytes, select_bytes, sorted_embedding_backward
from bertfit.memory.kernels import Chip

AMPERE = Chip(compute_capability=(8, 6), multiprocessors=82)
A100 = Chip(compute_capability=(8, 0), multiprocessors=108)
TURING = Chip(compute_capability=(7, 5), multiprocessors=40)
HOPPER = Chip(compute_capability=(9, 0), multiprocessors=132)
BLACKWELL = Chip(compute_capability=(12, 0), multiprocessors=170)


def test_an_embedding_of_many_indices_is_sorted() -> None:
    # The requests of PyTorch 2.14 for 4,816 indices into 8,021 rows of 768.
    sizes = sorted_embedding_backward(AMPERE, indices=4816, num_weights=8021, width=768, half=False)
    assert (sizes.index, sizes.sort, sizes.unique, sizes.scan) == (38528, 83967, 1279, 1279)
    assert (sizes.segments, sizes.parts, sizes.sums, sizes.weight) == (38528, 42376, 16272384, 0)


def test_few_rows_of_an_embedding_are_summed_without_partial_rows() -> None:
    sizes = sorted_embedding_backward(AMPERE, indices=4816, num_weights=2, width=768, half=True)
    assert (sizes.sort, sizes.parts, sizes.sums, sizes.weight) == (4607, 3864, 3864, 6144)


# What PyTorch 2.14 asks for in `nonzero`, on the stub runtime.
@pytest.mark.parametrize(
    ("chip", "items", "count", "select"),
    [
        (AMPERE, 4096, 1, 1023),
        (AMPERE, 4097, 10239, 1023),
        (AMPERE, 65536, 10239, 1791),
        (AMPERE, 10_000_000, 10239, 125951),
        (TURING, 500_000, 3583, 7167),
        (A100, 2_000_000, 17663, 7935),
        (HOPPER, 1_000_000, 21503, 2815),
        (BLACKWELL, 4_000_000, 20735, 9983),
    ],
)
def test_finding_what_is_not_zero_takes_what_cub_takes(
    chip: Chip, items: int, count: int, select: int
) -> None:
    assert count_bytes(chip=chip, items=items) == count
    assert select_bytes(chip=chip, items=items) == select
