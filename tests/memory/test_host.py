"""What a process may take of the machine: what is free, less what its control groups forbid."""

import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bertfit.memory.host import available_bytes
from bertfit.units import GIB

HOLES = """
import sys
import numpy as np
import psutil
from bertfit.memory.host import map_large_blocks
if sys.argv[1] == "mapped":
    map_large_blocks()
np.ones(16 << 20, np.uint8)  # from here on the C library keeps what is smaller
begun = psutil.Process().memory_info().rss
both = [(np.ones(1 << 20, np.uint8), np.ones(100_000, np.uint8)) for __ in range(64)]
small = [each for __, each in both]
del both
print((psutil.Process().memory_info().rss - begun) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_large_blocks_leave_no_holes_behind() -> None:
    kept, mapped = (
        int(subprocess.check_output([sys.executable, "-c", HOLES, how]))
        for how in ("kept", "mapped")
    )
    assert mapped < 10 and kept > 50, (mapped, kept)  # MiB


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 64 * GIB

    monkeypatch.setattr(psutil, "virtual_memory", Memory)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_without_control_groups_what_is_free_counts(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) == 64 * GIB


def test_the_tightest_group_above_a_process_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/batch/job\n",
            "sys/fs/cgroup/batch/job/memory.max": "max\n",
            "sys/fs/cgroup/batch/job/memory.current": "5\n",
            "sys/fs/cgroup/batch/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/batch/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/batch/memory.stat": f"anon 7\ninactive_file {GIB}\n",
        },
    )
    assert available_bytes(tmp_path) == 2 * GIB


def test_groups_of_the_first_kind(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            # A container sees its group as the root, though its name is a long one.
            "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/docker/12ab\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
        },
    )
    assert available_bytes(tmp_path) == 0
    write(tmp_path, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"})
    assert available_bytes(tmp_path) == 64 * GIB, "no limit"
