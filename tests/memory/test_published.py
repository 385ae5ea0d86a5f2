"""Our figures in docs/memory.md beside those that others measured on a real card."""

import sys
from pathlib import Path

import pytest


# Padded batches, as the published ones were; documented in docs/memory.md.
@pytest.mark.parametrize(
    ("attention", "ours"),
    [("eager", 1526.162), ("sdpa", 1440.179)],
)
def test_two_copies_of_bert_large_beside_an_a100(attention: str, ours: float) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        import published_memory
    finally:
        del sys.path[0]
    found = published_memory.peak_mb(attention, (8, 512), padded=True)
    assert found == pytest.approx(ours, abs=0.0005)
    published = published_memory.PUBLISHED[attention, (8, 512)]
    assert abs(found / published - 1) < 0.004
