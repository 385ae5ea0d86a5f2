"""A file as lines of text: gzip, byte order marks, bad bytes and absurd sizes end here.

Lines end at a line feed only: U+2028, form feeds and their like belong to the text. A line that
cannot be used is reported and handed on as None, so that its reader drops the whole record.
"""

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from bertfit.data.formats.problems import ProblemLog
from bertfit.errors import DataError
from bertfit.language import _
from bertfit.types import Problem

CHUNK_BYTES = 1 << 20
HEAD_BYTES = 1 << 18
# A line, or a JSON value, of this size needs some 600 MB as Python objects at worst.
MAX_LINE_BYTES = 16 << 20
# Text shrinks 3 to 20 times, tag columns up to 100; deflate reaches 1030 on a bomb.
MAX_EXPANSION = 250
MIN_SUSPECT_BYTES = 64 << 20

_BOM = b"\xef\xbb\xbf"
# Longest first: the mark of UTF-16 begins that of UTF-32.
_FOREIGN_BOMS = (
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_PACKERS = (
    (re.compile(rb"BZh[1-9]1AY&SY"), "bzip2", "bunzip2"),
    (re.compile(rb"\xfd7zXZ\x00"), "xz", "unxz"),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "zstd", "unzstd"),
)
Line = tuple[int, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """A file that holds text, possibly compressed.

    Attributes:
        path: where it is.
        is_gzip: whether it is compressed.
        newline: what ends its lines.
        start: its first `HEAD_BYTES`, where they were read already; of a shorter file all of it,
            which is then not read again.
    """

    path: Path
    is_gzip: bool = False
    newline: bytes = b"\n"
    start: bytes = field(default=b"", repr=False)

    @property
    def stem(self) -> str:
        """The name without its suffixes `.gz` and one more."""
        name = self.path.name.removesuffix(".gz")
        return name.rpartition(".")[0] or name

    def chunks(self, most_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """Yield the bytes after decompression and without a byte order mark.

        Args:
            most_bytes: of a chunk.

        Raises:
            DataError: a damaged archive, or one that expands beyond reason.
        """
        if 0 < len(self.start) < HEAD_BYTES:
            yield self.start
            return
        first = True
        for chunk in self._raw_chunks(most_bytes):
            if first:
                chunk = chunk.removeprefix(_BOM)
                first = False
            yield chunk

    def _raw_chunks(self, most_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        with open_file(self.path) as file:
            if not self.is_gzip:
                while chunk := file.read(most_bytes):
                    yield chunk
                return
            size = 0
            try:
                with gzip.open(file, "rb") as unpacked:
                    while chunk := unpacked.read(most_bytes):
                        size += len(chunk)
                        if size > MIN_SUSPECT_BYTES and size > MAX_EXPANSION * file.tell():
                            raise DataError(
                                _(
                                    "{path} expands more than {ratio} times. That is no text; "
                                    "unpack it yourself if you trust it."
                                ).format(path=self.path, ratio=MAX_EXPANSION)
                            )
                        yield chunk
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(
                    _(
                        "{path} is a damaged gzip file after {size} bytes of content ({reason}). "
                        "Fetch or pack it again."
                    ).format(path=self.path, size=size, reason=error)
                ) from error

    def head(self, size: int = HEAD_BYTES) -> bytes:
        """Return the first bytes of the content, `HEAD_BYTES` at most."""
        if self.start:
            return self.start[:size]
        parts, length = [], 0
        for chunk in self.chunks(HEAD_BYTES):
            parts.append(chunk)
            length += len(chunk)
            if length >= size:
                break
        return b"".join(parts)[:size]

    def lines(
        self, log: ProblemLog, limit_bytes: int | None = None, *, keep_returns: bool = False
    ) -> Iterator[Line]:
        """Yield (line number from 1, text without its line end), None for what is unusable.

        Args:
            log: Told of lines that are not UTF-8, hold NUL bytes or are too long.
            limit_bytes: Stop after about as many bytes, at the end of a line.
            keep_returns: Leave the carriage return that stands before a line feed.
        """
        returns = "" if keep_returns else "\r"
        number = 0
        read = 0
        pending = b""
        skipping = False  # inside a line that was reported as too long
        for chunk in self.chunks():
            cut = chunk.rfind(self.newline)
            if cut < 0:
                if not skipping:
                    pending += chunk
                    if len(pending) > MAX_LINE_BYTES:
                        self._report_long(number + 1, log)
                        yield number + 1, None
                        pending, skipping = b"", True
                continue
            block = pending + chunk[:cut]
            if skipping:
                end = chunk.find(self.newline)
                number, skipping = number + 1, False
                block = chunk[end + 1 : cut] if end < cut else b""
                if end == cut:
                    pending = chunk[cut + 1 :]
                    continue
            pending = chunk[cut + 1 :]
            yield from self._decode(block, number, log, returns)
            number += block.count(self.newline) + 1
            read += len(block)
            if limit_bytes is not None and read >= limit_bytes:
                return
        if pending and not skipping:
            yield from self._decode(pending, number, log, returns)

    def _decode(self, block: bytes, number: int, log: ProblemLog, returns: str) -> Iterator[Line]:
        """Split a block of whole lines; the fast way where all of it is good."""
        if b"\0" not in block:
            try:
                lines = block.decode("utf-8").split(self.newline.decode())
            except UnicodeDecodeError:
                pass
            else:
                if returns and b"\r" in block:
                    lines = [line.removesuffix(returns) for line in lines]
                return enumerate(lines, number + 1)
        raw_lines = enumerate(block.split(self.newline), number + 1)
        return ((at, self._decode_line(raw, at, log, returns)) for at, raw in raw_lines)

    def _decode_line(self, raw: bytes, number: int, log: ProblemLog, returns: str) -> str | None:
        if b"\0" in raw:
            self._report(
                number,
                "nul-byte",
                _("a NUL byte at byte {byte} of the line. Remove it.").format(
                    byte=raw.index(b"\0") + 1
                ),
                log,
            )
            return None
        try:
            return raw.decode("utf-8").removesuffix(returns)
        except UnicodeDecodeError as error:
            self._report(
                number,
                "bad-utf8",
                _(
                    "not UTF-8 at byte {byte} of the line (0x{value:02x}). Save the file as UTF-8; "
                    "for Chinese from Windows: iconv -f GB18030 -t UTF-8."
                ).format(byte=error.start + 1, value=raw[error.start]),
                log,
            )
            return None

    def _report_long(self, number: int, log: ProblemLog) -> None:
        self._report(
            number,
            "line-too-long",
            _("longer than {size} bytes. Break the line into records.").format(size=MAX_LINE_BYTES),
            log,
        )

    def _report(self, number: int, kind: str, message: str, log: ProblemLog) -> None:
        log.add(Problem(path=str(self.path), line=number, kind=kind, message=message))


def refuse_special(path: Path) -> None:
    """Refuse what exists and is neither a file nor a folder: reading it may never end.

    Raises:
        DataError: it is a pipe, a device or a socket.
    """
    # Of `os`, whose answer is no for names that the system does not take; a Path raises.
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise DataError(
            _(
                "{path} is no file but a pipe or a device, and data are read more than once. Save "
                "them to a file first."
            ).format(path=path)
        )


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes within the block.

    Raises:
        DataError: it is missing, a folder, a device, may not be read, or fails while it is read.
    """
    refuse_special(path)
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise DataError(
            _("{path} cannot be read: {reason}.").format(path=path, reason=error.strerror or error)
        ) from error


def text_file(path: Path) -> TextFile:
    """Look at the first bytes of a file: is it gzip, and how do its lines end?

    Raises:
        DataError: the file cannot be read, is empty, is packed with something else, or is not text
            in UTF-8.
    """
    with open_file(path) as file:
        head = file.read(HEAD_BYTES + len(_BOM))
    is_gzip = head[:2] == b"\x1f\x8b"
    if is_gzip:
        head = TextFile(path=path, is_gzip=True).head()
    else:
        head = head.removeprefix(_BOM)[:HEAD_BYTES]
    if not head.strip():
        raise DataError(
            _("{path} is empty: there is nothing to read. Is it the right file?").format(path=path)
        )
    for mark, encoding in _FOREIGN_BOMS:
        if head.startswith(mark):
            raise DataError(
                _("{path} is {encoding}. Save it as UTF-8 (iconv -f {encoding} -t UTF-8).").format(
                    path=path, encoding=encoding
                )
            )
    for magic, packer, unpacker in _PACKERS:
        if magic.match(head):
            raise DataError(
                _("{path} is packed with {packer}. Unpack it first ({unpacker}).").format(
                    path=path, packer=packer, unpacker=unpacker
                )
            )
    newline = b"\r" if b"\r" in head and b"\n" not in head else b"\n"
    return TextFile(path=path, is_gzip=is_gzip, newline=newline, start=head)
