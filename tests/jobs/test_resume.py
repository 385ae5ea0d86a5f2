"""Stopping and going on: the resumed run is the same run, to the last bit."""

import errno
import json
import shlex
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import psutil
import pytest
import torch
from safetensors.torch import load_file

from bertfit.cli import main
from bertfit.config import JobConfig, job_config
from bertfit.engine.step import StepResult, train_step
from bertfit.errors import ConfigError, Interrupted
from bertfit.jobs import preemption, run_folder, survival
from bertfit.jobs import train as train_module
from bertfit.jobs.checkpoints import CheckpointStore, Disk
from bertfit.jobs.resume import resumed
from bertfit.jobs.run_folder import default_folder
from bertfit.jobs.runs import look
from bertfit.jobs.train import TrainReport, train
from jobs.corpora import write_corpus
from jobs.failing_disks import QuickDisk

STEPS = 15  # 40 texts in steps of 8, three epochs


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(Disk, "sync", QuickDisk.sync)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_corpus(folder / "dev.jsonl", 10, seed=2)
    return write_corpus(folder / "train.jsonl", 40, seed=1)


def job(data: Path, output: Path, **values: object) -> JobConfig:
    settings: dict[str, object] = {
        "model": "tiny",
        "train_file": data,
        "eval_file": data.with_name("dev.jsonl"),
        "output_dir": output,
        "num_train_epochs": 3,
        "batch_size": 8,
        "learning_rate": 1e-3,
        "precision": "fp32",
        "device": "cpu",
        "save_every": "2steps",
        "logging_steps": 4,
        **values,
    }
    return job_config(settings)


def run(asked: JobConfig, say: Callable[[str], None] = lambda message: None) -> TrainReport:
    return train(asked, progress=False, say=say)


def losses(folder: Path) -> list[tuple[int, float, float]]:
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"], row["grad_norm"]) for row in rows]


def everything(folder: Path) -> dict[str, object]:
    """What must be equal to the last bit."""
    newest = max((folder / "checkpoints").iterdir(), key=lambda path: path.name)
    return {
        "model": (folder / "model" / "model.safetensors").read_bytes(),
        "weights": (newest / "weights.safetensors").read_bytes(),
        "optimizer": (newest / "optimizer.safetensors").read_bytes(),
        "losses": losses(folder),
        "scores": (folder / "scores.json").read_text(),
    }


def same(one: Path, two: Path) -> bool:
    first, second = everything(one), everything(two)
    return [name for name in first if first[name] != second[name]] == []


@pytest.fixture(scope="module")
def calm(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setattr(Disk, "sync", QuickDisk.sync)
        return run(job(data, tmp_path_factory.mktemp("calm") / "run")).output_dir


class Killed(BaseException):
    """What a kill leaves: nothing after it runs."""


def with_step(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> None:
    """Call `before` with the number of the step, at its beginning."""
    count = [0]

    def step(*arguments: object, **settings: object) -> StepResult:
        before(count[0])
        count[0] += 1
        return train_step(*arguments, **settings)  # type: ignore[arg-type]

    original = survival.StopRequests.between_micro_batches
    monkeypatch.setattr(
        survival.StopRequests,
        "between_micro_batches",
        lambda self, inner: original(self, step),
    )


def kill_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def before(step: int) -> None:
        if step == number:
            raise Killed

    with_step(monkeypatch, before)


def killed_run(monkeypatch: pytest.MonkeyPatch, asked: JobConfig, number: int) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, number)
        with pytest.raises(Killed):
            run(asked)
        for thread in threading.enumerate():  # a kill ends the writer too; here it ends by itself
            if thread.name == "bertfit-checkpoint":
                thread.join()


@pytest.mark.parametrize("number", [0, 1, 5, 9, 14])
def test_a_run_killed_at_any_step_ends_bit_equal(
    data: Path, calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    asked = job(data, tmp_path / "run")
    killed_run(monkeypatch, asked, number)
    said: list[str] = []
    report = run(asked, said.append)
    assert same(calm, report.output_dir) and report.steps == STEPS
    assert any("Going on after step" in line for line in said) == (number > 1)


def test_a_run_killed_again_and_again_ends_bit_equal(
    data: Path, calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = job(data, tmp_path / "run")
    for __ in range(3):
        killed_run(monkeypatch, asked, 4)
    assert same(calm, run(asked).output_dir)


def test_a_stop_between_evaluation_and_checkpoint_scores_nothing_twice(
    data: Path, calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = job(data, tmp_path / "run", save_every="5steps")
    killed_run(monkeypatch, asked, 6)
    report = run(asked)
    evaluations = json.loads((report.output_dir / "scores.json").read_text())["evaluations"]
    assert [each["step"] for each in evaluations] == [5, 10, 15]
    assert losses(report.output_dir) == losses(calm)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_how_to_go_on(
    data: Path,
    calm: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    asked = job(data, tmp_path / "run", save_every="1000steps")
    with monkeypatch.context() as patch:
        with_step(patch, lambda step: signal.raise_signal(number) if step == 7 else None)
        with pytest.raises(Interrupted, match=r"everything is saved.*train --resume") as caught:
            run(asked)
    assert caught.value.exit_code == 75
    found = look(tmp_path / "run", "run")
    assert found is not None and found.state == "stopped"
    steps = CheckpointStore(tmp_path / "run" / "checkpoints").newest_steps()
    # The step in which the signal came is undone: its micro-batch ended, its update was not made.
    assert steps[0] == 7 and [row[0] for row in losses(tmp_path / "run")] == list(range(1, 8))
    assert same(calm, run(asked).output_dir)


def test_a_polite_kill_before_the_first_step_is_answered_too(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = job(data, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(
            train_module, "make_lessons", lambda *rest: signal.raise_signal(signal.SIGTERM)
        )
        with pytest.raises(Interrupted, match="before the first step"):
            run(asked)
    found = look(tmp_path / "run", "run")
    assert found is not None and found.state == "stopped"
    assert run(asked).steps == STEPS


def test_a_stop_in_the_first_step_promises_no_checkpoint(
    data: Path, calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = job(data, tmp_path / "run")
    with monkeypatch.context() as patch:
        with_step(patch, lambda step: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted, match=r"before the first step.*begins again"):
            run(asked)
    assert same(calm, run(asked).output_dir)


def test_a_second_ctrl_c_leaves_at_once(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(step: int) -> None:
        if step == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with_step(monkeypatch, twice)
    with pytest.raises(KeyboardInterrupt):
        run(job(data, tmp_path / "run"))


def test_a_preemption_file_stops_the_run(
    data: Path, calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survival, "LOOK_SECONDS", 0.0)
    notice = tmp_path / "preempted"
    asked = job(data, tmp_path / "run", preemption_file=notice)
    with monkeypatch.context() as patch:
        with_step(patch, lambda step: notice.touch() if step == 6 else None)
        with pytest.raises(Interrupted):
            run(asked)
    notice.unlink()
    assert same(calm, run(asked).output_dir)


def test_a_preemption_command_that_succeeds_stops_the_run(
    data: Path, calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survival, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(preemption, "COMMAND_SECONDS", 0.01)
    notice = tmp_path / "it's taken"
    command = f"test -e {shlex.quote(str(notice))}"
    asked = job(data, tmp_path / "run", preemption_command=command)
    looks = []

    def announce(step: int) -> None:
        if step == 6:
            notice.touch()
        if step >= 6:
            time.sleep(0.05)
            looks.append(step)

    with monkeypatch.context() as patch:
        with_step(patch, announce)
        with pytest.raises(
            Interrupted, match=r"\(--preemption-command test -e .*everything is saved"
        ):
            run(asked)
    assert looks, "not stopped before it was announced"
    notice.unlink()
    assert same(calm, run(asked).output_dir)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "must not be empty"),
        ("  ", "must not be empty"),
        ("no-such-program-here --now", r"the shell cannot run it \(exit code 127\)"),
        ("/", r"the shell cannot run it \(exit code 126\)"),
        ("sleep 60", "no answer within"),
    ],
)
def test_a_preemption_command_that_cannot_answer_is_refused_before_training(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    monkeypatch.setattr(preemption, "PATIENCE_SECONDS", 0.3)
    with pytest.raises(ConfigError, match=message):
        run(job(data, tmp_path / "run", preemption_command=command))
    assert not (tmp_path / "run").exists()


def test_a_preemption_command_that_stops_answering_is_named_once_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(preemption, "COMMAND_SECONDS", 0.01)
    said: list[str] = []
    began = time.monotonic()
    with preemption.Preemption(None, "sleep 61.5 & sleep 61.5", said.append) as looking:
        time.sleep(0.5)
        assert looking.word() == ""
    assert time.monotonic() - began < 5
    assert len(said) == 1 and "no answer within 0 s" in said[0]
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "61.5"]
    ]


class FullDisk:
    """A file that takes a few bytes and then no more, until `room` is made."""

    room = False

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._left = file, 100

    def write(self, data: bytes) -> int:
        part = data if self.room else data[: self._left]
        if not part:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._left -= len(part)
        return self._file.write(part)

    def close(self) -> None:
        self._file.close()


@pytest.mark.parametrize("room_is_made", [True, False])
def test_a_full_disk_stops_no_step_and_costs_no_line(
    data: Path, calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_is_made: bool
) -> None:
    original = run_folder._Lines.__init__

    def on_a_full_disk(self: run_folder._Lines, path: Path) -> None:
        original(self, path)
        if path.name == "steps.jsonl":
            self._file = FullDisk(self._file)  # type: ignore[assignment]

    monkeypatch.setattr(FullDisk, "room", False)
    monkeypatch.setattr(run_folder._Lines, "__init__", on_a_full_disk)
    with_step(
        monkeypatch, lambda step: setattr(FullDisk, "room", room_is_made and step > STEPS - 3)
    )
    said: list[str] = []
    asked = job(data, tmp_path / "run")
    if room_is_made:
        assert same(calm, run(asked, said.append).output_dir)
    else:
        with pytest.raises(ConfigError, match=r"run: cannot be written \(No space left"):
            run(asked, said.append)
    warned = [line for line in said if line.startswith("Warning: the steps cannot be written")]
    assert len(warned) == 1 and "(No space left on device)" in warned[0]
    unsaved = [line for line in said if line.startswith("Warning: no checkpoint")]
    assert unsaved and all("(No space left on device)" in line for line in unsaved)


def test_a_run_in_another_thread_takes_no_signals_and_trains(data: Path, tmp_path: Path) -> None:
    reports: list[TrainReport] = []
    thread = threading.Thread(target=lambda: reports.append(run(job(data, tmp_path / "run"))))
    thread.start()
    thread.join()
    assert reports[0].steps == STEPS


def test_another_cut_goes_on_with_equal_losses(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(job(data, tmp_path / "a", dropout=0))
    asked = job(data, tmp_path / "b", dropout=0)
    killed_run(monkeypatch, asked, 5)
    cut = run(job(data, tmp_path / "b", dropout=0, micro_batch_tokens=12))
    one, two = losses(whole.output_dir), losses(cut.output_dir)
    assert one[:4] == two[:4]
    assert one[4][1] == pytest.approx(two[4][1], rel=1e-6)
    assert [row[1] for row in one] == pytest.approx([row[1] for row in two], rel=1e-4)


@pytest.mark.parametrize(
    "levers",
    [
        {"expandable_segments": True, "autocast_cache": False},
        {"attn_kernel": "efficient", "device": "sim:2GiB"},
    ],
)
def test_levers_may_change_between_a_kill_and_the_rest(
    data: Path,
    calm: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    levers: dict[str, object],
) -> None:
    killed_run(monkeypatch, job(data, tmp_path / "run"), 5)
    said: list[str] = []
    report = run(job(data, tmp_path / "run", **levers), said.append)
    assert "Going on after step 5 of 15." in said
    assert losses(report.output_dir)[:5] == losses(calm)[:5]


def test_a_damaged_newest_checkpoint_falls_back_and_says_so(
    data: Path, calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = job(data, tmp_path / "run")
    killed_run(monkeypatch, asked, 9)
    newest = max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: path.name)
    weights = bytearray((newest / "weights.safetensors").read_bytes())
    weights[-5] ^= 16
    (newest / "weights.safetensors").write_bytes(weights)
    said: list[str] = []
    report = run(asked, said.append)
    assert any("checkpoint is damaged" in line and newest.name in line for line in said)
    assert same(calm, report.output_dir)


def test_without_a_whole_checkpoint_the_run_begins_anew_where_asked(
    data: Path, calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = job(data, tmp_path / "run")
    killed_run(monkeypatch, asked, 9)
    for path in (tmp_path / "run" / "checkpoints").glob("*/state.json"):
        path.write_text("{}")
    with pytest.raises(ConfigError, match=r"none of its checkpoints is whole.*--overwrite"):
        run(asked)
    report = run(asked.model_copy(update={"overwrite": True}))
    assert same(calm, report.output_dir)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 7}, "--seed"),
        ({"learning_rate": 2e-3}, "--learning-rate"),
        ({"num_train_epochs": 4, "dropout": 0.5}, "--num-train-epochs|--dropout"),
        ({"labels": ["PER", "LOC"]}, "the labels"),
    ],
)
def test_changed_settings_are_refused_by_name(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, object],
    named: str,
) -> None:
    killed_run(monkeypatch, job(data, tmp_path / "run"), 5)
    with pytest.raises(ConfigError, match=f"since it began ({named}).* changed"):
        run(job(data, tmp_path / "run", **change))
    report = run(job(data, tmp_path / "run", overwrite=True, save_every="never", **change))
    assert losses(report.output_dir)[0][0] == 1


def test_changed_data_and_labels_are_refused_by_name(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "train.jsonl"
    mine.write_text(data.read_text())
    (tmp_path / "dev.jsonl").write_text(data.with_name("dev.jsonl").read_text())
    asked = job(mine, tmp_path / "run")
    killed_run(monkeypatch, asked, 5)
    mine.write_text(data.read_text().replace('"PER"', '"HUM"', 1))
    with pytest.raises(ConfigError, match=r"the labels, the data.* changed"):
        run(asked)
    mine.write_text(data.read_text().replace("Anna", "Otto"))
    with pytest.raises(ConfigError, match="the data"):
        run(asked)
    mine.write_text(data.read_text())
    assert run(asked).steps == STEPS


def test_a_finished_run_is_not_gone_on_with(data: Path, tmp_path: Path) -> None:
    asked = job(data, tmp_path / "run", num_train_epochs=1)
    run(asked)
    with pytest.raises(ConfigError, match="not empty"):
        run(asked)
    with pytest.raises(ConfigError, match="came to its end"):
        resumed(tmp_path / "run", {})


def test_resume_takes_the_job_from_the_folder(
    data: Path, calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    relative = job(
        Path("train.jsonl"),
        tmp_path / "run",
        eval_file=Path("dev.jsonl"),
        preemption_file=Path("taken"),
    )
    killed_run(monkeypatch, relative, 9)
    monkeypatch.chdir(tmp_path)
    again = job_config(resumed(tmp_path / "run", {"logging_steps": 1, "seed": None}))
    assert again.logging_steps == 1
    assert again.preemption_file == data.parent / "taken"
    assert same(calm, run(again).output_dir)
    with pytest.raises(ConfigError, match=r"--resume .*holds no run"):
        resumed(tmp_path, {})


def test_resume_goes_on_where_the_run_is_and_reads_no_other_job(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "run"
    killed_run(monkeypatch, job(data, folder), 5)
    with pytest.raises(ConfigError, match=r"goes on there, not in .*other"):
        resumed(folder, {"output_dir": str(tmp_path / "other")})
    monkeypatch.chdir(tmp_path)
    assert resumed(folder, {"output_dir": "run"})["output_dir"] == "run"
    (tmp_path / "job.yaml").write_text("num_train_epochs: 9\n")
    assert main(["train", "--resume", str(folder), "--config", "job.yaml"]) == 2
    assert "--config job.yaml: not with --resume" in capsys.readouterr().err


def test_the_same_command_without_a_folder_finds_its_unfinished_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = job(data, tmp_path).model_copy(update={"output_dir": None})
    assert default_folder(asked) == Path("runs/train-tiny")
    killed_run(monkeypatch, asked, 5)
    assert default_folder(asked) == Path("runs/train-tiny")
    status = tmp_path / "runs" / "train-tiny" / "run.json"
    stored = json.loads(status.read_text())
    status.write_text(json.dumps({**stored, "state": "running", "process_started": 1.0}))
    assert default_folder(asked) == Path("runs/train-tiny"), "it died"
    assert default_folder(asked.model_copy(update={"seed": 1})) == Path("runs/train-tiny-2")


def test_early_stopping_is_remembered(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"early_stopping_patience": 1, "num_train_epochs": 9, "learning_rate": 1e-9}
    whole = run(job(data, tmp_path / "a", head_learning_rate=1e-9, **values))
    asked = job(data, tmp_path / "b", head_learning_rate=1e-9, **values)
    killed_run(monkeypatch, asked, 7)
    assert run(asked).steps == whole.steps == 10
    assert same(tmp_path / "a", tmp_path / "b")


def test_never_saves_never(data: Path, tmp_path: Path) -> None:
    report = run(job(data, tmp_path / "run", save_every="never", num_train_epochs=1))
    assert not (report.output_dir / "checkpoints").exists()


def test_saving_changes_no_number(data: Path, calm: Path, tmp_path: Path) -> None:
    report = run(job(data, tmp_path / "run", save_every="never"))
    assert losses(report.output_dir) == losses(calm)
    weights = load_file(report.output_dir / "model" / "model.safetensors")
    for name, tensor in load_file(calm / "model" / "model.safetensors").items():
        assert torch.equal(tensor, weights[name]), name


def test_a_disk_that_is_full_costs_a_warning_and_no_run(
    data: Path, calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Disk, "free_bytes", lambda self, folder: 1000)
    said: list[str] = []
    report = run(job(data, tmp_path / "run"), said.append)
    assert losses(report.output_dir) == losses(calm)
    assert any(line.startswith("Warning: no checkpoint of step 2 (") for line in said)


@pytest.mark.parametrize("text", ["", "0", "-5min", "10 parsecs", "x", "1.5steps", "0s"])
def test_intervals_that_are_none(data: Path, tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"--save-every.*is not an interval"):
        job(data, tmp_path, save_every=text)


def test_two_processes_cannot_write_one_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertfit.jobs import run_status
    from bertfit.jobs.run_status import RunLock

    monkeypatch.setattr(run_status, "LOCK_PATIENCE_SECONDS", 0.05)
    lock = RunLock(tmp_path / "run")
    with pytest.raises(ConfigError, match="being written by another process"):
        run(job(data, tmp_path / "run"))
    lock.release()
    assert not (tmp_path / "run" / "job.yaml").exists()
