"""Where records of every format pass on their way out: checked, numbered, counted."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bertfit.data.formats.options import OnError, ReadOptions
from bertfit.data.formats.problems import ProblemLog, Severity
from bertfit.language import _
from bertfit.types import Entity, Example, Problem, Source


class Intake:
    """Numbers the records of one file and decides, with their faults, whether they go on."""

    def __init__(self, path: Path, stem: str, options: ReadOptions, log: ProblemLog) -> None:
        """Stand ready for one file."""
        self.path = str(path)
        self.options = options
        self.log = log
        self._on_error: OnError = options.on_error
        self._stem = stem
        self._number = 0

    def problem(
        self,
        line: int,
        kind: str,
        message: str,
        severity: Severity = "error",
        *,
        count: int = 1,
        path: Path | None = None,
    ) -> Problem:
        """Make a problem of this file."""
        return Problem(
            path=str(path) if path else self.path,
            line=line,
            kind=kind,
            message=message,
            severity=severity,
            count=count,
        )

    def drop(self, faults: Iterable[Problem] = ()) -> None:
        """Count a record that cannot be made at all."""
        self._number += 1
        self.log.records_dropped += 1
        for fault in faults:
            self.log.add(fault)

    def admit(
        self,
        *,
        text: str,
        entities: tuple[Entity, ...] | None,
        line: int,
        faults: list[Problem],
        words: tuple[tuple[int, int], ...] | None = None,
        extra: Mapping[str, Any] | None = None,
        path: Path | None = None,
    ) -> Example | None:
        """Return the record as an example, or None if a fault keeps it back.

        Args:
            text: The text, untouched.
            entities: Its spans as stored, or None where it was not annotated.
            line: Where the record begins.
            faults: What its reader found; the faults that every format shares are added.
            words: Character spans of its words.
            extra: What else the record carried.
            path: The file of the record, if it is one of several.
        """
        self._number += 1
        if not text.isascii() and not _is_text(text):
            faults.append(
                self.problem(
                    line,
                    "lone-surrogate",
                    _("half a UTF-16 pair (U+D800 to U+DFFF) in the text. Export the text again."),
                    path=path,
                )
            )
        length = len(text)
        for entity in entities or ():
            label = entity.label
            if not 0 <= entity.start < entity.end <= length or not label or label.isspace():
                faults.append(self._span_fault(entity, length, line, path))
        if faults and self._refuses(faults):
            self.log.records_dropped += 1
            return None
        self.log.records_read += 1
        return Example(
            id=f"{self._stem}-{self._number}",
            text=text,
            entities=entities,
            words=words,
            source=Source(path=str(path) if path else self.path, line=line),
            extra=extra or {},
        )

    def _refuses(self, faults: Iterable[Problem]) -> bool:
        """Write faults down; say whether they keep their record back."""
        refused = False
        for fault in faults:
            self.log.add(fault)
            refused = refused or fault.severity == "error"
        return refused and self._on_error != "keep"

    def _span_fault(self, entity: Entity, length: int, line: int, path: Path | None) -> Problem:
        place = {"start": entity.start, "end": entity.end, "label": entity.label}
        if entity.start == entity.end:
            kind = "empty-span"
            message = _("the {label} span {start}-{end} is empty.").format(**place)
        elif entity.start > entity.end:
            kind = "reversed-span"
            message = _("the {label} span {start}-{end} ends before it begins.").format(**place)
        elif not entity.label.strip():
            kind = "no-label"
            message = _("the span {start}-{end} has no label.").format(**place)
        else:
            kind = "span-beyond-text"
            message = _(
                "the {label} span {start}-{end} lies outside the text of {length} characters."
            ).format(**place, length=length)
        return self.problem(line, kind, message, path=path)


def _is_text(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
