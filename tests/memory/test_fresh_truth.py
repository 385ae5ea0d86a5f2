"""Predicted against the CUDA build of PyTorch, measured while the test runs (stub runtime)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.shared import stub_runtime

NUM_CASES = 34  # of benchmarks/more_cases.py


@pytest.fixture(scope="module")
def measure() -> Iterator[Callable[[int], dict[str, Any]]]:
    """Give what measures and predicts a case; its module and the runtime's can be imported."""
    with stub_runtime():
        import more_cases

        assert len(more_cases.CASES) == NUM_CASES
        card = more_cases.card()
        yield lambda number: more_cases.measure_and_compare(number, card)[0]
        card.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(NUM_CASES))
def test_a_fresh_case_is_predicted_to_the_byte(
    measure: Callable[[int], dict[str, Any]], number: int
) -> None:
    row = measure(number)
    assert not row["verdict_wrong"]
    if row["judged"]:
        assert (row["reserved"], row["allocated"]) == (0, 0)
