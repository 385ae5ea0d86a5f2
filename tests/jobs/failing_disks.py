"""Disks that fail at a chosen operation: refuse it, fill up, lose power."""

import errno
import random
from pathlib import Path
from typing import BinaryIO

from bertfit.jobs.checkpoints import Disk


class PowerCut(BaseException):
    """Nothing after it runs: no clean-up, no handler."""


class QuickDisk(Disk):
    """Does not wait for the disk: a test cannot cut the power anyway."""

    def sync(self, path: Path) -> None:
        assert path.exists()


class CountingDisk(QuickDisk):
    """Counts the operations and fails at one of them.

    Args:
        fail_at: number of the operation, from 0, that fails; None never does.
        error: what is raised there.
        fill: every write from there on fails too, as on a full disk.
    """

    def __init__(
        self, fail_at: int | None = None, error: BaseException | None = None, *, fill: bool = False
    ) -> None:
        self.count = 0
        self.writes = 0
        self._fail_at, self._fill = fail_at, fill
        self._error = error or OSError(errno.EIO, "Input/output error")

    def _operation(self, is_write: bool = False) -> None:
        number, self.count = self.count, self.count + 1
        if is_write:
            write, self.writes = self.writes, self.writes + 1
            if self._fill and self._fail_at is not None and write >= self._fail_at:
                raise OSError(errno.ENOSPC, "No space left on device")
        if not self._fill and number == self._fail_at:
            raise self._error

    def write(self, file: BinaryIO, data: memoryview) -> None:
        self._operation(is_write=True)
        super().write(file, data)

    def sync(self, path: Path) -> None:
        self._operation()
        super().sync(path)

    def rename(self, old: Path, new: Path) -> None:
        self._operation()
        super().rename(old, new)


class ForgetfulDisk(CountingDisk):
    """Loses at the power cut what was not synced: bytes of files, and names in folders.

    Args:
        fail_at: the operation at which the power goes.
        seed: decides how much of what was not synced is lost.
    """

    def __init__(self, fail_at: int, seed: int) -> None:
        super().__init__(fail_at, PowerCut())
        self._rng = random.Random(seed)
        self._unsynced: set[Path] = set()
        self._renamed: tuple[Path, Path] | None = None

    def write(self, file: BinaryIO, data: memoryview) -> None:
        self._unsynced.add(Path(file.name))
        try:
            super().write(file, data)
        except PowerCut:
            self._lose()
            raise

    def sync(self, path: Path) -> None:
        try:
            super().sync(path)
        except PowerCut:
            self._lose()
            raise
        self._unsynced.discard(path)
        if self._renamed and path == self._renamed[1].parent:
            self._renamed = None

    def rename(self, old: Path, new: Path) -> None:
        try:
            super().rename(old, new)
        except PowerCut:
            self._lose()
            raise
        self._renamed = (old, new)

    def _lose(self) -> None:
        for path in self._unsynced:
            size = path.stat().st_size
            with path.open("r+b") as file:
                file.truncate(self._rng.randint(0, size))
        if self._renamed and self._rng.random() < 0.5:
            self._renamed[1].rename(self._renamed[0])
