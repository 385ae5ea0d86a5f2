"""Each trade-off in `train`: it works, it is said, it survives a kill, and its model is ordinary."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForTokenClassification, AutoTokenizer

from bertfit.data.formats import ReadOptions
from bertfit.errors import BertfitError, ConfigError
from bertfit.jobs.checkpoints import Disk
from bertfit.jobs.evaluate import evaluate
from bertfit.jobs.predict import load
from bertfit.models.tagger import load_tagger
from bertfit.types import LabelScore
from jobs.corpora import write_corpus
from jobs.failing_disks import QuickDisk
from jobs.test_resume import job, killed_run, run, same

NAMES = (
    "bf16-moments",
    "8bit-adamw",
    "adafactor",
    "frozen-embeddings",
    "frozen-layers=1",
    "lora=4",
    "first-layers=1",
    "cut-vocabulary",
    "shorter-windows=16",
)


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(Disk, "sync", QuickDisk.sync)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_corpus(folder / "dev.jsonl", 10, seed=2)
    return write_corpus(folder / "train.jsonl", 40, seed=1)


@pytest.fixture(scope="module")
def start(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model to begin with, trained on other sentences a little."""
    folder = tmp_path_factory.mktemp("start")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setattr(Disk, "sync", QuickDisk.sync)
        run(job(data, folder / "run", num_train_epochs=1, save_every="never"))
    yield folder / "run" / "model"


def scored(model: Path, data: Path) -> LabelScore:
    predictor = load(str(model), device="cpu")
    found = evaluate(
        predictor,
        [data.with_name("dev.jsonl")],
        ReadOptions(),
        progress=False,
        say=lambda message: None,
    )
    return found.scores.micro


@pytest.mark.parametrize("name", NAMES)
def test_a_trade_off_works_is_said_and_its_model_is_an_ordinary_one(
    data: Path, start: Path, tmp_path: Path, name: str
) -> None:
    said: list[str] = []
    asked = job(data, tmp_path / "run", model=str(start), allow=[name], save_every="never")
    report = run(asked, said.append)
    assert report.scores is not None
    assert sum(line.startswith(f"Allowed, and made: {name} (") for line in said) == 1
    assert "https://" in next(line for line in said if line.startswith("Allowed"))
    assert yaml.safe_load((tmp_path / "run" / "job.yaml").read_text())["allow"] == [name]
    folder = tmp_path / "run" / "model"
    assert json.loads((folder / "bertfit.json").read_text())["trade_offs"] == [name]
    # Whoever loads it finds every weight, and nothing that is not of the model.
    model, report_of = AutoModelForTokenClassification.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(report_of[kind] for kind in ("missing_keys", "unexpected_keys"))
    assert len(AutoTokenizer.from_pretrained(folder)) == model.config.vocab_size
    # What was scored in the run is what the saved model does.
    assert scored(folder, data) == report.scores.micro


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_with_a_trade_off_ends_bit_equal(
    data: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    calm = job(data, tmp_path / "calm", model=str(start), allow=[name])
    run(calm)
    asked = job(data, tmp_path / "run", model=str(start), allow=[name])
    killed_run(monkeypatch, asked, 5)
    run(asked)
    assert same(tmp_path / "calm", tmp_path / "run")


def test_nothing_is_traded_unless_it_is_allowed(data: Path, start: Path, tmp_path: Path) -> None:
    said: list[str] = []
    run(job(data, tmp_path / "run", model=str(start), save_every="never"), said.append)
    assert not any("Allowed" in line for line in said)
    saved, old = load_tagger(tmp_path / "run" / "model"), load_tagger(start)
    assert saved.model.config.vocab_size == old.model.config.vocab_size
    assert len(list(saved.model.parameters())) == len(list(old.model.parameters()))
    for (name, new), before in zip(
        saved.model.named_parameters(), old.model.parameters(), strict=True
    ):
        assert not torch.equal(new, before), name


def changed(start: Path, folder: Path) -> set[str]:
    old, new = load_file(start / "model.safetensors"), load_file(folder / "model.safetensors")
    return {name for name in old if name in new and not torch.equal(old[name], new[name])}


@pytest.mark.parametrize(
    ("name", "still", "trained"),
    [
        ("frozen-embeddings", ("model.embeddings.",), ("model.layers.0.", "classifier.")),
        ("frozen-layers=1", ("model.embeddings.", "model.layers.0."), ("model.layers.1.",)),
        ("lora", ("model.embeddings.", "model.final_norm."), ("model.layers.0.", "classifier.")),
    ],
)
def test_what_is_frozen_keeps_every_bit(
    data: Path, start: Path, tmp_path: Path, name: str, still: tuple[str, ...], trained: tuple[str]
) -> None:
    asked = job(data, tmp_path / "run", model=str(start), allow=[name], save_every="never")
    run(asked)
    names = changed(start, tmp_path / "run" / "model")
    assert names and not [n for n in names if n.startswith(still)]
    for prefix in trained:
        assert any(n.startswith(prefix) for n in names), prefix


def test_the_first_layers_are_those_of_the_whole_model(
    data: Path, start: Path, tmp_path: Path
) -> None:
    asked = job(
        data,
        tmp_path / "run",
        model=str(start),
        allow=["first-layers=1"],
        save_every="never",
        learning_rate=1e-9,
        num_train_epochs=1,
        weight_decay=0,
    )
    run(asked)
    model = load_tagger(tmp_path / "run" / "model").model
    assert model.config.num_hidden_layers == 1 and len(model.model.layers) == 1
    old = load_file(start / "model.safetensors")
    for name, tensor in model.model.layers.named_parameters():
        torch.testing.assert_close(tensor, old[f"model.layers.{name}"], atol=1e-6, rtol=0)


def test_windows_are_as_short_as_is_said_in_the_model_too(
    data: Path, start: Path, tmp_path: Path
) -> None:
    asked = job(data, tmp_path / "r", model=str(start), allow=["shorter-windows=16"])
    run(asked)
    assert load_tagger(tmp_path / "r" / "model").max_length == 16


def test_trade_offs_go_together(data: Path, start: Path, tmp_path: Path) -> None:
    names = ["first-layers=1", "lora=2", "cut-vocabulary", "8bit-adamw", "shorter-windows=16"]
    report = run(job(data, tmp_path / "run", model=str(start), allow=names, save_every="2steps"))
    assert report.scores is not None and scored(tmp_path / "run", data) == report.scores.micro


@pytest.mark.parametrize("name", ["first-layers=9", "frozen-layers=9"])
def test_more_layers_than_there_are_is_one_line(
    data: Path, start: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match=rf"--allow {name}: .* has 2 layers"):
        run(job(data, tmp_path / "run", model=str(start), allow=[name]))


def test_another_trade_off_is_another_run(
    data: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_run(monkeypatch, job(data, tmp_path / "run", model=str(start), allow=["lora"]), 5)
    with pytest.raises(BertfitError, match="--allow"):
        run(job(data, tmp_path / "run", model=str(start), allow=["adafactor"]))


def test_a_step_with_adapters_is_run_again_when_memory_ends(
    data: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertfit.engine.step import train_step
    from bertfit.jobs import survival

    count = [0]

    def step(*arguments: object, **settings: object) -> object:
        count[0] += 1
        if count[0] == 3:
            arguments[1].clear()  # type: ignore[attr-defined]
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return train_step(*arguments, **settings)  # type: ignore[arg-type]

    original = survival.StopRequests.between_micro_batches
    monkeypatch.setattr(
        survival.StopRequests, "between_micro_batches", lambda self, inner: original(self, step)
    )
    said: list[str] = []
    asked = job(data, tmp_path / "run", model=str(start), allow=["lora"], save_every="2steps")
    report = run(asked, said.append)
    assert report.oom_retries == 1 and any("memory ended" in line for line in said)
