"""Runs whose state lies on the host: saved, stopped and gone on with as any other."""

from pathlib import Path

import pytest
import torch
from torch import nn

from bertfit.config import Precision, job_config
from bertfit.data.batches import pad
from bertfit.engine.host_state import make_update
from bertfit.engine.optim import Update, parameter_groups
from bertfit.engine.step import train_step
from bertfit.jobs.checkpoints import Checkpoint, CheckpointStore
from bertfit.jobs.snapshots import Snapshots, restore
from bertfit.jobs.train import train
from bertfit.jobs.train_state import TrainState
from bertfit.models.rows import keep_rows
from jobs.corpora import write_corpus
from jobs.failing_disks import QuickDisk
from tiny_models import VOCABULARY, random_window, tiny_model

CPU = torch.device("cpu")


def prepared(precision: Precision, *, on_host: bool) -> tuple[nn.Module, Update]:
    model = tiny_model().train()
    keep_rows(model, range(VOCABULARY))
    groups = parameter_groups(
        model, [], learning_rate=1e-3, head_learning_rate=1e-3, weight_decay=0.01
    )
    update = make_update(
        model, groups, device=CPU, precision=precision, max_grad_norm=1.0, host_state=on_host
    )
    return model, update


def take_step(model: nn.Module, update: Update, precision: Precision, step: int) -> float:
    batch = pad([random_window(9, step), random_window(12, 50 + step)], 0)
    return float(train_step(model, update, [batch], device=CPU, precision=precision).loss)


def saved(model: nn.Module, update: Update, folder: Path) -> Checkpoint:
    store = CheckpointStore(folder, QuickDisk())
    snapshots = Snapshots(store, model, update, pytest.fail)
    snapshots.take(TrainState(step=2, micro_batch_tokens=64, identity={}))
    snapshots.wait()
    checkpoint, __ = store.load_newest()
    assert checkpoint is not None
    return checkpoint


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("before", "after"), [(True, True), (True, False), (False, True)])
def test_a_run_goes_on_with_the_lever_or_without(
    precision: Precision, before: bool, after: bool, tmp_path: Path
) -> None:
    model, update = prepared(precision, on_host=before)
    for step in (0, 1):
        take_step(model, update, precision, step)
    checkpoint = saved(model, update, tmp_path)
    assert all(weight.dtype == torch.float32 for weight in checkpoint.weights.values())
    other, other_update = prepared(precision, on_host=after)
    restore(checkpoint, other, other_update)
    for step in (2, 3, 4):
        expected = take_step(model, update, precision, step)
        assert take_step(other, other_update, precision, step) == expected
    with update.unrounded(), other_update.unrounded():
        for name, weight in model.named_parameters():
            assert torch.equal(weight, other.get_parameter(name)), name


@pytest.mark.parametrize("device", ["cpu", "sim:rtx-3050-4gb"])
def test_law_10_the_model_that_is_saved_is_the_same_file(device: str, tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "train.jsonl", 30)
    models = []
    for on_host in (False, True):
        output = tmp_path / str(on_host)
        job = job_config(
            {
                "model": "tiny", "train_file": data, "output_dir": output, "num_train_epochs": 1,
                "batch_size": 8, "seed": 3, "device": device, "precision": "bf16",
                "host_state": on_host,
            }
        )  # fmt: skip
        train(job, progress=False, say=lambda message: None)
        models.append((output / "model" / "model.safetensors").read_bytes())
    assert models[0] == models[1]
