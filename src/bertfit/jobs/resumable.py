"""An output that can be gone on with after any kill, without a missing or a doubled row.

```
out.jsonl.part        what is written so far; more than one such file for some formats
out.jsonl.part.json   the journal: records read and written, and how long every part is
out.jsonl             appears when all is done; the two others are gone then
```

Parts are only ever appended to. The journal is replaced after the parts are on the disk, so
whatever a part holds beyond the length in the journal was written by work that is done again, and
is cut off. Knows nothing of formats.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from bertfit.errors import BertfitError, ConfigError, DataError
from bertfit.language import _

JOURNAL_VERSION = 1
Finish = Callable[[Sequence[Path], Sequence[Path]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an output is: what its journal holds.

    Attributes:
        records_read: records of the input that are dealt with.
        records_written: of these, how many are in the output.
        lengths: bytes of every part.
        state: what the maker of the rows wants to find again.
        complete: all records are in the parts; only finishing is left.
    """

    records_read: int = 0
    records_written: int = 0
    lengths: tuple[int, ...]
    state: Mapping[str, int]
    complete: bool = False


class ResumableOutput:
    """Parts, their journal and the lock on both.

    Args:
        targets: the files to be made; the first gives the journal its name.
        job: what the output depends on; another job does not go on with it.
        overwrite: replace a target, and drop parts of another job. Parts of the same job are gone
            on with all the same.

    Raises:
        ConfigError: a target exists, or a part of another job.
        DataError: the folder cannot be written, or somebody else is writing there.
    """

    def __init__(self, targets: Sequence[Path], job: Mapping[str, str], overwrite: bool) -> None:
        self.targets = list(targets)
        self.parts = [path.with_name(path.name + ".part") for path in targets]
        self._journal = self.parts[0].with_name(self.parts[0].name + ".json")
        self._job = dict(job)
        self._files: list[BinaryIO] = []
        self.finished = False
        try:
            self.targets[0].parent.mkdir(parents=True, exist_ok=True)
            self.progress = self._begin(overwrite)
        except OSError as error:
            self._close()
            raise self._unwritable(error) from None
        except BertfitError:
            self._close()
            raise

    def _begin(self, overwrite: bool) -> Progress:
        found = self._read_journal(overwrite)
        if found is not None and found.complete:
            # Killed while the names were given: a part that is gone has its name.
            self.finished = not self.parts[0].exists() and self.targets[0].exists()
            if self.finished:
                self._remove_parts()
            return found
        for path in self.targets:
            if path.exists() and not overwrite:
                raise ConfigError(
                    _("{path} exists. Give another name, or --overwrite to replace it.").format(
                        path=path
                    )
                )
        for path in self.parts:
            self._files.append(path.open("r+b" if path.exists() else "w+b"))
        self._lock()
        if found is None:
            found = Progress(lengths=(0,) * len(self.parts), state={})
        for file, length in zip(self._files, found.lengths, strict=True):
            if file.seek(0, os.SEEK_END) < length:
                raise DataError(
                    _(
                        "{path} is shorter than its journal says, so it cannot be gone on with. "
                        "Begin anew with --overwrite."
                    ).format(path=file.name)
                )
            file.truncate(length)
            file.seek(length)
        return found

    def _read_journal(self, overwrite: bool) -> Progress | None:
        if not self._journal.exists():
            return None
        try:
            stored = json.loads(self._journal.read_text(encoding="utf-8"))
            job = stored.pop("job")
            version = stored.pop("version")
            found = Progress(**{**stored, "lengths": tuple(stored["lengths"])})
        except (ValueError, KeyError, TypeError):
            if overwrite:
                return None
            raise ConfigError(
                _("{path}: is no journal of bertfit. Begin anew with --overwrite.").format(
                    path=self._journal
                )
            ) from None
        if version == JOURNAL_VERSION and job == self._job:
            return found
        if overwrite:
            return None
        changed = [name for name in self._job if job.get(name) != self._job[name]]
        raise ConfigError(
            _(
                "{path} was begun by another job ({what} changed since). Say the same command to "
                "go on with it, give another name, or begin anew with --overwrite."
            ).format(path=self.parts[0], what=", ".join(changed) or "version")
        )

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows: nobody is kept out there
            return
        try:
            fcntl.flock(self._files[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(
                _("{path} is being written by another process.").format(path=self.parts[0])
            ) from None

    def append(self, pieces: Sequence[bytes], progress: Progress) -> None:
        """Append a piece to every part and then say in the journal how far that is.

        Args:
            pieces: bytes, one for every part.
            progress: the records after it; its `lengths` are not read.
        """
        try:
            for file, piece in zip(self._files, pieces, strict=True):
                file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            lengths = tuple(file.tell() for file in self._files)
            self._write_journal(replace(progress, lengths=lengths))
        except OSError as error:
            raise self._unwritable(error) from None

    def finish(self, make: Finish) -> None:
        """Make the targets out of the parts.

        The last `append` must have said `complete`.

        Args:
            make: gets parts and targets; may be called again after a kill, so it must not mind
                a part that is gone. It makes the first target last.
        """
        assert self.progress.complete
        try:
            self._close()
            make(self.parts, self.targets)
            self._remove_parts()
        except OSError as error:
            raise self._unwritable(error) from None
        self.finished = True

    def _write_journal(self, progress: Progress) -> None:
        document = {"version": JOURNAL_VERSION, "job": self._job, **asdict(progress)}
        new = self._journal.with_name(self._journal.name + ".new")
        with new.open("w", encoding="utf-8") as file:
            json.dump(document, file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._journal)
        self.progress = progress

    def _remove_parts(self) -> None:
        for path in (*self.parts, self._journal):
            path.unlink(missing_ok=True)

    def _close(self) -> None:
        for file in self._files:
            file.close()
        self._files = []

    def _unwritable(self, error: OSError) -> DataError:
        return DataError(
            _("{path} cannot be written: {reason}.").format(
                path=self.targets[0], reason=error.strerror or error
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()
