"""The runs of this machine: which there are, how far they are, how to stop one.

Every run is entered in a folder of small files, name -> run folder. Whether it lives is asked of
the operating system each time; nothing has to be cleaned up after a crash.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from bertfit.errors import ConfigError
from bertfit.jobs.kernel_kills import verdict
from bertfit.jobs.run_status import (
    LOG_FILE,
    STATUS_FILE,
    STOP_FILE,
    RunStatus,
    is_alive,
    read_status,
)
from bertfit.language import N_, _

# A run on another machine that has not been heard of for so long has probably died.
SILENCE_SECONDS = 300.0
STOP_SECONDS = 15.0

State = Literal[
    "starting", "running", "finished", "stopped", "failed", "killed", "silent", "unreadable"
]

# What a user reads of a state.
STATE_NAMES: dict[State, str] = {
    "starting": N_("starting"),
    "running": N_("running"),
    "finished": N_("finished"),
    "stopped": N_("stopped"),
    "failed": N_("failed"),
    "killed": N_("killed"),
    "silent": N_("not heard of"),
    "unreadable": N_("unreadable"),
}

_CAUSES = {
    "memory": N_(
        "The kernel killed it because memory ended (out-of-memory killer). Give it a smaller "
        "--micro-batch-tokens, close other programs, or take a machine with more memory."
    ),
    "memory-probably": N_(
        "Probably the kernel killed it because memory ended: processes of this machine were "
        "killed for that after its last sign of life. Close other programs, or take a machine "
        "with more memory."
    ),
    "restart": N_("The machine was started anew since."),
    "unknown": N_("It was killed from outside; nothing says that memory had ended."),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as it is now.

    Attributes:
        id: its name here.
        folder: the run folder.
        state: `killed` is a process that went without a word; `silent` one of another machine
            that is not heard of any more; `unreadable` one whose `run.json` is damaged, so that
            the fields below say nothing.
        step: steps made.
        num_steps: steps in all; 0 while that is not known.
        score: best dev score so far.
        seconds_left: None where nothing can be said.
        started: seconds since 1970.
        host: its machine.
        pid: its process.
        message: why it ended.
    """

    id: str
    folder: Path
    state: State
    step: int
    num_steps: int
    score: float | None
    seconds_left: float | None
    started: float
    host: str
    pid: int
    message: str

    @property
    def is_live(self) -> bool:
        """Whether it is at work."""
        return self.state in ("starting", "running")


def registry_folder() -> Path:
    """Return the folder in which runs are entered."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    else:
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "bertfit" / "runs"


def register(folder: Path) -> str:
    """Enter a run and return its id: the name of its folder, with a number where that is taken.

    A registry that cannot be written costs only the short name.
    """
    folder = folder.resolve()
    stem = folder.name or "run"
    for number in range(1, 10_000):
        name = stem if number == 1 else f"{stem}-{number}"
        entry = registry_folder() / f"{name}.json"
        known = _entry(entry)
        if known == folder:
            return name
        if known is not None and os.path.isdir(known):
            continue
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            new = entry.with_name(f".{entry.name}.{os.getpid()}")
            new.write_text(json.dumps({"folder": str(folder)}), encoding="utf-8")
            new.replace(entry)
        except OSError:
            break
        return name
    return str(folder)


def _entry(path: Path) -> Path | None:
    """Return the folder that is entered; None where the entry cannot be read."""
    try:
        return Path(json.loads(path.read_text(encoding="utf-8"))["folder"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def list_runs() -> list[Run]:
    """Return all runs that are still on the disk, the newest first; others are forgotten."""
    runs = []
    for path in sorted(registry_folder().glob("*.json")):
        folder = _entry(path)
        run = look(folder, path.stem) if folder is not None else None
        if run is not None:
            runs.append(run)
        elif folder is None or not os.path.exists(folder):  # of any name: a Path may raise
            with contextlib.suppress(OSError):
                path.unlink()
    return sorted(runs, key=lambda run: -run.started)


def find_run(name: str) -> Run:
    """Return a run by its id, the beginning of its id, or its folder.

    Raises:
        ConfigError: there is none, or several begin so.
    """
    folder = _entry(registry_folder() / f"{name}.json") if "/" not in name else None
    if folder is None and os.path.isdir(name):
        folder = Path(name)
    if folder is not None:
        run = look(folder, name)
        if run is not None:
            return run
    runs = list_runs()
    fits = [run for run in runs if name and run.id.startswith(name)]
    if len(fits) == 1:
        return fits[0]
    raise ConfigError(
        _("There is no run '{name}' here. Runs: {known}. See `bertfit runs`.").format(
            name=name, known=", ".join(run.id for run in fits or runs[:10]) or "-"
        )
    )


def look(folder: Path, name: str) -> Run | None:
    """Return how a run is doing now; None where the folder is not one of a run."""
    status = read_status(folder)
    if status is None:
        return _unreadable(folder, name) if os.path.lexists(folder / STATUS_FILE) else None
    state, message = _truth(status)
    left = None
    if state == "running" and status.num_steps and status.step_seconds:
        left = max(0.0, (status.num_steps - status.step) * status.step_seconds)
    return Run(
        id=name,
        folder=folder,
        state=state,
        step=status.step,
        num_steps=status.num_steps,
        score=status.score,
        seconds_left=left,
        started=status.started,
        host=status.host,
        pid=status.pid,
        message=message,
    )


def _unreadable(folder: Path, name: str) -> Run:
    return Run(
        id=name,
        folder=folder,
        state="unreadable",
        step=0,
        num_steps=0,
        score=None,
        seconds_left=None,
        started=0.0,
        host="",
        pid=0,
        message=_(
            "{path} is damaged, so nothing is known of this run. Look into its log and model "
            "beside that file; a folder that is no longer needed can be removed."
        ).format(path=folder / STATUS_FILE),
    )


def _truth(status: RunStatus) -> tuple[State, str]:
    if status.state not in ("starting", "running"):
        return status.state, status.message
    if status.host != socket.gethostname():
        silence = time.time() - status.updated
        if silence < SILENCE_SECONDS:
            return status.state, ""
        return "silent", _("Not heard of for {minutes:.0f} min, on {host}.").format(
            minutes=silence / 60, host=status.host
        )
    if is_alive(status):
        return status.state, ""
    return "killed", _(_CAUSES[verdict(status.pid, status.kills)])


def refuse_at_work(folder: Path) -> None:
    """Refuse a folder that another process of this machine works in.

    A run of another machine is left to the lock: one that was taken back must not stand in the way
    of the same command on the next.

    Raises:
        ConfigError: one does; with what can be done about it.
    """
    status = read_status(folder)
    # Its own parent: in a virtual environment of Windows a launcher stands between.
    own = (os.getpid(), os.getppid())
    if status is None or status.state not in ("starting", "running") or status.pid in own:
        return
    if not is_alive(status):
        return
    raise ConfigError(
        _(
            "Run '{name}' is at work in {folder} already (process {pid}, step {step} of "
            "{all}). See it: bertfit attach {name}. Stop it: bertfit stop {name}. To train beside "
            "it, name another folder with --output-dir."
        ).format(
            name=register(folder),
            folder=folder,
            pid=status.pid,
            step=status.step,
            all=status.num_steps or "?",
        )
    )


def stop_run(run: Run, patience_seconds: float = STOP_SECONDS) -> Run:
    """Ask a run to save itself and end; wait for it a while.

    Returns:
        The run as it is then; still live where it was slow.

    Raises:
        ConfigError: it is not at work.
    """
    if run.state == "unreadable":
        raise ConfigError(run.message)
    if not run.is_live:
        raise ConfigError(
            _("Run '{name}' is not at work: it is {state}.").format(
                name=run.id, state=_(STATE_NAMES[run.state])
            )
        )
    status = read_status(run.folder)
    assert status is not None, "look has read it"
    # Both: a run on another machine, or on Windows, sees only the file.
    (run.folder / STOP_FILE).touch()
    if status.host == socket.gethostname() and is_alive(status) and sys.platform != "win32":
        with contextlib.suppress(psutil.Error):  # gone by itself meanwhile
            psutil.Process(status.pid).send_signal(signal.SIGTERM)
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        now = look(run.folder, run.id)
        if now is None or not now.is_live:
            break
        time.sleep(0.1)
    return look(run.folder, run.id) or run


def follow_log(run: Run, *, follow: bool) -> Iterator[str]:
    """Yield what a run has said, line by line; with `follow` until it ends."""
    path = run.folder / LOG_FILE
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        pending = ""
        while True:
            # The state before the reading: what is said last is read after it was said.
            now = look(run.folder, run.id) if follow else None
            while chunk := file.read(1 << 16):
                pending += chunk
                *lines, pending = pending.split("\n")
                yield from lines
            if now is None or not now.is_live:
                break
            time.sleep(0.3)
        if pending:
            yield pending
