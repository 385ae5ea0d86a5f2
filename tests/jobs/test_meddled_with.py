"""A run that somebody meddles with: files removed, the folder moved, signals while it saves."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bertfit.config import JobConfig, job_config
from bertfit.errors import BertfitError, ConfigError, Interrupted
from bertfit.jobs import train_saving
from bertfit.jobs.checkpoints import CheckpointStore
from bertfit.jobs.dev_scores import DevScores
from bertfit.jobs.resume import resumed
from bertfit.jobs.run_folder import RunFolder
from bertfit.jobs.train import TrainReport, train
from jobs.corpora import write_corpus

RESULTS = ("steps.jsonl", "scores.json", "model/model.safetensors")


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "train.jsonl", 40, seed=1)


def job(data: Path, output: Path) -> JobConfig:
    return job_config(
        {
            "model": "tiny",
            "train_file": data,
            "output_dir": output,
            "num_train_epochs": 3,
            "batch_size": 8,
            "learning_rate": 1e-3,
            "precision": "fp32",
            "device": "cpu",
            "save_every": "2steps",
            "logging_steps": 1,
        }
    )


@pytest.fixture(scope="module")
def calm(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("calm")
    train(job(data, folder), progress=False, say=lambda message: None)
    return result(folder)


def result(folder: Path) -> dict[str, bytes]:
    found = {name: (folder / name).read_bytes() for name in RESULTS}
    steps = found["steps.jsonl"].splitlines()
    found["steps.jsonl"] = b"\n".join(line.partition(b'"tokens_per_second"')[0] for line in steps)
    return found


def after_scoring(action: Callable[[], object]) -> Callable[[str], None]:
    """Do something once, when the run has said its first score."""
    actions: Iterator[Callable[[], object]] = iter([action])

    def say(message: str) -> None:
        if message.startswith("epoch 1,"):
            next(actions)()

    return say


def go_on(asked: JobConfig, say: Callable[[str], None] = lambda message: None) -> TrainReport:
    return train(asked, progress=False, say=say)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (DevScores, "score"),
        (train_saving, "save_tagger"),
        (RunFolder, "write_scores"),
        (CheckpointStore, "save"),
    ],
)
def test_a_signal_while_it_scores_and_saves(
    data: Path,
    calm: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    number: signal.Signals,
) -> None:
    original, sent = getattr(owner, name), []

    def interrupted(*arguments: object, **options: object) -> object:
        if not sent:
            sent.append(number)
            os.kill(os.getpid(), number)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(Interrupted, match="everything is saved"):
        go_on(job(data, tmp_path / "run"))
    assert sent
    go_on(job(data, tmp_path / "run"))
    assert result(tmp_path / "run") == calm


def test_a_folder_that_was_moved_goes_on(
    data: Path, calm: dict[str, bytes], tmp_path: Path
) -> None:
    stop = after_scoring(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        go_on(job(data, tmp_path / "a"), stop)
    shutil.move(tmp_path / "a", tmp_path / "b")
    go_on(job_config(resumed(tmp_path / "b", {})))
    assert result(tmp_path / "b") == calm
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["scores.json", "run.json", "run.lock", "job.yaml", "checkpoints"])
def test_what_is_removed_meanwhile_and_written_again(
    data: Path, calm: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    path = tmp_path / "run" / name
    remove = (lambda: shutil.rmtree(path, True)) if name == "checkpoints" else path.unlink
    go_on(job(data, tmp_path / "run"), after_scoring(remove))
    assert result(tmp_path / "run") == calm


def test_training_data_may_go_once_they_are_read(
    data: Path, calm: dict[str, bytes], tmp_path: Path
) -> None:
    mine = tmp_path / "train.jsonl"
    mine.write_bytes(data.read_bytes())
    go_on(job(mine, tmp_path / "run"), after_scoring(mine.unlink))
    assert result(tmp_path / "run") == calm


def test_steps_that_were_removed_begin_anew_and_checkpoints_go_on(
    data: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    once = after_scoring((tmp_path / "run" / "steps.jsonl").unlink)

    def say(message: str) -> None:
        said.append(message)
        once(message)

    report = go_on(job(data, tmp_path / "run"), say)
    assert not [message for message in said if message.startswith("Warning")]
    lines = (report.output_dir / "steps.jsonl").read_text().splitlines()
    assert 0 < len(lines) < report.steps


def test_a_model_that_was_removed_is_told(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    # Learnt to the full before, so that no later model is better.
    original = DevScores.add
    better = iter([True])

    def add(self: DevScores, *arguments: object) -> bool:
        original(self, *arguments)  # type: ignore[arg-type]
        return next(better, False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DevScores, "add", add)
        with pytest.raises(ConfigError, match=r"model: the model of step \d+ was written there"):
            go_on(job(data, folder), after_scoring(lambda: shutil.rmtree(folder / "model")))


def test_a_run_folder_that_was_removed_is_told(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(BertfitError, match=str(folder)):
        go_on(job(data, folder), after_scoring(lambda: shutil.rmtree(folder, True)))
