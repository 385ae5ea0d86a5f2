"""What a job reads its texts from: a file, a folder, standard input; and how far it has come."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from bertfit.data.formats import ProblemLog, ReadOptions, read, sniff
from bertfit.data.formats.intake import Intake
from bertfit.data.formats.options import refuse_unknown
from bertfit.data.formats.source import (
    CHUNK_BYTES,
    HEAD_BYTES,
    MAX_LINE_BYTES,
    refuse_special,
    text_file,
)
from bertfit.data.formats.unused import unused_by_format
from bertfit.errors import DataError
from bertfit.language import _
from bertfit.types import Example, Problem

STDIN = "-"
# Larger files are counted by a sample: their lines are alike, and it is only for the time left.
_COUNTED_BYTES = 64 << 20


class TextInput:
    """The texts of one argument of the command line.

    Args:
        name: a file of any format, a folder of them, `hub:owner/name`, or `-`.
        options: how to read.
        log: told what is found wrong.
        whole_files: every file is one text.

    Raises:
        DataError: there is no such input, format or scheme, or its content is of another or none.
    """

    def __init__(
        self, name: str, options: ReadOptions, log: ProblemLog, *, whole_files: bool = False
    ) -> None:
        refuse_unknown(options)
        self.name = name
        self._options = options
        self._log = log
        self._whole_files = whole_files
        self._files = self._find_files()
        self._sizes = [path.stat().st_size for path in self._files]
        self._places = {str(path): place for place, path in enumerate(self._files)}
        self._counted = ("", 0.0)  # a file, and about how many lines it has

    def _find_files(self) -> list[Path]:
        """Return the files that are read one by one; none where `read` takes the name as it is."""
        place = Path(self.name)
        if self.name == STDIN or self.name.startswith("hub:"):
            return []
        if not os.path.exists(place):
            raise DataError(_("{path}: there is no such file or folder.").format(path=place))
        refuse_special(place)
        if place.is_file():
            if not self._whole_files:
                sniff(place, self._options)
            return [place]
        if not self._whole_files:
            try:
                sniff(place, self._options)
            except DataError:
                pass
            else:
                return []
        files = _files_below(place)
        if not files:
            raise DataError(_("{path}: holds no files.").format(path=place))
        return files

    def identity(self) -> str:
        """Return what tells this input from another, or from itself after a change."""
        files = self._files or _files_below(Path(self.name))
        if not files:  # standard input, or of the hub
            return self.name
        parts = [f"{path.resolve()}:{path.stat().st_mtime_ns}" for path in files]
        sizes = sum(path.stat().st_size for path in files)
        if len(parts) > 1:
            import hashlib

            digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
            return f"{Path(self.name).resolve()}:{len(parts)}:{sizes}:{digest}"
        return f"{parts[0]}:{sizes}"

    def examples(self) -> Iterator[Example]:
        """Yield the texts; faulty records are told to the log and left out.

        Raises:
            DataError: a file that cannot be read at all, unless it is one of many: those are told
                to the log.
        """
        if self.name == STDIN:
            yield from self._from_stdin(sys.stdin.buffer)
            return
        if not self._files:
            yield from read(self.name, self._options, self._log)
            return
        for path in self._files:
            try:
                yield from self._one_file(path)
            except DataError as error:
                if len(self._files) == 1 or self._options.on_error == "refuse":
                    raise
                self._report(str(path), 0, "unreadable-file", str(error))

    def fraction(self, example: Example) -> float | None:
        """Return the share of the input that is read when this example is; None if unknown."""
        total = sum(self._sizes)
        path = example.source.path if example.source else ""
        place = self._places.get(path)
        if example.source is None or place is None or not total:
            return None
        if self._whole_files:
            return (place + 1) / len(self._files)
        if self._counted[0] != path:
            self._counted = (path, _count_lines(self._files[place]))
        inside, num_lines = 0.0, self._counted[1]
        if num_lines > 0:
            inside = min(1.0, example.source.line / num_lines)
        elif len(self._files) == 1:
            return None
        return (sum(self._sizes[:place]) + inside * self._sizes[place]) / total

    def _one_file(self, path: Path) -> Iterator[Example]:
        if not self._whole_files:
            yield from read(path, self._options, self._log)
            return
        intake = Intake(path, path.name, self._options, self._log)
        content = b"".join(text_file(path).chunks())
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            message = _("not UTF-8 at byte {byte}. Save the file as UTF-8.").format(
                byte=error.start + 1
            )
            intake.drop([intake.problem(0, "bad-utf8", message)])
            return
        example = intake.admit(text=text, entities=None, line=0, faults=[])
        if example is not None:
            yield replace(example, id=path.name)

    def _from_stdin(self, stream: BinaryIO) -> Iterator[Example]:
        """Read text lines as they come; anything else is laid down first, to be looked at."""
        head = stream.read(HEAD_BYTES)
        with tempfile.TemporaryDirectory(prefix="bertfit-") as folder:
            spool = Path(folder) / "stdin"
            spool.write_bytes(head)
            if not head.strip():
                raise DataError(_("standard input is empty: there is nothing to read."))
            packed = head[:2] == b"\x1f\x8b"
            name = self._options.format
            if name is None and not packed:
                name = sniff(spool, self._options)
            if name == "text" and not packed and not self._whole_files:
                yield from self._lines(head, stream)
                return
            with spool.open("ab") as file:
                shutil.copyfileobj(stream, file, CHUNK_BYTES)
            yield from self._one_file(spool)

    def _lines(self, head: bytes, stream: BinaryIO) -> Iterator[Example]:
        intake = Intake(Path("stdin"), "stdin", self._options, self._log)
        unused = unused_by_format(self._options, "text", "stdin")
        if unused is not None:
            self._log.add(unused)
        number = 0
        for raw in _byte_lines(head.removeprefix(b"\xef\xbb\xbf"), stream):
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                message = _("longer than {size} bytes. Break the line into records.").format(
                    size=MAX_LINE_BYTES
                )
                intake.drop([intake.problem(number, "line-too-long", message)])
                continue
            try:
                text = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                message = _(
                    "not UTF-8 at byte {byte} of the line (0x{value:02x}). Save the file as UTF-8; "
                    "for Chinese from Windows: iconv -f GB18030 -t UTF-8."
                ).format(byte=error.start + 1, value=raw[error.start])
                intake.drop([intake.problem(number, "bad-utf8", message)])
                continue
            if text.strip():
                example = intake.admit(text=text, entities=None, line=number, faults=[])
                if example is not None:
                    yield example

    def _report(self, path: str, line: int, kind: str, message: str) -> None:
        self._log.records_dropped += 1
        self._log.add(Problem(path=path, line=line, kind=kind, message=message))


def _files_below(folder: Path) -> list[Path]:
    """Return the files in a folder and those below it, without hidden ones; none of a file."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _byte_lines(head: bytes, stream: BinaryIO) -> Iterator[bytes]:
    lines = head.split(b"\n")
    yield from (line + b"\n" for line in lines[:-1])
    rest = lines[-1] + stream.readline(MAX_LINE_BYTES + 2)
    while rest:
        yield rest
        if len(rest) > MAX_LINE_BYTES:  # the remainder of an absurd line belongs to it
            while rest and not rest.endswith(b"\n"):
                rest = stream.readline(CHUNK_BYTES)
        rest = stream.readline(MAX_LINE_BYTES + 2)


def _count_lines(path: Path) -> float:
    """Return about how many lines (or rows) a file has; -1 where that is not to be told."""
    with path.open("rb") as file:
        chunk = file.read(CHUNK_BYTES)
        if chunk[:2] == b"\x1f\x8b":
            return -1.0
        if chunk[:4] == b"PAR1":
            import pyarrow
            import pyarrow.parquet

            try:
                return float(pyarrow.parquet.read_metadata(path).num_rows)
            except (OSError, pyarrow.ArrowException):
                return -1.0
        lines = size = 0
        while chunk and size < _COUNTED_BYTES:
            lines += chunk.count(b"\n")
            size += len(chunk)
            chunk = file.read(CHUNK_BYTES)
    total = path.stat().st_size
    return max(1.0, lines * total / size) if size else -1.0
