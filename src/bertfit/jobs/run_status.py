"""What a run says about itself while it works, in `run.json`, and the lock on its folder.

No daemon: whoever wants to know reads the file and looks whether the process is still there.
"""

import dataclasses
import json
import os
import socket
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Literal, Self

import psutil
from pydantic import Field, FiniteFloat, TypeAdapter

from bertfit.errors import BertfitError, ConfigError, Interrupted
from bertfit.jobs.kernel_kills import KillCounts, kill_counts
from bertfit.jobs.stopping import Stopped
from bertfit.language import _

STATUS_FILE, LOCK_FILE, LOG_FILE, STOP_FILE = "run.json", "run.lock", "log.txt", "stop"
# What may lie in a run folder before the run has begun.
OWN_FILES = (
    STATUS_FILE,
    f"{STATUS_FILE}.new",
    LOCK_FILE,
    LOG_FILE,
    STOP_FILE,
    "job.yaml.new",
)
HEARTBEAT_SECONDS = 2.0
LOCK_PATIENCE_SECONDS = 2.0
# psutil reads the start of a process to a hundredth of a second.
_SAME_START_SECONDS = 0.5

State = Literal["starting", "running", "finished", "stopped", "failed"]
_Count = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """What `run.json` holds.

    Attributes:
        state: what the run says of itself; it may be dead all the same (`runs.look`).
        pid: of the process that writes the run.
        process_started: when that process began, in seconds since 1970: tells it from a later one
            of the same number.
        host: machine of that process.
        folder: where commands were typed; relative paths of the job begin there.
        started: seconds since 1970.
        updated: likewise, of this file.
        step: steps made.
        num_steps: steps in all; 0 while that is not known.
        step_seconds: of late.
        score: best dev score.
        message: why it ended.
        kills: what the kernel had killed for memory when this was written.
        in_log: its words go to `log.txt`; None from a bertfit that did not write this down.
        replaces: the folder still holds a finished run, whose place this one is about to take.
    """

    state: State
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    process_started: FiniteFloat
    host: str
    folder: str
    started: FiniteFloat
    updated: FiniteFloat
    step: _Count = 0
    num_steps: _Count = 0
    step_seconds: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    score: FiniteFloat | None = None
    message: str = ""
    kills: KillCounts = field(default_factory=KillCounts)
    in_log: bool | None = None
    replaces: bool = False

    @property
    def holds_finished(self) -> bool:
        """Whether what lies in the folder is a run that came to its end."""
        return self.state == "finished" or self.replaces


_STATUS = TypeAdapter(RunStatus)


def status_of(process: psutil.Process, state: State) -> RunStatus:
    """Return the first status of a run that a process is about to write."""
    now = time.time()
    return RunStatus(
        state=state,
        pid=process.pid,
        process_started=process.create_time(),
        host=socket.gethostname(),
        folder=os.getcwd(),
        started=now,
        updated=now,
        kills=kill_counts(process.pid),
    )


def read_status(folder: Path) -> RunStatus | None:
    """Return what a run says about itself; None where it says nothing that can be read."""
    path = folder / STATUS_FILE
    if not os.path.isfile(path):  # to read a pipe would never end
        return None
    try:
        return _STATUS.validate_json(path.read_bytes(), strict=True)
    except (OSError, ValueError):
        return None


def write_status(folder: Path, status: RunStatus) -> None:
    """Replace `run.json`; a disk that refuses does not stop a run."""
    new = folder / f"{STATUS_FILE}.new"
    try:
        new.write_text(
            json.dumps(dataclasses.asdict(status), ensure_ascii=False, indent=1) + "\n",
            encoding="utf-8",
        )
        new.replace(folder / STATUS_FILE)
    except OSError:
        pass


def is_alive(status: RunStatus) -> bool:
    """Say whether the process of a status is still there; of this machine only."""
    try:
        process = psutil.Process(status.pid)
        return (
            abs(process.create_time() - status.process_started) < _SAME_START_SECONDS
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.Error:
        return False


class RunLock:
    """Keeps a second process from writing into a run folder.

    The kernel lets go of the lock when its owner dies, however it dies, so a dead owner never
    stands in the way.

    Raises:
        ConfigError: another process holds it, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = (folder / LOCK_FILE).open("a+", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                _("--output-dir {path}: cannot be written ({reason}).").format(
                    path=folder, reason=error.strerror
                )
            ) from None
        # A little patience: whoever only looked holds the lock for a moment.
        deadline = time.monotonic() + LOCK_PATIENCE_SECONDS
        while not _take_lock(self._file):
            if time.monotonic() > deadline:
                self._file.seek(0)
                owner = self._file.read().strip()
                self._file.close()
                raise ConfigError(
                    _(
                        "--output-dir {path}: is being written by another process ({owner}). Wait "
                        "for it, stop it with `bertfit stop {path}`, or name another folder."
                    ).format(path=folder, owner=owner or "?")
                )
            time.sleep(0.05)
        self._file.truncate(0)
        self._file.write(f"{os.getpid()} {socket.gethostname()}\n")
        self._file.flush()

    def release(self) -> None:
        """Let others in."""
        self._file.close()


def _take_lock(file: IO[str]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class RunRecord:
    """Holds the lock of a run folder and keeps its `run.json` up to date while the block runs.

    Args:
        folder: the run folder.
        lock: on it, where it is held already.

    Raises:
        ConfigError: another process writes this run.
    """

    def __init__(self, folder: Path, lock: RunLock | None = None) -> None:
        self.folder = folder
        self._lock = lock or RunLock(folder)
        (folder / STOP_FILE).unlink(missing_ok=True)
        before = read_status(folder)
        self._status = replace(
            status_of(psutil.Process(), "running"),
            in_log=_speaks_into(folder / LOG_FILE),
            replaces=before is not None and before.holds_finished,
        )
        self._written = 0.0
        self._write()

    def begin(self) -> None:
        """Say that the folder holds this run now, and no other any more."""
        self._status = replace(self._status, replaces=False)
        self._write()

    def progress(self, step: int, num_steps: int, step_seconds: float, score: float | None) -> None:
        """Say how far the run is; written at most every `HEARTBEAT_SECONDS`."""
        self._status = replace(
            self._status, step=step, num_steps=num_steps, step_seconds=step_seconds, score=score
        )
        if time.monotonic() - self._written > HEARTBEAT_SECONDS:
            self._write()

    def stop_is_asked(self) -> bool:
        """Say whether `bertfit stop` left a word in the folder."""
        return (self.folder / STOP_FILE).exists()

    def _write(self) -> None:
        self._written = time.monotonic()
        self._status = replace(
            self._status, updated=time.time(), kills=kill_counts(self._status.pid)
        )
        write_status(self.folder, self._status)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        state: State = "finished"
        if isinstance(error, Interrupted | Stopped | KeyboardInterrupt):
            state = "stopped"
        elif error is not None:
            state = "failed"
        message = ""
        if isinstance(error, BertfitError):
            message = str(error)
        elif kind not in (None, Stopped):
            message = f"{kind.__name__}: {error}".strip(": ").splitlines()[0]
        self._status = replace(self._status, state=state, message=message)
        self._write()
        self._lock.release()


def _speaks_into(log: Path) -> bool:
    """Say whether what this process says goes to a file, as it does in the background."""
    try:
        return os.path.samestat(os.fstat(2), log.stat())
    except OSError:
        return False


def was_announced(folder: Path) -> bool:
    """Say whether this very process was started in the background to write the folder."""
    status = read_status(folder)
    return status is not None and status.state == "starting" and status.pid == os.getpid()
