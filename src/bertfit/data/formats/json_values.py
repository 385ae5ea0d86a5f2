"""JSON as a stream of records: one a line, one array, or objects one after another."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from bertfit.data.formats.problems import ProblemLog
from bertfit.data.formats.source import CHUNK_BYTES, MAX_LINE_BYTES, TextFile
from bertfit.language import _
from bertfit.types import Problem

JsonLine = tuple[int, Any, Problem | None]
_SPACE = " \t\r\n"
_BLANK = re.compile(f"[{_SPACE}]*")
_SEPARATORS = re.compile(f"[{_SPACE},]*")


def decode_json(text: str, path: str, line: int) -> tuple[Any, Problem | None]:
    """Decode one JSON value, or say what is wrong with it."""
    try:
        value, end = _DECODER.raw_decode(text)
        if end == len(text):
            return value, None
    except (ValueError, RecursionError):
        pass  # white space before it, or a fault that is told below
    try:
        return _DECODER.decode(text), None
    except (ValueError, RecursionError) as error:
        return None, _fault(error, path, line)


def json_lines(
    file: TextFile, log: ProblemLog, limit_bytes: int | None = None
) -> Iterator[JsonLine]:
    """Yield (line, value, fault) for a file with one JSON value a line; blank lines are nothing.

    A line that could not be read at all is reported by the file and has neither value nor fault.
    """
    path = str(file.path)
    for number, line in file.lines(log, limit_bytes):
        if line is None:
            yield number, None, None
        elif line.strip(_SPACE):
            value, fault = decode_json(line, path, number)
            if value is None and fault is None:
                fault = _null(path, number)
            yield number, value, fault


def json_document(file: TextFile, limit_bytes: int | None = None) -> Iterator[JsonLine]:
    """Yield the elements of a top-level array, or of objects that follow each other.

    Only one element is held at a time, so a file of any size can be read. After a fault nothing
    can be told about the rest of the file: the fault is the last thing yielded.
    """
    try:
        yield from _document(_Buffer(file), str(file.path), limit_bytes)
    except _BadBytesError as error:
        message = _("not UTF-8 (0x{value}). Save the file as UTF-8.").format(
            value=error.value.hex()
        )
        yield (
            error.line,
            None,
            Problem(path=str(file.path), line=error.line, kind="bad-utf8", message=message),
        )


def _document(buffer: "_Buffer", path: str, limit_bytes: int | None) -> Iterator[JsonLine]:
    in_array = buffer.take("[")
    while True:
        if buffer.at_end(_SEPARATORS):
            if in_array:
                yield buffer.line, None, _cut_off(path, buffer.line)
            return
        if in_array and buffer.ahead == "]":
            buffer.take("]")
            in_array = buffer.take("[")
            continue
        line = buffer.line
        value, fault = buffer.value()
        if value is None and fault is None:
            fault = _null(path, line)
        yield line, value, fault
        if fault is not None or (limit_bytes is not None and buffer.consumed > limit_bytes):
            return


class _Buffer:
    """Text that has been read and not yet used, and the line where it begins."""

    def __init__(self, file: TextFile) -> None:
        self._path = str(file.path)
        self._chunks = file.chunks()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0
        self._ended = False
        self.line = 1
        self.consumed = 0

    def _fill(self, size: int) -> bool:
        """Read at least `size` more bytes; False at the end of the file.

        Raises:
            _BadBytesError: bytes that are not UTF-8.
        """
        parts = [self._text[self._at :]]
        self._at = 0
        while size > 0 and not self._ended:
            chunk = next(self._chunks, b"")
            self._ended = not chunk
            size -= len(chunk)
            try:
                parts.append(self._decoder.decode(chunk, final=self._ended))
            except UnicodeDecodeError as error:
                lines = chunk.count(b"\n", 0, error.start) + sum(p.count("\n") for p in parts)
                raise _BadBytesError(self.line + lines, chunk[error.start : error.end]) from error
        self._text = "".join(parts)
        return not self._ended or len(self._text) > len(parts[0])

    def _use(self, end: int) -> None:
        self.line += self._text.count("\n", self._at, end)
        self.consumed += end - self._at
        self._at = end

    def at_end(self, skipped: "re.Pattern[str]" = _BLANK) -> bool:
        """Skip white space, or what else is said; True if nothing follows."""
        while True:
            match = skipped.match(self._text, self._at)
            if match is not None and match.end() > self._at:
                self._use(match.end())
            if self._at < len(self._text):
                return False
            if not self._fill(CHUNK_BYTES):
                return True

    @property
    def ahead(self) -> str:
        """The character that is next; there is one, says `at_end`."""
        return self._text[self._at]

    def take(self, character: str) -> bool:
        """Skip white space and this character, if it is next."""
        if self.at_end() or self._text[self._at] != character:
            return False
        self._use(self._at + 1)
        return True

    def value(self) -> tuple[Any, Problem | None]:
        """Decode the value that is next, reading as much as it needs."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                length = len(self._text) - self._at
                if length > MAX_LINE_BYTES:
                    return None, _too_long(self._path, self.line)
                # Text that is cut inside a value fails near its end, or in a string without end.
                cut = error.pos > len(self._text) - 16 or error.msg.startswith("Unterminated")
                if cut and self._fill(max(length, CHUNK_BYTES)):
                    continue
                line = self.line + self._text.count("\n", self._at, error.pos)
                return None, _fault(error, self._path, line)
            except (ValueError, RecursionError) as error:
                return None, _fault(error, self._path, self.line)
            self._use(end)
            return value, None


class _BadBytesError(Exception):
    """Bytes that are not UTF-8, on a line."""

    def __init__(self, line: int, value: bytes) -> None:
        super().__init__(line, value)
        self.line = line
        self.value = value


def _fault(error: Exception, path: str, line: int) -> Problem:
    if isinstance(error, RecursionError):
        reason = _("nested too deeply")
    elif isinstance(error, json.JSONDecodeError):
        reason = _("{reason} at column {column}").format(reason=error.msg, column=error.colno)
    else:
        reason = str(error)
    return Problem(
        path=path,
        line=line,
        kind="bad-json",
        message=_("not valid JSON: {reason}.").format(reason=reason),
    )


def _null(path: str, line: int) -> Problem:
    message = _("a record is an object with a text, but this is {value}.").format(value="null")
    return Problem(path=path, line=line, kind="not-a-record", message=message)


def _cut_off(path: str, line: int) -> Problem:
    message = _("not valid JSON: the file ends inside its array. Was it cut off?")
    return Problem(path=path, line=line, kind="bad-json", message=message)


def _too_long(path: str, line: int) -> Problem:
    message = _("one JSON value is longer than {size} bytes. Break it into records.").format(
        size=MAX_LINE_BYTES
    )
    return Problem(path=path, line=line, kind="line-too-long", message=message)


def _refuse_constant(name: str) -> float:
    raise ValueError(_("{name} is no JSON number").format(name=name))


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
