"""brat's standoff annotations: a text file, and an `.ann` file of the same name next to it.

Only text-bound annotations (`T1  Person 0 5  Obama`) are read, event triggers among them. A
discontinuous one (`0 5;9 12`) is split: each of its pieces becomes a span of its own, unless
only a line break lies between them, where brat itself cuts a span in two.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from bertfit.data.formats.intake import Intake
from bertfit.data.formats.offsets import (
    CONVENTIONS,
    Convention,
    StoredSpan,
    Verdicts,
    choose,
    count_matches,
    cutter,
    proves,
    same_surface,
)
from bertfit.data.formats.problems import ProblemLog
from bertfit.data.formats.source import MAX_LINE_BYTES, TextFile
from bertfit.data.formats.span_records import describe
from bertfit.errors import DataError
from bertfit.language import _
from bertfit.types import Entity, Example, Problem

_PLACE = re.compile(r"[0-9]{1,15} [0-9]{1,15}(;[0-9]{1,15} [0-9]{1,15})*")
_SURVEYED_PAIRS = 100
_SHOWN_PIECES = 8
_Stored = tuple[int, str, list[tuple[int, int]], str | None]  # line, label, pieces, surface


def find_documents(path: Path, named: bool = False) -> list[Path]:
    """Return the `.txt` files with an `.ann` file beside them, and those without in one folder.

    Args:
        path: A folder (searched to its depths) or one of the two files.
        named: The user says that it is brat: without any `.ann`, its texts are not annotated yet.
            By content alone they could as well be columns.
    """
    if path.is_file():
        text = path.with_suffix(".txt")
        pair = path.suffix in (".txt", ".ann") and text.with_suffix(".ann").is_file()
        return [text] if pair else []
    annotations = sorted(path.rglob("*.ann"), key=_natural)
    if named and not annotations:
        return sorted(path.glob("*.txt"), key=_natural)
    folders = dict.fromkeys(each.parent for each in annotations)
    return sorted(
        {
            *(each.with_suffix(".txt") for each in annotations),
            *(each for folder in folders for each in folder.glob("*.txt")),
        },
        key=_natural,
    )


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort 2.txt before 10.txt."""
    parts = re.split(r"([0-9]+)", str(path))
    return [(int(each), "") if each.isdecimal() else (-1, each) for each in parts]


def read_brat(documents: list[Path], intake: Intake) -> Iterator[Example]:
    """Yield one example for every document.

    Args:
        documents: The text files, from `find_documents`.
        intake: Where the examples go out.
    """
    verdicts = Verdicts()
    for document in documents[:_SURVEYED_PAIRS]:
        _prove(document, verdicts, intake)
    num_others = num_converted = 0
    for document in documents:
        faults: list[Problem] = []
        annotation = document.with_suffix(".ann")
        try:
            text = _document_text(document)
            stored: list[_Stored] | None = None
            others: list[str] = []
            if annotation.is_file():
                stored, others = _annotations(annotation, faults, intake, intake.log)
        except DataError as error:
            problem = intake.problem(0, "unreadable", str(error), path=document)
            intake.drop([problem])
            continue
        num_others += len(others)
        entities: tuple[Entity, ...] | None = None
        if stored is not None:
            convention = _convention(text, stored, verdicts, intake)
            if convention != CONVENTIONS[0] and intake.options.offsets is None:
                num_converted += len(stored)
            entities = tuple(_entities(text, stored, convention, annotation, faults, intake))
        example = intake.admit(
            text=text,
            entities=entities,
            line=1,
            faults=faults,
            extra={"document": document.stem} | ({"brat": others} if others else {}),
            path=document,
        )
        if example is not None:
            yield example
    if num_others:
        message = _(
            "{count} lines of events, relations, attributes and notes stand in `extra`; only "
            "text spans are entities."
        ).format(count=num_others)
        intake.log.add(intake.problem(0, "brat-not-spans", message, "note", count=num_others))
    if num_converted:
        message = _("{count} spans count in UTF-16 units or bytes; converted to code points.")
        intake.log.add(
            intake.problem(
                0,
                "offsets-converted",
                message.format(count=num_converted),
                "note",
                count=num_converted,
            )
        )


def _document_text(path: Path) -> str:
    """Read a text file whole and untouched, line ends and byte order mark included."""
    if not path.is_file():
        raise DataError(
            _("{path} is missing, but its annotations are here. Put the text next to them.").format(
                path=path
            )
        )
    parts, size = [], 0
    for chunk in TextFile(path=path)._raw_chunks():
        size += len(chunk)
        if size > MAX_LINE_BYTES:
            raise DataError(
                _("{path} is longer than {size} bytes. Cut it into documents.").format(
                    path=path, size=MAX_LINE_BYTES
                )
            )
        parts.append(chunk)
    raw = b"".join(parts)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            _("{path}:{line}: not UTF-8 (0x{value:02x}). Save the file as UTF-8.").format(
                path=path, line=line, value=raw[error.start]
            )
        ) from error


def _annotations(
    path: Path, faults: list[Problem], intake: Intake, log: ProblemLog
) -> tuple[list[_Stored], list[str]]:
    stored: list[_Stored] = []
    others = []
    for number, line in TextFile(path=path).lines(log):
        if line is None:
            faults.append(
                intake.problem(
                    number, "bad-annotation", _("a line that cannot be read."), path=path
                )
            )
        elif line.startswith("T"):
            fields = line.split("\t")
            label, _blank, place = fields[1].partition(" ") if len(fields) > 1 else ("", "", "")
            if not label or _PLACE.fullmatch(place) is None:
                message = _("{line} is no text span: write id TAB label start end TAB text.")
                faults.append(
                    intake.problem(
                        number, "bad-annotation", message.format(line=describe(line)), path=path
                    )
                )
                continue
            pieces = [(int(a), int(b)) for a, b in (p.split(" ") for p in place.split(";"))]
            stored.append((number, label, pieces, fields[2] if len(fields) > 2 else None))
        elif line.strip():
            others.append(line)
    return stored, others


def _whole(stored: list[_Stored]) -> list[StoredSpan]:
    """The spans of one piece that have a surface: they say what the offsets count."""
    return [
        StoredSpan(*pieces[0], label, surface)
        for _line, label, pieces, surface in stored
        if len(pieces) == 1 and surface is not None
    ]


def _prove(document: Path, verdicts: Verdicts, intake: Intake) -> None:
    annotation = document.with_suffix(".ann")
    if not annotation.is_file() or not document.is_file():
        return
    try:
        text = _document_text(document)
        spans = _whole(_annotations(annotation, [], intake, ProblemLog())[0])
    except DataError:
        return
    if spans and not text.isascii():
        convention = choose(text, spans, verdicts.order(intake.options.offsets))
        if proves(text, spans, convention):
            verdicts.prove(convention)


def _convention(text: str, stored: list[_Stored], verdicts: Verdicts, intake: Intake) -> Convention:
    order = verdicts.order(intake.options.offsets)
    spans = _whole(stored)
    if spans and count_matches(text, spans, order[0]) < len(spans):
        return choose(text, spans, order)
    return order[0]


def _entities(
    text: str,
    stored: list[_Stored],
    convention: Convention,
    path: Path,
    faults: list[Problem],
    intake: Intake,
) -> Iterator[Entity]:
    cut = cutter(text, convention)
    for line, label, pieces, surface in stored:
        places = [cut(start, end) for start, end in pieces]
        found_places = _rejoined(text, places, pieces)
        if len(found_places) > 1:
            message = _("a discontinuous {label}: its {count} pieces are read as spans.").format(
                label=label, count=len(found_places)
            )
            faults.append(intake.problem(line, "discontinuous-span", message, "repair", path=path))
        if None not in places and surface is not None:
            most = 2 * len(text) + len(surface)
            whole = _joined(text, [place for place in places if place is not None], most)
            # Spaces at the edges of a surface are lost in some exports: compare without them.
            span = StoredSpan(*pieces[0], label, surface.strip())
            if not same_surface(whole.strip(), span):
                message = _("the {label} span {place} holds {found}, but {stored} is stored.")
                faults.append(
                    intake.problem(
                        line,
                        "surface-mismatch",
                        message.format(
                            label=label,
                            place=_place(pieces),
                            found=describe(whole),
                            stored=describe(surface),
                        ),
                        path=path,
                    )
                )
        for start, end in found_places:
            yield Entity(start=start, end=end, label=label)


def _place(pieces: list[tuple[int, int]]) -> str:
    shown = ";".join(f"{start} {end}" for start, end in pieces[:_SHOWN_PIECES])
    return shown if len(pieces) <= _SHOWN_PIECES else f"{shown};..."


def _joined(text: str, places: list[tuple[int, int]], most: int) -> str:
    """Join pieces as their surface does, up to `most` characters: pieces may repeat the text."""
    parts: list[str] = []
    length = 0
    for start, end in places:
        if length > most:
            break
        parts.append(text[start:end])
        length += end - start
    return " ".join(parts)


def _rejoined(
    text: str, places: list[tuple[int, int] | None], pieces: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Join pieces that only a line break separates; an impossible place stays as stored."""
    joined: list[tuple[int, int]] = []
    for place, piece in zip(places, pieces, strict=True):
        start, end = place or piece
        between = text[joined[-1][1] : start] if joined and joined[-1][1] <= start else "-"
        if "\n" in between and not between.strip():
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
