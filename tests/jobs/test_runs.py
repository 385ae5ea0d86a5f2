"""Runs in the background: who is at work, who is dead and why, and one writer to a folder."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from bertfit.cli import main
from bertfit.config import JobConfig, job_config
from bertfit.errors import ConfigError, Interrupted, ModelError
from bertfit.jobs import detach, run_status
from bertfit.jobs.detach import start_detached
from bertfit.jobs.kernel_kills import KillCounts, kill_counts, verdict
from bertfit.jobs.resume import resumed
from bertfit.jobs.run_folder import RunFolder, default_folder
from bertfit.jobs.run_status import (
    RunLock,
    RunRecord,
    is_alive,
    read_status,
    status_of,
    write_status,
)
from bertfit.jobs.runs import (
    find_run,
    follow_log,
    list_runs,
    look,
    register,
    registry_folder,
    stop_run,
)
from bertfit.language import use_language

# A run that works until it is told to stop, and then says that it was stopped.
WORKER = """
import signal, sys, time
from pathlib import Path
from bertfit.errors import Interrupted
from bertfit.jobs.run_status import RunRecord
told = []
signal.signal(signal.SIGTERM, lambda *a: told.append(1))
with RunRecord(Path(sys.argv[1])) as record:
    record.progress(3, 10, 0.5, 0.25)
    record._write()
    print("working", flush=True)
    while not told and not record.stop_is_asked():
        time.sleep(0.02)
    print("told", flush=True)
    raise Interrupted("stopped at step 3")
"""


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def worker(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    folder = tmp_path / "work"
    folder.mkdir()
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(folder)], stdout=log, stderr=log, text=True
        )
    register(folder)
    deadline = time.monotonic() + 60
    while "working" not in (folder / "log.txt").read_text():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    yield process
    process.kill()
    process.wait()


def test_a_run_at_work_is_seen_with_its_progress(
    worker: "subprocess.Popen[str]", capsys: pytest.CaptureFixture[str]
) -> None:
    (run,) = list_runs()
    assert (run.id, run.state, run.step, run.num_steps, run.pid) == (
        "work",
        "running",
        3,
        10,
        worker.pid,
    )
    assert run.score == 0.25 and run.seconds_left == pytest.approx(3.5)
    assert main(["runs", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["state"] == "running" and document["score"] == 0.25


def test_a_second_writer_is_refused_and_told_who_writes(
    worker: "subprocess.Popen[str]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_status, "LOCK_PATIENCE_SECONDS", 0.1)
    with pytest.raises(ConfigError, match=rf"another process \({worker.pid} "):
        RunRecord(tmp_path / "work")
    status = read_status(tmp_path / "work")
    assert status is not None and status.pid == worker.pid, "the refused one wrote nothing"


def unfinished(folder: Path, asked: JobConfig) -> None:
    """Make the folder of a worker one of a run that has begun."""
    RunFolder.write_job(folder, asked)
    (folder / "steps.jsonl").write_text('{"step": 3}\n')


@pytest.mark.parametrize("flags", [[], ["--detach"], ["--overwrite"], ["--detach", "--overwrite"]])
@pytest.mark.parametrize("named", [True, False], ids=["named", "by-default"])
def test_a_command_whose_run_is_at_work_is_refused_with_what_to_do(
    worker: "subprocess.Popen[str]",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    named: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "work"
    if not named:
        folder = tmp_path / "runs" / "t-tiny"
        folder.parent.mkdir()
        (tmp_path / "work").rename(folder)
        register(folder)
    (tmp_path / "t.jsonl").write_text('{"text": "a", "entities": []}\n')
    command = ["train", "--model", "tiny", "--train-file", "t.jsonl", "--seed", "5"]
    unfinished(folder, job_config({"model": "tiny", "train_file": "t.jsonl", "seed": 5}))
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    if named:
        command += ["--output-dir", str(folder)]
    assert main([*command, *flags]) == 2
    said = capsys.readouterr().err
    name = folder.name
    assert f"Run '{name}' is at work" in said and f"process {worker.pid}," in said
    assert f"bertfit attach {name}" in said and f"bertfit stop {name}" in said
    assert "--output-dir" in said and "step 3 of 10" in said
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before
    assert not (tmp_path / "runs" / "t-tiny-2").exists()


def test_another_job_takes_the_next_folder_while_a_run_is_at_work(
    worker: "subprocess.Popen[str]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "work").rename(tmp_path / "runs" / "t-tiny")
    asked = job_config({"model": "tiny", "train_file": "t.jsonl", "seed": 5})
    unfinished(tmp_path / "runs" / "t-tiny", asked)
    assert default_folder(asked.model_copy(update={"seed": 6})) == Path("runs/t-tiny-2")


def test_a_dead_owner_is_noticed_and_does_not_stand_in_the_way(
    worker: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    (run,) = list_runs()
    assert run.state == "killed" and run.seconds_left is None and "killed" in run.message
    with RunRecord(tmp_path / "work"):
        (run,) = list_runs()
        assert run.state == "running"
    (run,) = list_runs()
    assert run.state == "finished"


def test_stop_ends_a_run_that_can_be_resumed(
    worker: "subprocess.Popen[str]", capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stop", "work"]) == 0
    shown = capsys.readouterr().out
    assert "stopped, step 3 of 10" in shown and "stopped at step 3" in shown
    with pytest.raises(ConfigError, match="not at work: it is stopped"):
        stop_run(find_run("work"))
    use_language("zh")
    try:
        with pytest.raises(ConfigError, match="状态为已停止。"):
            stop_run(find_run("work"))
    finally:
        use_language(None)


def test_a_run_hears_the_file_where_no_signal_reaches_it(
    worker: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    (tmp_path / "work" / "stop").touch()
    worker.wait(20)
    assert find_run("work").state == "stopped"


def test_logs_follow_until_the_run_ends(worker: "subprocess.Popen[str]") -> None:
    run = find_run("work")
    assert list(follow_log(run, follow=False)) == ["working"]
    lines = follow_log(run, follow=True)
    assert next(lines) == "working"
    worker.send_signal(signal.SIGTERM)
    assert next(lines) == "told"
    assert "stopped at step 3" in list(lines)[-1]


def test_the_log_of_a_run_before_is_not_shown_for_one_of_a_terminal(
    worker: "subprocess.Popen[str]", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", "work"]) == 0
    assert "working" in capsys.readouterr().out
    worker.send_signal(signal.SIGTERM)
    worker.wait(20)
    with RunRecord(tmp_path / "work"):
        assert main(["logs", "work"]) == 0
    said = capsys.readouterr().out
    assert "working" not in said and "runs in a terminal" in said


def test_attach_shows_the_run_to_its_end(
    worker: "subprocess.Popen[str]", capsys: pytest.CaptureFixture[str]
) -> None:
    worker.send_signal(signal.SIGTERM)
    assert main(["attach", "work"]) == 1
    assert "work: stopped, step 3 of 10." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "state", "message"),
    [
        (None, "finished", ""),
        (Interrupted("later"), "stopped", "later"),
        (KeyboardInterrupt(), "stopped", "KeyboardInterrupt"),
        (ModelError("no weights"), "failed", "no weights"),
        (ZeroDivisionError("x\ny"), "failed", "ZeroDivisionError: x"),
    ],
)
def test_the_end_of_a_run_is_kept(
    tmp_path: Path, error: BaseException | None, state: str, message: str
) -> None:
    try:
        with RunRecord(tmp_path):
            if error is not None:
                raise error
    except BaseException as caught:  # noqa: BLE001
        assert caught is error
    run = look(tmp_path, "x")
    assert run is not None and (run.state, run.message) == (state, message)


def test_a_process_of_the_same_number_is_not_taken_for_the_run(tmp_path: Path) -> None:
    status = status_of(psutil.Process(), "running")
    assert is_alive(status)
    assert not is_alive(replace(status, process_started=status.process_started - 60))


def test_a_silent_run_of_another_machine(tmp_path: Path) -> None:
    status = replace(status_of(psutil.Process(), "running"), host="elsewhere")
    write_status(tmp_path, status)
    run = look(tmp_path, "x")
    assert run is not None and run.state == "running"
    write_status(tmp_path, replace(status, updated=status.updated - 3600))
    run = look(tmp_path, "x")
    assert run is not None and run.state == "silent" and "60 min, on elsewhere" in run.message


GOOD = asdict(status_of(psutil.Process(), "running"))
ELSEWHERE = {**GOOD, "host": "elsewhere"}


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", '{"state": 1}', "\x00", "[" * 100_000),
        *(json.dumps({**GOOD, "pid": pid}) for pid in ("abc", -5, 0, 1.5, None, 10**30)),
        *(json.dumps({**GOOD, "state": state}) for state in ("zzz", [], None)),
        *(json.dumps({**GOOD, "process_started": start}) for start in (None, "x", True)),
        *(json.dumps({**GOOD, "step_seconds": s, "num_steps": 9}) for s in ("x", 1e308)),
        json.dumps({**GOOD, "started": "x"}),
        json.dumps({**GOOD, "score": "hi"}),
        json.dumps({**GOOD, "score": float("nan")}),
        json.dumps({**GOOD, "step": "q"}),
        json.dumps({**GOOD, "kills": {"boot": 1}}),
        json.dumps({**GOOD, "kills": []}),
        json.dumps({**GOOD, "state": "failed", "message": 5}),
        json.dumps({**ELSEWHERE, "updated": None}),
    ],
)
def test_a_damaged_status_is_told_and_ends_no_command(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_status(_made(tmp_path / "good"), status_of(psutil.Process(), "finished"))
    (_made(tmp_path / "bad") / "run.json").write_text(content)
    register(tmp_path / "good")
    register(tmp_path / "bad")
    assert {run.id: run.state for run in list_runs()} == {"good": "finished", "bad": "unreadable"}
    assert main(["runs"]) == 0
    assert "run.json is damaged" in capsys.readouterr().out
    assert (main(["stop", "bad"]), main(["logs", "bad"]), main(["attach", "bad"])) == (2, 0, 1)
    printed = capsys.readouterr()
    assert "run.json is damaged" in printed.err and "bad: unreadable" in printed.out


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
@pytest.mark.parametrize(
    "name", ["run.json", "run.json.new", "job.yaml", "run.lock", "steps.jsonl"]
)
def test_a_pipe_in_a_run_folder_is_not_read(tmp_path: Path, name: str) -> None:
    folder = _made(tmp_path / "run")
    write_status(folder, status_of(psutil.Process(), "stopped"))
    (folder / "job.yaml").write_text("model: tiny\n")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    register(folder)
    assert len(list_runs()) == 1
    asked = job_config({"model": "tiny", "train_file": "a.jsonl", "output_dir": folder})
    for ask in (asked, asked.model_copy(update={"overwrite": True})):
        with pytest.raises(ConfigError, match=f"holds {name}, which is neither a file nor a"):
            RunFolder.check(folder, ask)
    if name in ("run.json", "job.yaml"):
        with pytest.raises(ConfigError, match="holds no run"):
            resumed(folder, {})


def test_a_run_is_one_line_where_it_is_piped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _made(tmp_path / ("long" * 30) / ("name" * 20))
    write_status(folder, status_of(psutil.Process(), "finished"))
    register(folder)
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[1].split()[0] == folder.name and str(folder) in lines[1]


@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"folder": 5}', '{"folder": "a\\u0000b"}', "[]", "", None]
)
def test_a_damaged_entry_hides_no_other_run(tmp_path: Path, content: str | None) -> None:
    write_status(_made(tmp_path / "good"), status_of(psutil.Process(), "finished"))
    register(tmp_path / "good")
    entry = registry_folder() / "bad.json"
    if content is None:
        entry.mkdir()
    else:
        entry.write_text(content)
    assert [run.id for run in list_runs()] == ["good"]
    with pytest.raises(ConfigError, match=r"no run 'bad' here. Runs: good"):
        find_run("bad")


def test_a_folder_whose_name_no_system_allows_is_forgotten(tmp_path: Path) -> None:
    write_status(_made(tmp_path / "[good]"), status_of(psutil.Process(), "finished"))
    register(tmp_path / "[good]")
    (registry_folder() / "bad.json").write_text(json.dumps({"folder": "a" * 5000}))
    assert [run.id for run in list_runs()] == ["[good]"]
    assert not (registry_folder() / "bad.json").exists()


@pytest.mark.parametrize("command", ["stop", "logs", "attach"])
@pytest.mark.parametrize("name", ["a" * 300, "", "[*", ".."])
def test_a_name_of_no_run_is_one_line(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, name]) == 2
    assert f"error: There is no run '{name}' here" in capsys.readouterr().err


def test_equal_folder_names_get_different_ids_and_gone_folders_are_forgotten(
    tmp_path: Path,
) -> None:
    for parent in ("a", "b"):
        write_status(_made(tmp_path / parent / "run"), status_of(psutil.Process(), "finished"))
    assert [register(tmp_path / parent / "run") for parent in ("a", "b", "a")] == [
        "run",
        "run-2",
        "run",
    ]
    assert {run.id for run in list_runs()} == {"run", "run-2"}
    assert find_run(str(tmp_path / "b" / "run")).folder == tmp_path / "b" / "run"
    shutil.rmtree(tmp_path / "a")
    assert [run.id for run in list_runs()] == ["run-2"]
    assert find_run("ru").id == "run-2"
    with pytest.raises(ConfigError, match=r"no run 'walk' here. Runs: run-2"):
        find_run("walk")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_a_command_that_ends_at_once_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detach, "WATCH_SECONDS", 8.0)  # a slow machine needs longer to fail
    with pytest.raises(ConfigError, match=r"ended at once: error: .*no-such-flag"):
        start_detached(["--no-such-flag"], tmp_path / "run")


def test_a_detached_command_has_a_session_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detach, "WATCH_SECONDS", 0.0)
    name = start_detached(["data", "--help"], tmp_path / "run")
    assert name == "run"
    status = read_status(tmp_path / "run")
    assert status is not None and status.state == "starting"
    with contextlib.suppress(ProcessLookupError):  # done already
        assert os.getsid(status.pid) == status.pid != os.getsid(0)
    deadline = time.monotonic() + 60
    while is_alive(status) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "convert" in (tmp_path / "run" / "log.txt").read_text()


# ---- killed for memory -----------------------------------------------------------------------


def machine(root: Path, *, group: int = 0, all_kills: int = 0, boot: str = "b1") -> Path:
    """Write the files of /proc and /sys that are read, for process 77."""
    files = {
        "proc/sys/kernel/random/boot_id": f"{boot}\n",
        "proc/77/cgroup": "0::/user.slice/job\n",
        "proc/vmstat": f"pgfault 5\noom_kill {all_kills}\n",
        "sys/fs/cgroup/user.slice/job/memory.events": f"low 0\noom 9\noom_kill {group}\n",
    }
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def silent() -> list[str]:
    return []


def test_counts_are_read_from_the_group_of_the_process(tmp_path: Path) -> None:
    counts = kill_counts(77, machine(tmp_path, group=2, all_kills=5))
    assert (counts.boot, counts.group, counts.machine) == ("b1", 2, 5)
    assert counts.events.endswith("user.slice/job/memory.events")
    assert kill_counts(1, tmp_path / "nowhere") == KillCounts()


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    machine(tmp_path)
    (tmp_path / "proc/77/cgroup").write_text("5:cpu:/x\n4:memory:/docker/abc\n")
    path = tmp_path / "sys/fs/cgroup/memory/memory.oom_control"
    path.parent.mkdir(parents=True)
    path.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert kill_counts(77, tmp_path).group == 4


@pytest.mark.parametrize(
    "line",
    [
        "[1.0] Out of memory: Killed process 77 (python) total-vm:1kB, anon-rss:2kB",
        "Memory cgroup out of memory: Killed process 77 (python3) total-vm:1kB",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=77,uid=1000",
        "oom_reaper: reaped process 77 (python), now anon-rss:0kB",
    ],
)
def test_the_kernel_log_names_the_killed(tmp_path: Path, line: str) -> None:
    root = machine(tmp_path)
    last = kill_counts(77, root)
    assert verdict(77, last, root=root, read_logs=lambda: ["x", line]) == "memory"
    assert verdict(7, last, root=root, read_logs=lambda: ["x", line]) == "unknown"


def test_counts_tell_where_the_log_may_not_be_read(tmp_path: Path) -> None:
    root = machine(tmp_path)
    last = kill_counts(77, root)
    assert verdict(77, last, root=root, read_logs=silent) == "unknown"
    machine(tmp_path, all_kills=1)
    assert verdict(77, last, root=root, read_logs=silent) == "memory-probably"
    machine(tmp_path, group=1, all_kills=1)
    assert verdict(77, last, root=root, read_logs=silent) == "memory"


def test_a_restart_is_not_taken_for_a_kill(tmp_path: Path) -> None:
    root = machine(tmp_path)
    last = kill_counts(77, root)
    machine(tmp_path, group=9, all_kills=9, boot="b2")
    assert verdict(77, last, root=root, read_logs=silent) == "restart"


def test_a_lock_is_free_again_when_released(tmp_path: Path) -> None:
    lock = RunLock(tmp_path / "new")
    lock.release()
    RunLock(tmp_path / "new").release()
