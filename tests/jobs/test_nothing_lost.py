"""What a run left is emptied only by a run that may take its place, never on the way there."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bertfit.cli import main
from bertfit.config import JobConfig, job_config
from bertfit.errors import BertfitError, ConfigError
from bertfit.jobs import checkpoints, detach
from bertfit.jobs import train as train_module
from bertfit.jobs.checkpoints import Disk
from bertfit.jobs.corpus import Corpus, read_corpus
from bertfit.jobs.resume import is_unfinished
from bertfit.jobs.run_status import read_status
from bertfit.jobs.train import train
from jobs.corpora import write_corpus
from jobs.failing_disks import QuickDisk

STEPS = 5  # 40 texts in steps of 8


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(Disk, "sync", QuickDisk.sync)


def asked(folder: Path, data: Path, **values: object) -> dict[str, object]:
    return {
        "model": "tiny",
        "train_file": data,
        "output_dir": folder,
        "num_train_epochs": 1,
        "batch_size": 8,
        "device": "cpu",
        "save_every": "2steps",
        **values,
    }


def run(job: JobConfig) -> list[str]:
    said: list[str] = []
    assert train(job, progress=False, say=said.append).steps == STEPS
    return said


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and its data beside it."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setattr(Disk, "sync", QuickDisk.sync)
        data = write_corpus(folder / "train.jsonl", 40, seed=1)
        run(job_config(asked(folder / "run", data)))
    return folder


@pytest.fixture
def job(finished: Path, tmp_path: Path) -> JobConfig:
    """A job whose folder holds its finished run."""
    shutil.copytree(finished / "run", tmp_path / "run")
    return job_config(asked(tmp_path / "run", finished / "train.jsonl"))


def leave_unfinished(folder: Path) -> None:
    """Make a run one that was stopped before its end."""
    status = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**status, "state": "stopped"}))


def left(folder: Path) -> dict[str, bytes]:
    """What a run left: its job, steps, scores, model and checkpoints."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("run.json", "run.lock", "log.txt", "job.yaml.new")
    }


# ---- in the background -----------------------------------------------------------------------


class _Child:
    """Stands for the process in the background; the test plays it afterwards."""

    pid, returncode = os.getpid(), 0

    def poll(self) -> None:
        return None


@pytest.fixture
def detached(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], Callable[[], int]]:
    """Give a command with --detach; returns what does the work of the child."""
    commands: list[list[str]] = []

    def start(command: list[str], log: int) -> _Child:
        commands.append(command)
        return _Child()

    monkeypatch.setattr(detach, "_start", start)
    monkeypatch.setattr(detach, "WATCH_SECONDS", 0.0)

    def give(command: list[str]) -> Callable[[], int]:
        assert main([*command, "--detach"]) == 0
        return lambda: main(commands.pop()[3:])

    return give


def command(job: JobConfig, data: Path, *flags: str) -> list[str]:
    values = asked(Path(str(job.output_dir)), data)
    options = [word for k, v in values.items() for word in (f"--{k.replace('_', '-')}", str(v))]
    return ["train", *options, *flags]


def test_a_finished_run_outlives_a_background_run_that_cannot_take_its_place(
    job: JobConfig,
    tmp_path: Path,
    detached: Callable[[list[str]], Callable[[], int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "bad.json").write_text('{"text": 5')
    before = left(tmp_path / "run")
    assert {name.partition("/")[0] for name in before} >= {"model", "checkpoints", "job.yaml"}
    work = detached(command(job, tmp_path / "bad.json", "--overwrite"))
    assert left(tmp_path / "run") == before, "the parent empties nothing"
    assert work() == 2
    assert left(tmp_path / "run") == before
    status = read_status(tmp_path / "run")
    assert status is not None and status.state == "failed" and "bad.json" in status.message
    # What is there is the finished run still: not gone on with, and replaced only where asked.
    assert not is_unfinished(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"not empty.*--overwrite"):
        run(job)
    assert main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "came to its end" in capsys.readouterr().err
    assert left(tmp_path / "run") == before


def test_a_background_run_takes_the_place_of_a_finished_one_where_asked(
    job: JobConfig, tmp_path: Path, detached: Callable[[list[str]], Callable[[], int]]
) -> None:
    before = left(tmp_path / "run")
    other = write_corpus(tmp_path / "other.jsonl", 40, seed=9)
    assert detached(command(job, other, "--overwrite"))() == 0
    after = left(tmp_path / "run")
    assert after["steps.jsonl"] != before["steps.jsonl"] and b"other.jsonl" in after["job.yaml"]
    assert after["steps.jsonl"].count(b"\n") == STEPS
    status = read_status(tmp_path / "run")
    assert status is not None and status.state == "finished" and not status.replaces
    assert not (tmp_path / "run" / "job.yaml.new").exists()


def test_the_same_job_asked_anew_in_the_background_is_not_gone_on_with(
    job: JobConfig,
    tmp_path: Path,
    detached: Callable[[list[str]], Callable[[], int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert detached(command(job, job.train_file[0], "--overwrite"))() == 0
    assert "Going on" not in capsys.readouterr().err


def test_a_background_run_that_fails_in_a_new_folder_leaves_its_job(
    tmp_path: Path, detached: Callable[[list[str]], Callable[[], int]]
) -> None:
    (tmp_path / "bad.json").write_text('{"text": 5')
    job = job_config(asked(tmp_path / "new" / "run", tmp_path / "bad.json"))
    assert detached(command(job, tmp_path / "bad.json"))() == 2
    assert is_unfinished(tmp_path / "new" / "run"), "so that the same command finds it"
    write_corpus(tmp_path / "bad.json", 40)
    assert detached(command(job, tmp_path / "bad.json"))() == 0


IMPOSSIBLE = {
    "attn_kernel": "flash",
    "activation_checkpointing": 99,
    "allow": "frozen-layers=99",
    "budget": "1MiB",
}
NAMED = {
    "attn_kernel": "--attn-kernel flash",
    "activation_checkpointing": "--activation-checkpointing 99: tiny has 2 layers",
    "allow": "--allow frozen-layers=99: tiny has 2 layers",
    "budget": "--budget 1 MiB",
}


@pytest.mark.parametrize("lever", IMPOSSIBLE)
def test_a_finished_run_outlives_a_lever_that_is_not_to_be_had(
    lever: str, job: JobConfig, tmp_path: Path
) -> None:
    before = left(tmp_path / "run")
    values = asked(tmp_path / "run", job.train_file[0])
    with pytest.raises(BertfitError, match=NAMED[lever]):
        run(job_config({**values, "overwrite": True, lever: IMPOSSIBLE[lever]}))
    assert left(tmp_path / "run") == before
    assert not is_unfinished(tmp_path / "run")


@pytest.mark.parametrize("lever", IMPOSSIBLE)
def test_a_lever_that_is_not_to_be_had_leaves_no_unfinished_run(
    lever: str, job: JobConfig, tmp_path: Path
) -> None:
    values = asked(tmp_path / "new", job.train_file[0])
    with pytest.raises(BertfitError):
        run(job_config({**values, lever: IMPOSSIBLE[lever]}))
    run(job_config(values))


def test_a_run_without_a_plan_leaves_no_plan_of_the_run_before(
    job: JobConfig, tmp_path: Path
) -> None:
    (tmp_path / "run" / "plan.json").write_text("{}")
    run(job_config({**asked(tmp_path / "run", job.train_file[0]), "overwrite": True}))
    assert not (tmp_path / "run" / "plan.json").exists()


# ---- checkpoints that cannot be gone on from -------------------------------------------------


def refused_and_kept(job: JobConfig, message: str) -> None:
    folder = Path(str(job.output_dir))
    leave_unfinished(folder)
    before = left(folder)
    with pytest.raises(ConfigError, match=rf"{message}.*--overwrite.*--output-dir"):
        run(job)
    assert left(folder) == before
    assert is_unfinished(folder)


def test_checkpoints_of_a_newer_format_are_refused_and_kept(job: JobConfig, tmp_path: Path) -> None:
    for path in (tmp_path / "run" / "checkpoints").glob("*/manifest.json"):
        manifest = json.loads(path.read_bytes().partition(b"\n")[0])
        manifest["format_version"] = checkpoints.FORMAT_VERSION + 1
        path.write_bytes(checkpoints._signed(checkpoints._json(manifest)))
    refused_and_kept(job, "written by a newer bertfit.*pip install --upgrade bertfit")
    said = run(job.model_copy(update={"overwrite": True}))
    assert not any("Going on" in line for line in said)


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_disk_that_does_not_read_is_refused_and_costs_no_checkpoint(
    job: JobConfig, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(path: Path, expected: object) -> None:
        raise OSError(code, os.strerror(code), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_check_file", refuse)
        refused_and_kept(job, rf"cannot be read \(.*{os.strerror(code)}")
    assert any("Going on after step 5" in line for line in run(job)), "the disk reads again"


def test_checkpoints_that_are_all_damaged_are_refused_and_kept(
    job: JobConfig, tmp_path: Path
) -> None:
    for path in (tmp_path / "run" / "checkpoints").glob("*/weights.safetensors"):
        os.truncate(path, 100)
    refused_and_kept(job, "none of its checkpoints is whole")
    said = run(job.model_copy(update={"overwrite": True}))
    assert not any("Going on" in line for line in said)


# ---- the same command twice at once ----------------------------------------------------------


@pytest.mark.parametrize("first_ends", ["finished", "stopped"])
def test_the_second_of_two_same_commands_sees_what_the_first_has_left(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_ends: str
) -> None:
    job = job_config(asked(tmp_path / "run", finished / "train.jsonl"))

    def slowly(job: JobConfig, say: Callable[[str], None]) -> Corpus:
        shutil.copytree(finished / "run", tmp_path / "run")  # the first comes to its end here
        if first_ends == "stopped":
            leave_unfinished(tmp_path / "run")
        return read_corpus(job, say)

    monkeypatch.setattr(train_module, "read_corpus", slowly)
    if first_ends == "stopped":
        assert any("Going on after step 5" in line for line in run(job))
        return
    with pytest.raises(ConfigError, match=r"not empty.*--overwrite"):
        run(job)
    assert left(tmp_path / "run") == left(finished / "run")
    status = read_status(tmp_path / "run")
    assert status is not None and status.state == "finished", "the refused one wrote nothing"
