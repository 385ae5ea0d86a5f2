"""bertfit's own step: predicted against the CUDA build of PyTorch, on the stub runtime."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.shared import stub_runtime

NUM_JOBS = 115  # of benchmarks/memory_own.py

_TRAIN = {"kind": "train", "sm": "8.6", "steps": [[[4, 77], [9, 40]], [[2, 130]]]}
_BATCHES = {"sm": "8.6", "batches": [[16, 64], [5, 200], [60, 30]]}
FEW = {
    "checkpointing and accumulation in bf16": {
        **_TRAIN, "model": "electra", "precision": "bf16", "checkpointed_layers": 5},
    "frozen layers in fp32": {
        **_TRAIN, "model": "distilbert", "frozen_layers": 2, "frozen_embeddings": True},
    "a card of compute capability 9.0": {
        **_TRAIN, "model": "electra", "precision": "fp16", "sm": "9.0"},
    "prediction": {**_BATCHES, "kind": "predict", "model": "electra", "precision": "fp16"},
    "embedding": {
        **_BATCHES, "kind": "embed", "model": "distilbert", "layers": [2, 5], "every_token": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def compare() -> Iterator[Callable[[int | dict[str, Any]], dict[str, Any]]]:
    """Give what measures and predicts a job, or the job of a number."""
    with stub_runtime():
        import memory_own
        from stub import Stub

        jobs = list(memory_own.jobs())
        assert len(jobs) == NUM_JOBS
        card = Stub(memory_own.__file__)
        yield lambda job: memory_own.compare(0, jobs[job] if isinstance(job, int) else job, card)
        card.close()


def exact(row: dict[str, Any]) -> bool:
    return (row["reserved"], row["allocated"], row["requested"]) == (0, 0, 0)


@pytest.mark.parametrize("name", FEW)
def test_an_own_setting_is_predicted_to_the_byte(
    compare: Callable[[int | dict[str, Any]], dict[str, Any]], name: str
) -> None:
    row = compare(FEW[name])
    assert exact(row), row


@pytest.mark.slow
@pytest.mark.parametrize("number", range(NUM_JOBS))
def test_an_own_job_is_predicted_to_the_byte(
    compare: Callable[[int | dict[str, Any]], dict[str, Any]], number: int
) -> None:
    row = compare(number)
    assert exact(row), row
