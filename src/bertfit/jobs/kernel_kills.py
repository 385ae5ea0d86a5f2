"""Was a process killed by the kernel because memory ended? Evidence, gathered afterwards.

A killed process cannot say why. The kernel's log names it, where the log may be read; else the
kernel counts its kills, for the control group and for the machine, and a count that rose after the
last sign of life tells nearly as much.
"""

import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

LOG_TIMEOUT_SECONDS = 3
# mm/oom_kill.c, __oom_kill_process and dump_oom_summary, Linux 4.6 to 6.x.
_KILLED = re.compile(
    r"Killed process (\d+) |oom-kill:.*\bpid=(\d+)\b|oom_reaper: reaped process (\d+) "
)
# The kernel's buffer first, then what journald kept of it on disk.
_LOGS = (("dmesg",), ("journalctl", "-k", "-q", "--no-pager", "-o", "cat", "-n", "5000"))

Verdict = Literal["memory", "memory-probably", "restart", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KillCounts:
    """How many processes the kernel had killed for memory.

    Attributes:
        boot: name of this run of the machine; counts begin anew with every start.
        events: the file in which the control group of the process is counted; empty without one.
        group: kills in that control group.
        machine: kills on the whole machine.
    """

    boot: str = ""
    events: str = ""
    group: int = 0
    machine: int = 0


def kill_counts(pid: int, root: Path = Path("/")) -> KillCounts:
    """Read the counts that hold for a process; zeros on other systems than Linux."""
    events = _events_file(pid, root)
    return KillCounts(
        boot=_read(root / "proc/sys/kernel/random/boot_id").strip(),
        events=str(events or ""),
        group=_field(events, "oom_kill") if events else 0,
        machine=_field(root / "proc/vmstat", "oom_kill"),
    )


def verdict(
    pid: int,
    last: KillCounts,
    *,
    root: Path = Path("/"),
    read_logs: Callable[[], Iterable[str]] | None = None,
) -> Verdict:
    """Say why a process is gone that said nothing.

    Args:
        pid: its number.
        last: the counts at its last sign of life.
        root: of the file system.
        read_logs: gives the lines of the kernel's log; None asks the system.
    """
    if last.boot and last.boot != _read(root / "proc/sys/kernel/random/boot_id").strip():
        return "restart"
    for line in (read_logs or _kernel_log)():
        found = _KILLED.search(line)
        if found and str(pid) in found.groups():
            return "memory"
    if last.events and _field(Path(last.events), "oom_kill") > last.group:
        return "memory"
    if last.boot and _field(root / "proc/vmstat", "oom_kill") > last.machine:
        return "memory-probably"
    return "unknown"


def _events_file(pid: int, root: Path) -> Path | None:
    """Find `memory.events` (cgroup 2) or `memory.oom_control` (cgroup 1) of a process."""
    mounts = root / "sys/fs/cgroup"
    for line in _read(root / f"proc/{pid}/cgroup").splitlines():
        __, controllers, path = line.split(":", 2)
        relative = path.lstrip("/")
        if controllers == "":
            candidates = [mounts / relative / "memory.events"]
        elif "memory" in controllers.split(","):
            candidates = [
                mounts / "memory" / relative / "memory.oom_control",
                mounts / "memory/memory.oom_control",  # a container sees its group as the root
            ]
        else:
            continue
        for candidate in candidates:
            if candidate.is_file():
                return candidate
    return None


def _field(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        if line.startswith(name + " "):
            return int(line.split()[1])
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _kernel_log() -> Iterable[str]:
    for command in _LOGS:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LOG_TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        yield from done.stdout.splitlines()
