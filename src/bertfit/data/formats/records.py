"""Records with named fields, from JSON, CSV, Parquet or Arrow, as examples.

A record holds a text with spans, or words with tags. Where they are, how the offsets count and
what scheme the tags have is found out from the first records of the file.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

from bertfit.data.formats.column_layout import is_tag
from bertfit.data.formats.intake import Intake
from bertfit.data.formats.label_studio import is_task, task_records
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
from bertfit.data.formats.span_records import (
    SPAN_KEYS,
    TAG_KEYS,
    TOKEN_KEYS,
    SpanRecord,
    describe,
    find_spans,
    find_text,
    holds_spans,
    span_record,
)
from bertfit.data.formats.tagged import TagReading, tag_reading, tagged_example
from bertfit.data.formats.words import Joining, survey_joining
from bertfit.data.tags import count_orphans
from bertfit.errors import DataError
from bertfit.language import _
from bertfit.types import Entity, Example, Problem

Row = tuple[int, Any, Problem | None]
SURVEYED_RECORDS = 2000
_PROVING_RECORDS = 200
_INCLUSIVE = Convention("code-points", "inclusive")


@dataclass(slots=True)
class _Findings:
    """What the first records said about the file."""

    text_key: str | None = None
    spans_key: str | None = None
    tokens_key: str | None = None
    tags_key: str | None = None
    joining: Joining = field(default_factory=Joining)
    reading: TagReading = field(default_factory=TagReading)
    verdicts: Verdicts = field(default_factory=Verdicts)
    converted: Counter[Convention] = field(default_factory=Counter)


def read_records(
    rows: Callable[[], Iterator[Row]],
    intake: Intake,
    class_names: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Example]:
    """Turn rows into examples.

    Args:
        rows: Starts from the first row at every call; yields line, value and fault (or neither).
        intake: Where the examples go out.
        class_names: The names behind integer tags, by column (Hugging Face's `ClassLabel`).
    """
    names = class_names or {}
    findings = _survey(rows(), intake, names)
    for line, value, fault in rows():
        if value is None:
            intake.drop([fault] if fault is not None else [])
        else:
            yield from _examples(value, line, findings, intake, names)
    if findings.converted:
        intake.log.add(_converted_note(intake, findings.converted))


def _survey(
    rows: Iterable[Row], intake: Intake, class_names: Mapping[str, Sequence[str]]
) -> _Findings:
    findings = _Findings()
    tags: Counter[str] = Counter()
    orphans = 0
    sentences: list[list[str]] = []
    texts: Counter[str] = Counter()
    spans: Counter[str] = Counter()
    for number, (_line, raw, _fault) in enumerate(islice(rows, SURVEYED_RECORDS)):
        record = _as_mapping(raw)
        if record is None:
            continue
        if is_task(record):
            for each in task_records(record) or []:
                _prove(each, findings.verdicts, intake, number)
            continue
        tokens_key = _tokens_key(record)
        if tokens_key is not None:
            findings.tokens_key = findings.tokens_key or tokens_key
            findings.tags_key = findings.tags_key or _tags_key(record, tokens_key, intake)
            sentences.append(record[tokens_key])
            tag_row = _named_tags(record.get(findings.tags_key or ""), findings, class_names)
            if isinstance(tag_row, list):
                tags.update(tag_row)
                orphans += count_orphans(tag_row)
            continue
        text_key, spans_key = find_text(record), find_spans(record)
        if text_key is not None:
            texts[text_key] += 1
        if spans_key is not None:
            spans[spans_key] += 1
        if text_key is not None and spans_key is not None and text_key != spans_key:
            _prove(span_record(record, text_key, spans_key), findings.verdicts, intake, number)
    findings.text_key = texts.most_common(1)[0][0] if texts else None
    findings.spans_key = spans.most_common(1)[0][0] if spans else None
    if findings.tokens_key is not None:
        findings.joining = survey_joining(sentences)
        findings.reading = tag_reading(tags, orphans, intake.options.scheme, intake.options.task)
    return findings


def _prove(record: SpanRecord, verdicts: Verdicts, intake: Intake, number: int) -> None:
    """Let a record say which convention its file uses, if it can."""
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


def _as_mapping(raw: Any) -> Mapping[str, Any] | None:
    """Return the record as a mapping; spaCy's training data is `[text, {"entities": ...}]`."""
    if isinstance(raw, dict):
        return _with_words(raw)
    if (
        isinstance(raw, list)
        and len(raw) == 2
        and isinstance(raw[0], str)
        and isinstance(raw[1], dict)
    ):
        return {"text": raw[0], **raw[1]}
    return None


def _with_words(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give words to a text whose tags are a list: its characters, or what spaces separate."""
    if _tokens_key(record) is not None:
        return record
    text_key = find_text(record)
    tags_key = next(
        (
            key
            for key, value in record.items()
            if (_is_words(value) and all(is_tag(tag) for tag in value))
            or (key in TAG_KEYS and isinstance(value, str) and is_tag(value))
        ),
        None,
    )
    if text_key is None or tags_key is None:
        return record
    text, tags = record[text_key], record[tags_key]
    words = list(text) if len(text) == len(tags) else text.split(" ")
    rest = {key: value for key, value in record.items() if key != text_key}
    return {TOKEN_KEYS[0]: words, **rest, tags_key: [tags] if isinstance(tags, str) else tags}


def _examples(
    raw: Any,
    line: int,
    findings: _Findings,
    intake: Intake,
    class_names: Mapping[str, Sequence[str]],
) -> Iterator[Example]:
    record = _as_mapping(raw)
    if record is None:
        message = _("a record is an object with a text, but this is {value}.").format(
            value=describe(raw)
        )
        intake.drop([intake.problem(line, "not-a-record", message)])
        return
    if is_task(record):
        found = task_records(record)
        if found is None:
            intake.drop([_no_text(record, line, intake)])
            return
        if len(found) > 1:
            message = _("{count} annotations of one task: each is read as a record.").format(
                count=len(found)
            )
            intake.log.add(intake.problem(line, "several-annotations", message, "note"))
    elif _tokens_key(record) is not None:
        yield from _word_example(record, line, findings, intake, class_names)
        return
    else:
        text_key = findings.text_key
        if not isinstance(record.get(text_key or ""), str):
            text_key = find_text(record)
        if text_key is None:
            intake.drop([_no_text(record, line, intake)])
            return
        spans_key = findings.spans_key if findings.spans_key in record else find_spans(record)
        found = [span_record(record, text_key, spans_key if spans_key != text_key else None)]
    for each in found:
        example = _span_example(each, line, findings, intake)
        if example is not None:
            yield example


def _no_text(record: Mapping[str, Any], line: int, intake: Intake) -> Problem:
    message = _("no text: the record has {keys}. The text is called 'text', as a rule.").format(
        keys=", ".join(str(key) for key in list(record)[:8]) or "{}"
    )
    return intake.problem(line, "no-text", message)


def _span_example(
    record: SpanRecord, line: int, findings: _Findings, intake: Intake
) -> Example | None:
    faults = [
        intake.problem(
            line, kind, _("{span} is no span with a start, an end and a label.").format(span=shown)
        )
        for kind, shown in record.faults
    ]
    entities: tuple[Entity, ...] | None = None
    if record.spans is not None:
        entities = _located(record, line, faults, findings, intake)
    extra = record.extra
    words = _stored_words(extra.get("words"), len(record.text))
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
    record: SpanRecord, line: int, faults: list[Problem], findings: _Findings, intake: Intake
) -> tuple[Entity, ...]:
    """Convert the stored offsets into code points, with every surface checked."""
    spans = record.spans or []
    convention = _convention(record, line, faults, findings, intake)
    expected = _INCLUSIVE if record.inclusive else CONVENTIONS[0]
    said = intake.options.offsets or _said_unit(record.extra)
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
    record: SpanRecord, line: int, faults: list[Problem], findings: _Findings, intake: Intake
) -> Convention:
    spans = record.spans or []
    unit = intake.options.offsets or _said_unit(record.extra)
    order = findings.verdicts.order(unit)
    if record.inclusive and findings.verdicts.established is None:
        order.sort(key=lambda each: each.ends != "inclusive")
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


def _converted_note(intake: Intake, converted: Counter[Convention]) -> Problem:
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


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(each, str) for each in value)


def _tokens_key(record: Mapping[str, Any]) -> str | None:
    """Return the key of the words, unless a text with spans stands beside them, and no tags."""
    for key in TOKEN_KEYS:
        value = record.get(key)
        if _is_words(value) or (value == [] and key in ("tokens", "words")):
            return None if _is_text_beside(record, key) else key
    return None


def _is_text_beside(record: Mapping[str, Any], tokens_key: str) -> bool:
    words = record[tokens_key]
    text_key = find_text(record)
    if text_key is None or not record[text_key]:
        return False
    if not words:
        return True
    return any(holds_spans(record.get(key)) for key in SPAN_KEYS) and not any(
        isinstance(tags, list)
        and len(tags) == len(words)
        and all(
            isinstance(tag, str | int)
            and (key in TAG_KEYS or (isinstance(tag, str) and is_tag(tag)))
            for tag in tags
        )
        for key, tags in record.items()
        if key != tokens_key
    )


def _word_spans_key(record: Mapping[str, Any]) -> str | None:
    """Return the key of spans beside words that have neither tags nor a text."""
    for key in SPAN_KEYS:
        value = record.get(key)
        if isinstance(value, list) and value and isinstance(value[0], dict | list):
            return key
    return None


def _tags_key(record: Mapping[str, Any], tokens_key: str, intake: Intake) -> str | None:
    """Return the column of the tags: as named, else a list as long as the words."""
    length = len(record[tokens_key])
    wanted = intake.options.tag_column
    if isinstance(wanted, str):
        if wanted not in record:
            raise DataError(
                _("{path} has no column '{name}'. Its columns are {names}.").format(
                    path=intake.path, name=wanted, names=", ".join(record)
                )
            )
        return wanted
    keys = TAG_KEYS if intake.options.task != "pos" else ("pos_tags", "upos", "pos", *TAG_KEYS)
    fitting = [
        key
        for key in dict.fromkeys([*keys, *record])
        if key != tokens_key
        and isinstance(record.get(key), list)
        and len(record[key]) == length
        and all(isinstance(each, str | int) for each in record[key])
    ]
    return fitting[0] if fitting else None


def _named_tags(
    tags: Any, findings: _Findings, class_names: Mapping[str, Sequence[str]]
) -> list[str] | str | None:
    """Return the tags as strings; a string says why they cannot be."""
    if not isinstance(tags, list):
        return None
    names = class_names.get(findings.tags_key or "")
    named = []
    for tag in tags:
        if isinstance(tag, str):
            named.append(tag)
        elif isinstance(tag, int) and names and 0 <= tag < len(names):
            named.append(names[tag])
        else:
            return describe(tag)
    return named


def _word_example(
    record: Mapping[str, Any],
    line: int,
    findings: _Findings,
    intake: Intake,
    class_names: Mapping[str, Sequence[str]],
) -> Iterator[Example]:
    tokens_key = findings.tokens_key
    if not _is_words(record.get(tokens_key or "")):
        tokens_key = _tokens_key(record)
    words = cast(list[str], record[tokens_key or ""])
    tags = _named_tags(record.get(findings.tags_key or ""), findings, class_names)
    faults = []
    if isinstance(tags, str):
        message = _(
            "the tag {tag} is a number without a name. Write the tags themselves, such as B-PER."
        ).format(tag=tags)
        faults.append(intake.problem(line, "unnamed-tag", message))
    elif tags is not None and len(tags) != len(words):
        message = _("{words} words, but {tags} tags.").format(words=len(words), tags=len(tags))
        faults.append(intake.problem(line, "length-mismatch", message))
    spans_key = _word_spans_key(record) if tags is None else None
    if spans_key is not None:
        message = _(
            "words with spans in '{key}', but without a text: such spans count words. Write one "
            "tag for every word, or a text with spans of characters."
        ).format(key=spans_key)
        faults.append(intake.problem(line, "word-spans", message))
    extra = {
        key: value for key, value in record.items() if key not in (tokens_key, findings.tags_key)
    }
    example = tagged_example(
        words,
        [tags] if isinstance(tags, list) and not faults else [],
        [line] * len(words),
        findings.joining,
        findings.reading,
        intake,
        faults=faults,
        extra=extra,
    )
    if example is not None:
        yield example
