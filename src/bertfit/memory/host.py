"""What this process may still take of the machine's memory.

A container or a batch system may allow less than the machine has free, and ends whoever takes more.
"""

import ctypes
import sys
from pathlib import Path

import psutil

from bertfit.units import KIB

_M_MMAP_THRESHOLD = -3  # malloc.h

# Control groups write "max" (2) or nearly 2**63 (1) where there is no limit.
_NO_LIMIT = 1 << 60


def available_bytes(root: Path = Path("/")) -> int:
    """Return what is free on the machine, or what the control groups leave, whichever is less.

    Files that the kernel keeps in memory and has not needed of late count as free in both.

    Args:
        root: of the file system.

    Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux.
    """
    free = psutil.virtual_memory().available
    return min([free, *(max(0, left) for left in _left_by_groups(root))])


def map_large_blocks() -> None:
    """Have the C library give each large block back to the system as soon as it is free.

    It would keep those up to 32 MiB in its heap, where small blocks settle in the holes: 0.4 GB
    more for an estimate of DeBERTa-v2-xxlarge. For processes that only estimate: tensors that come
    and go cost a call of the system each from here on.

    Source: M_MMAP_THRESHOLD in mallopt(3), of glibc; elsewhere nothing is done.
    """
    choose = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if choose is not None:
        choose(_M_MMAP_THRESHOLD, 128 * KIB)


def _left_by_groups(root: Path) -> list[int]:
    """Return what every group above this process leaves, those without a limit left out."""
    mounts, left = root / "sys/fs/cgroup", []
    for line in _read(root / "proc/self/cgroup").splitlines():
        __, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = mounts, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = mounts / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = top / path.lstrip("/")
        for group in (own, *own.parents):
            if group == top or top in group.parents:
                left += _left(group, *names)
    return left


def _left(group: Path, limit_name: str, used_name: str, cached_name: str) -> list[int]:
    limit, used = _read(group / limit_name).strip(), _read(group / used_name).strip()
    if not limit.isdigit() or not used.isdigit() or int(limit) > _NO_LIMIT:
        return []
    cached = 0
    for line in _read(group / "memory.stat").splitlines():
        name, __, value = line.partition(" ")
        if name == cached_name:
            cached = int(value)
    return [int(limit) - int(used) + cached]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
