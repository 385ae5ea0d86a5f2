"""JSON as a stream of records: one a line, one array, or objects one after another.

A name that stands twice in one object is a fault: a decoder keeps the last of its values, and what
the first one said would be gone without a word.
"""

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from bertfit.data.formats.problems import ProblemLog
from bertfit.data.formats.source import CHUNK_BYTES, MAX_LINE_BYTES, TextFile
from bertfit.data.formats.span_records import describe
from bertfit.language import _
from bertfit.types import Problem

JsonLine = tuple[int, Any, Problem | None]
NAME_TWICE = "name-twice"  # the kind of the fault
_SPACE = " \t\r\n"
_BLANK = re.compile(f"[{_SPACE}]*")
_SEPARATORS = re.compile(f"[{_SPACE},]*")


def decode_json(text: str, path: str, line: int) -> tuple[Any, Problem | None]:
    """Decode one JSON value, or say what is wrong with it."""
    try:
        value = _whole_value(text)
        name = _twice(value, text, 0, len(text))
    except (ValueError, RecursionError) as error:
        return None, _fault(error, path, line)
    return (value, None) if name is None else (None, _ambiguous(name, path, line))


def _whole_value(text: str) -> Any:
    try:
        value, end = _DECODER.raw_decode(text)
        if end == len(text):
            return value
    except ValueError:
        pass  # white space before it, or a fault that is told below
    return _DECODER.decode(text)


def _twice(value: Any, text: str, begin: int, end: int) -> str | None:
    """Return a name that stands twice in one object of the text of a value; None where none does.

    Most texts show that at once: they hold as many colons as the value has names.
    """
    num_colons = text.count(":", begin, end)
    if num_colons == (len(value) if isinstance(value, dict) else 0) or num_colons == _names(value):
        return None
    found: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        counts = Counter(name for name, __ in pairs)
        found.extend(name for name, count in counts.items() if count > 1)

    start = _BLANK.match(text, begin).end()  # type: ignore[union-attr]  # it always matches
    json.JSONDecoder(object_pairs_hook=look).raw_decode(text, start)
    return found[0] if found else None


def _names(value: Any) -> int:
    """Count the names in all objects of a value."""
    count, pending = 0, [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            count += len(each)
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)
    return count


def json_lines(file: TextFile, log: ProblemLog) -> Iterator[JsonLine]:
    """Yield (line, value, fault) for a file with one JSON value a line; blank lines are nothing.

    A line that could not be read at all is reported by the file and has neither value nor fault.
    """
    path = str(file.path)
    for number, line in file.lines(log):
        if line is None:
            yield number, None, None
        elif line.strip(_SPACE):
            value, fault = decode_json(line, path, number)
            if value is None and fault is None:
                fault = _null(path, number)
            yield number, value, fault


def json_document(file: TextFile) -> Iterator[JsonLine]:
    """Yield the elements of a top-level array, or of objects that follow each other.

    Only one element is held at a time, so a file of any size can be read. Behind what is no JSON
    nothing can be told about the rest of the file: such a fault is the last thing yielded.
    """
    path = str(file.path)
    buffer = _Buffer(file)
    try:
        in_array = buffer.take("[")
        while ahead := buffer.ahead(_SEPARATORS):
            if ahead == "]" and in_array:
                buffer.take("]")
                in_array = buffer.take("[")
                continue
            line = buffer.line
            value, fault = buffer.value(line)
            if value is None and fault is None:
                fault = _null(path, line)
            yield line, value, fault
            if buffer.is_lost:
                return
        if in_array:
            yield buffer.line, None, _cut_off(path, buffer.line)
    except _BadBytesError as error:
        message = _("not UTF-8 (0x{value}). Save the file as UTF-8.").format(
            value=error.value.hex()
        )
        fault = Problem(path=path, line=error.line, kind="bad-utf8", message=message)
        yield error.line, None, fault


class _Buffer:
    """Text that has been read, and how much of it was used.

    Attributes:
        is_lost: there was a fault, and where it ends is not known.
    """

    def __init__(self, file: TextFile) -> None:
        self._path = str(file.path)
        self._chunks = file.chunks()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0
        self._ended = False
        self._bad: _BadBytesError | None = None  # what comes behind the text
        self._line, self._line_at = 1, 0  # the line of some place before `_at`
        self.is_lost = False

    @property
    def line(self) -> int:
        """The line of what is next."""
        self._line += self._text.count("\n", self._line_at, self._at)
        self._line_at = self._at
        return self._line

    def _fill(self, size: int) -> bool:
        """Read at least `size` more bytes; False at the end of the file.

        Raises:
            _BadBytesError: bytes that are not UTF-8.
        """
        if self._bad is not None:
            raise self._bad
        line = self.line
        parts = [self._text[self._at :]]
        self._at = self._line_at = 0
        while size > 0 and not self._ended:
            chunk = next(self._chunks, b"")
            self._ended = not chunk
            size -= len(chunk)
            try:
                parts.append(self._decoder.decode(chunk, final=self._ended))
            except UnicodeDecodeError as error:
                # What stands before is read first.
                parts.append(error.object[: error.start].decode())
                line += sum(part.count("\n") for part in parts)
                self._bad = _BadBytesError(line, error.object[error.start : error.end])
                break
        self._text = "".join(parts)
        return not self._ended or len(self._text) > len(parts[0])

    def ahead(self, skipped: "re.Pattern[str]" = _BLANK) -> str:
        """Skip white space, or what else is said; return the character that is next, if any."""
        while True:
            match = skipped.match(self._text, self._at)
            assert match is not None, "to skip nothing is a match"
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill(CHUNK_BYTES):
                return ""

    def take(self, character: str) -> bool:
        """Skip white space and this character, if it is next."""
        if self.ahead() != character:
            return False
        self._at += 1
        return True

    def value(self, line: int) -> tuple[Any, Problem | None]:
        """Decode the value that is next and begins on this line, reading as much as it needs."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                name = _twice(value, self._text, self._at, end)
            except json.JSONDecodeError as error:
                length = len(self._text) - self._at
                # Text that is cut inside a value fails near its end, or in a string without end.
                cut = error.pos > len(self._text) - 16 or error.msg.startswith("Unterminated")
                if length <= MAX_LINE_BYTES and cut and self._fill(max(length, CHUNK_BYTES)):
                    continue
                self.is_lost = True
                if length > MAX_LINE_BYTES:
                    return None, _too_long(self._path, line)
                line += self._text.count("\n", self._at, error.pos)
                return None, _fault(error, self._path, line)
            except (ValueError, RecursionError) as error:
                self.is_lost = True
                return None, _fault(error, self._path, line)
            self._at = end
            return (value, None) if name is None else (None, _ambiguous(name, self._path, line))


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


def _ambiguous(name: str, path: str, line: int) -> Problem:
    message = _("{name} stands twice in one object. Leave the one that is meant.").format(
        name=describe(name)
    )
    return Problem(path=path, line=line, kind=NAME_TWICE, message=message)


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
