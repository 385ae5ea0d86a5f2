"""A text with its spans as an example: offsets converted to code points, surfaces compared."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertfit.data.formats.intake import Intake
from bertfit.data.formats.offsets import (
    CONVENTIONS,
    Convention,
    StoredSpan,
    Verdicts,
    choose,
    count_matches,
    cutter,
    has_astral,
    proves,
    same_surface,
)
from bertfit.data.formats.options import OffsetUnit
from bertfit.data.formats.span_records import SpanRecord, describe
from bertfit.language import _
from bertfit.types import Entity, Example, Problem

_PROVING_RECORDS = 200
_INCLUSIVE = Convention("code-points", "inclusive")


@dataclass(slots=True)
class SpanFindings:
    """What the records of a file said about their offsets.

    Attributes:
        verdicts: which convention the first of them proved.
        converted: how many spans were converted from each.
    """

    verdicts: Verdicts = field(default_factory=Verdicts)
    converted: Counter[Convention] = field(default_factory=Counter)


def prove(record: SpanRecord, findings: SpanFindings, intake: Intake, number: int) -> None:
    """Let a record say which convention its file uses, if it can.

    Args:
        record: one of the first records of the file.
        findings: told of a proof.
        intake: knows what the user said.
        number: of the record, from 0.
    """
    verdicts = findings.verdicts
    if not record.spans:
        return
    surfaces = [span for span in record.spans if span.surface is not None]
    if surfaces:
        if number < _PROVING_RECORDS or has_astral(record.text):
            convention = choose(record.text, surfaces, verdicts.order(intake.options.offsets))
            if proves(record.text, surfaces, convention):
                verdicts.prove(convention)
    elif has_astral(record.text):
        proved = _proved_without_surface(record)
        if proved is not None:
            verdicts.prove(proved)


def _proved_without_surface(record: SpanRecord) -> Convention | None:
    """Offsets that only one of code points and UTF-16 can mean: beyond the text, or in a pair."""
    fits = [
        all(cutter(record.text, each)(span.start, span.end) for span in record.spans or [])
        for each in CONVENTIONS[:2]
    ]
    if fits[0] == fits[1]:
        return None
    return CONVENTIONS[0] if fits[0] else CONVENTIONS[1]


def span_example(
    record: SpanRecord, line: int, findings: SpanFindings, intake: Intake
) -> Example | None:
    """Make an example of a text with its spans; None where it is refused.

    Args:
        record: the record.
        line: its line, for messages.
        findings: what the file's records said about offsets; told what was converted.
        intake: where the example goes out.
    """
    faults = []
    for kind, shown in record.faults:
        message = _("{span} is no span with a start, an end and a label.").format(span=shown)
        faults.append(intake.problem(line, kind, message))
    entities: tuple[Entity, ...] | None = None
    if record.spans is not None:
        entities = _located(record, line, faults, findings, intake) if record.spans else ()
    extra = record.extra
    words = None
    if "words" in extra:
        words = _stored_words(extra["words"], len(record.text))
        if words is not None:
            extra = {key: value for key, value in extra.items() if key != "words"}
    return intake.admit(
        text=record.text,
        entities=entities,
        words=words,
        line=line,
        faults=faults,
        extra=extra,
    )


def _stored_words(value: Any, length: int) -> tuple[tuple[int, int], ...] | None:
    """Read the word spans that our own writers leave beside the entities."""
    if not isinstance(value, list | tuple):
        return None
    words = []
    position = 0
    for pair in value:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            return None
        start, end = pair
        if not isinstance(start, int) or not isinstance(end, int):
            return None
        if not position <= start <= end <= length:
            return None
        words.append((start, end))
        position = end
    return tuple(words)


def _located(
    record: SpanRecord, line: int, faults: list[Problem], findings: SpanFindings, intake: Intake
) -> tuple[Entity, ...]:
    """Convert the stored offsets into code points, with every surface checked."""
    spans = record.spans or []
    said = intake.options.offsets or _said_unit(record.extra)
    convention = _convention(record, said, line, faults, findings, intake)
    expected = _INCLUSIVE if record.inclusive else CONVENTIONS[0]
    surprising = convention != expected and said is None
    cut = cutter(record.text, convention)
    located = []
    for span in spans:
        place = cut(span.start, span.end)
        if surprising and place != (span.start, span.end):
            findings.converted[convention] += 1
        if place is None:
            place = (span.start, span.end + (convention.ends == "inclusive"))
            if convention.unit != "code-points" and 0 <= place[0] < place[1] <= len(record.text):
                faults.append(_mismatch(span, None, line, intake))
        elif span.surface is not None:
            found = record.text[place[0] : place[1]]
            if not same_surface(found, span):
                faults.append(_mismatch(span, found, line, intake))
        located.append(Entity(start=place[0], end=place[1], label=span.label))
    return tuple(located)


def _convention(
    record: SpanRecord,
    unit: OffsetUnit | None,
    line: int,
    faults: list[Problem],
    findings: SpanFindings,
    intake: Intake,
) -> Convention:
    spans = record.spans or []
    order = findings.verdicts.order(unit)
    if record.inclusive and findings.verdicts.established is None:
        order = sorted(order, key=lambda each: each.ends != "inclusive")
    surfaces = [span for span in spans if span.surface is not None]
    if surfaces:
        if count_matches(record.text, surfaces, order[0]) == len(surfaces):
            return order[0]
        return choose(record.text, surfaces, order)
    if unit is None and findings.verdicts.established is None and has_astral(record.text):
        proved = _proved_without_surface(record)
        if proved is None and _depends_on_unit(record.text, spans):
            faults.append(
                intake.problem(
                    line,
                    "unknown-offsets",
                    _(
                        "characters beyond U+FFFF stand before a span, and nothing tells whether "
                        "its offsets count code points or UTF-16 units. Say which: --offsets "
                        "code-points or --offsets utf16."
                    ),
                )
            )
        return proved or order[0]
    if unit is None and order[0] == CONVENTIONS[0] and _fits_bytes_only(record.text, spans):
        message = _(
            "spans lie outside the text, but all lie in it if they count UTF-8 bytes. If they do, "
            "say so: --offsets bytes."
        )
        faults.append(intake.problem(line, "unknown-offsets", message))
    return order[0]


def _fits_bytes_only(text: str, spans: Sequence[StoredSpan]) -> bool:
    """Say whether most spans are beyond the text in code points, and none is in UTF-8 bytes."""
    if text.isascii() or sum(span.end > len(text) for span in spans) * 2 < len(spans) or not spans:
        return False
    cut = cutter(text, CONVENTIONS[2])
    return all(cut(span.start, span.end) for span in spans)


def _said_unit(extra: Mapping[str, Any]) -> OffsetUnit | None:
    """Return what a record itself says its offsets count: in `offsets`, or in a task's `meta`."""
    meta = extra.get("meta")
    said = extra.get("offsets", meta.get("offsets") if isinstance(meta, dict) else None)
    return said if said in ("code-points", "utf16", "bytes") else None


def _depends_on_unit(text: str, spans: Sequence[StoredSpan]) -> bool:
    points, units = (cutter(text, each) for each in CONVENTIONS[:2])
    return any(points(span.start, span.end) != units(span.start, span.end) for span in spans)


def _mismatch(span: StoredSpan, found: str | None, line: int, intake: Intake) -> Problem:
    message = _("the {label} span {start}-{end} holds {found}, but {stored} is stored with it.")
    return intake.problem(
        line,
        "surface-mismatch",
        message.format(
            label=span.label,
            start=span.start,
            end=span.end,
            found=describe(found) if found is not None else _("a part of a character"),
            stored=describe(span.surface),
        ),
    )


def converted_note(intake: Intake, converted: Counter[Convention]) -> Problem:
    """Say that offsets were converted, and from what."""
    ways = ", ".join(
        {
            ("code-points", "inclusive"): _("code points with inclusive ends"),
            ("utf16", "exclusive"): _("UTF-16 units"),
            ("utf16", "inclusive"): _("UTF-16 units with inclusive ends"),
            ("bytes", "exclusive"): _("bytes"),
            ("bytes", "inclusive"): _("bytes with inclusive ends"),
        }.get((each.unit, each.ends), _("code points"))
        for each in converted
    )
    message = _("{count} spans count in {ways}; converted to code points.").format(
        count=converted.total(), ways=ways
    )
    return intake.problem(0, "offsets-converted", message, "note", count=converted.total())
