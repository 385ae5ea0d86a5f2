"""Snapshots: what they copy, that training may go on meanwhile, and what a failed save does."""

import threading
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from torch import nn

from bertfit.data.batches import pad
from bertfit.engine.fence import snapshot_bytes
from bertfit.engine.optim import Update, parameter_groups
from bertfit.engine.step import train_step
from bertfit.errors import ModelError
from bertfit.jobs.checkpoints import CheckpointStore
from bertfit.jobs.snapshots import Snapshots, restore
from bertfit.jobs.train_state import TrainState
from bertfit.models.rows import keep_rows
from bertfit.types import LabelScore, Scores
from jobs.failing_disks import CountingDisk, QuickDisk
from tiny_models import VOCABULARY, random_window, tiny_model

SCORE = LabelScore(precision=0.1, recall=1 / 3, f1=2 / 7, support=3, predicted=4, correct=1)
SCORES = Scores(
    micro=SCORE,
    macro=SCORE,
    by_label={"地名": SCORE},
    partial={"exact": {"f1": 0.1 + 0.2}},
    num_examples=7,
)


def state(step: int) -> TrainState:
    return TrainState(
        step=step,
        decay=0.1 + 0.2,
        micro_batch_tokens=64,
        best=SCORES,
        best_step=1,
        evaluations=({"step": 1, "f1": 2 / 7},),
        identity={"seed": "42"},
    )


def trained(steps: int) -> tuple[nn.Module, Update]:
    model = tiny_model().train()
    keep_rows(model, range(0, VOCABULARY, 1))
    groups = parameter_groups(
        model, [], learning_rate=1e-3, head_learning_rate=1e-3, weight_decay=0.01
    )
    update = Update(groups, max_grad_norm=1.0)
    for step in range(steps):
        take_step(model, update, step)
    return model, update


def take_step(model: nn.Module, update: Update, step: int) -> None:
    batch = pad([random_window(9, step), random_window(12, 50 + step)], 0)
    train_step(model, update, [batch], device=torch.device("cpu"), precision="fp32")


def test_a_restored_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    model, update = trained(2)
    snapshots = Snapshots(CheckpointStore(tmp_path, QuickDisk()), model, update, pytest.fail)
    snapshots.take(state(2))
    take_step(model, update, 2)  # while it is written
    snapshots.wait()
    assert snapshots.saved_step == 2
    checkpoint, __ = CheckpointStore(tmp_path).load_newest()
    assert checkpoint is not None
    other, other_update = trained(0)
    restore(checkpoint, other, other_update)
    take_step(other, other_update, 2)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    for one, two in zip(update.parameters, other_update.parameters, strict=True):
        for kind, tensor in update.optimizer.state[one].items():
            assert torch.equal(tensor, other_update.optimizer.state[two][kind]), kind


def test_the_state_comes_back_equal_to_the_last_bit(tmp_path: Path) -> None:
    model, update = trained(1)
    snapshots = Snapshots(CheckpointStore(tmp_path, QuickDisk()), model, update, pytest.fail)
    snapshots.take(state(1))
    snapshots.wait()
    checkpoint, __ = CheckpointStore(tmp_path).load_newest()
    assert checkpoint is not None
    assert TrainState.from_json(checkpoint.state) == state(1)


def test_a_state_of_another_version_is_refused() -> None:
    stored = state(1).to_json()
    del stored["decay"]  # as if an older format had not had it
    assert TrainState.from_json(stored).decay == 1.0
    with pytest.raises(ValueError, match="colour"):
        TrainState.from_json({**stored, "colour": "red"})
    del stored["identity"]
    with pytest.raises(ValueError, match="identity"):
        TrainState.from_json(stored)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", "x"),
        ("step", -1),
        ("decay", None),
        ("loss_scale", []),
        ("micro_batch_tokens", 0),
        ("evaluations", 5),
        ("evaluations", [5]),
        ("best", {"micro": 1}),
        ("best", "good"),
        ("finished", "perhaps"),
        ("identity", None),
        ("identity", {"data": 5}),
    ],
)
def test_a_state_of_odd_values_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name}"):
        TrainState.from_json({**state(1).to_json(), name: value})


def test_a_second_snapshot_waits_and_reuses_the_memory_of_the_first(tmp_path: Path) -> None:
    gate = threading.Event()

    class Slow(QuickDisk):
        def write(self, file: BinaryIO, data: memoryview) -> None:
            gate.wait(10)
            super().write(file, data)

    model, update = trained(1)
    snapshots = Snapshots(CheckpointStore(tmp_path, Slow()), model, update, pytest.fail)
    snapshots.take(state(1))
    assert snapshots.busy
    before = {name: copy.data_ptr() for name, copy in snapshots._copies.items()}
    gate.set()
    snapshots.take(state(2))
    snapshots.wait()
    assert not snapshots.busy and snapshots.saved_step == 2
    assert before == {name: copy.data_ptr() for name, copy in snapshots._copies.items()}
    assert sum(c.nbytes for c in snapshots._copies.values()) == snapshot_bytes(model)


def test_frozen_weights_are_neither_copied_nor_wanted_back(tmp_path: Path) -> None:
    model = tiny_model().train()
    model.base_model.embeddings.requires_grad_(False)  # type: ignore[union-attr]
    groups = parameter_groups(
        model, [], learning_rate=1e-3, head_learning_rate=1e-3, weight_decay=0
    )
    update = Update(groups, max_grad_norm=1.0)
    snapshots = Snapshots(CheckpointStore(tmp_path, QuickDisk()), model, update, pytest.fail)
    snapshots.prepare()
    assert sum(c.nbytes for c in snapshots._copies.values()) == snapshot_bytes(model)
    snapshots.take(state(1))
    snapshots.wait()
    checkpoint, __ = CheckpointStore(tmp_path).load_newest()
    assert checkpoint is not None
    assert not any("embeddings" in name for name in checkpoint.weights)
    restore(checkpoint, model, update)


def test_the_run_is_on_the_disk_before_its_checkpoint(tmp_path: Path) -> None:
    model, update = trained(1)
    store = CheckpointStore(tmp_path / "checkpoints", QuickDisk())
    synced: list[int] = []
    said: list[str] = []

    def sync() -> None:
        synced.append(threading.get_ident())
        assert not store.folder.exists()
        raise OSError(5, "Input/output error")

    snapshots = Snapshots(store, model, update, said.append, sync)
    snapshots.take(state(1))
    snapshots.wait()
    assert len(synced) == 1 and synced != [threading.get_ident()]
    assert said[0].startswith("Warning: no checkpoint of step 1 (Input/output error)")
    assert not store.folder.exists()


def test_a_failed_save_warns_and_the_next_one_goes_through(tmp_path: Path) -> None:
    model, update = trained(1)
    said: list[str] = []
    snapshots = Snapshots(CheckpointStore(tmp_path, CountingDisk(3)), model, update, said.append)
    snapshots.take(state(1))
    snapshots.wait()
    assert snapshots.saved_step is None and snapshots.failures == 1
    assert len(said) == 1 and said[0].startswith("Warning: no checkpoint of step 1 (Input/output")
    snapshots.take(state(2))
    snapshots.wait()
    assert snapshots.saved_step == 2 and len(said) == 1


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    model, update = trained(1)
    snapshots = Snapshots(CheckpointStore(tmp_path, QuickDisk()), model, update, pytest.fail)
    snapshots.take(state(1))
    snapshots.wait()
    checkpoint, __ = CheckpointStore(tmp_path).load_newest()
    assert checkpoint is not None
    smaller = tiny_model()
    keep_rows(smaller, range(100))
    groups = parameter_groups(
        smaller, [], learning_rate=1e-3, head_learning_rate=1e-3, weight_decay=0
    )
    with pytest.raises(ModelError, match="is of another model"):
        restore(checkpoint, smaller, Update(groups, max_grad_norm=1.0))
