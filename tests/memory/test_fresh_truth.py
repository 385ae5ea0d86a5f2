"""Predicted against the CUDA build of PyTorch, measured while the test runs (stub runtime)."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.shared import shared

NUM_CASES = 26  # of benchmarks/more_cases.py


@pytest.fixture(scope="module")
def measure() -> Iterator[Callable[[int], dict[str, Any]]]:
    """Give what measures and predicts a case; its module and the runtime's can be imported."""
    phantom = shared("tools", "phantom_gpu")
    if torch.version.cuda is None or shutil.which("gcc") is None:
        pytest.skip("the stub runtime needs the CUDA build of torch and gcc")
    before = list(sys.path)
    sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks"), str(phantom)]
    import more_cases

    assert len(more_cases.CASES) == NUM_CASES
    card = more_cases.card()
    yield lambda number: more_cases.measure_and_compare(number, card)[0]
    card.close()
    sys.path[:] = before


@pytest.mark.slow
@pytest.mark.parametrize("number", range(NUM_CASES))
def test_a_fresh_case_is_predicted_to_the_byte(
    measure: Callable[[int], dict[str, Any]], number: int
) -> None:
    row = measure(number)
    assert not row["verdict_wrong"]
    if row["judged"]:
        assert (row["reserved"], row["allocated"]) == (0, 0)
