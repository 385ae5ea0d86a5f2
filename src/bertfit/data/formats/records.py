"""Records with named fields, from JSON, CSV, Parquet or Arrow, as examples.

A record holds a text with spans, or words with tags. Where they are, how the offsets count and
what scheme the tags have is found out from the first records of the file.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from bertfit.data.formats.intake import Intake
from bertfit.data.formats.label_studio import is_task, task_records
from bertfit.data.formats.problems import ProblemLog
from bertfit.data.formats.span_examples import SpanFindings, converted_note, prove, span_example
from bertfit.data.formats.span_records import describe, find_spans, find_text, span_record
from bertfit.data.formats.tagged import tag_reading
from bertfit.data.formats.unused import WORD_OPTIONS, unused_note
from bertfit.data.formats.word_records import (
    WordFindings,
    find_tags,
    find_tokens,
    is_usual,
    may_hold_words,
    named_tags,
    with_words,
    word_example,
)
from bertfit.data.formats.words import survey_joining
from bertfit.data.tags import count_orphans
from bertfit.language import _
from bertfit.types import Example, Problem

Row = tuple[int, Any, Problem | None]
SURVEYED_RECORDS = 2000


@dataclass(slots=True)
class _Findings:
    """What the first records said about the file."""

    text_key: str | None = None
    spans_key: str | None = None
    words: WordFindings = field(default_factory=WordFindings)
    spans: SpanFindings = field(default_factory=SpanFindings)


def read_records(
    rows: Callable[[ProblemLog], Iterator[Row]],
    intake: Intake,
    class_names: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Example]:
    """Turn rows into examples.

    Args:
        rows: Starts from the first row at every call; yields line, value and fault, or neither
            where it has told the log.
        intake: Where the examples go out.
        class_names: The names behind integer tags, by column (Hugging Face's `ClassLabel`).
    """
    names = class_names or {}
    findings = _survey(rows(ProblemLog()), intake, names)
    if findings.words.tokens_key is None:
        reason = _("its records hold no words with tags")
        unused = unused_note(intake.options, WORD_OPTIONS, reason, intake.path)
        if unused is not None:
            intake.log.add(unused)
    for line, value, fault in rows(intake.log):
        if value is None:
            intake.drop([fault] if fault is not None else [])
            continue
        record, tokens_key = _as_mapping(value, findings.words)
        if record is None:
            message = _("a record is an object with a text, but this is {value}.").format(
                value=describe(value)
            )
            intake.drop([intake.problem(line, "not-a-record", message)])
            continue
        if "data" in record and is_task(record):
            yield from _task_examples(record, line, findings, intake)
            continue
        if tokens_key is not None:
            example = word_example(record, tokens_key, line, findings.words, intake, names)
        else:
            example = _text_example(record, line, findings, intake)
        if example is not None:
            yield example
    if findings.spans.converted:
        intake.log.add(converted_note(intake, findings.spans.converted))


def _survey(
    rows: Iterable[Row], intake: Intake, class_names: Mapping[str, Sequence[str]]
) -> _Findings:
    findings = _Findings()
    found = findings.words
    tags: Counter[str] = Counter()
    orphans = 0
    sentences: list[list[str]] = []
    texts: Counter[str] = Counter()
    spans: Counter[str] = Counter()
    for number, (_line, raw, _fault) in enumerate(islice(rows, SURVEYED_RECORDS)):
        record, tokens_key = _as_mapping(raw, found)
        if record is None:
            continue
        if is_task(record):
            for each in task_records(record) or []:
                prove(each, findings.spans, intake, number)
            continue
        if tokens_key is not None:
            found.tokens_key = found.tokens_key or tokens_key
            found.tags_key = found.tags_key or find_tags(record, tokens_key, intake)
            sentences.append(record[tokens_key])
            tag_row = named_tags(record.get(found.tags_key or ""), found, class_names)
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
            prove(span_record(record, text_key, spans_key), findings.spans, intake, number)
    findings.text_key = texts.most_common(1)[0][0] if texts else None
    findings.spans_key = spans.most_common(1)[0][0] if spans else None
    if found.tokens_key is not None:
        found.joining = survey_joining(sentences)
        found.reading = tag_reading(tags, orphans, intake.options.scheme, intake.options.task)
    return findings


def _as_mapping(raw: Any, found: WordFindings) -> tuple[Mapping[str, Any] | None, str | None]:
    """Return the record as a mapping, and the key of its words; None for what is not there.

    spaCy's training data is `[text, {"entities": ...}]`.
    """
    if isinstance(raw, dict):
        if found.tokens_key is not None and is_usual(raw, found):
            return raw, found.tokens_key
        if not may_hold_words(raw):
            return raw, None
        tokens_key = find_tokens(raw)
        return (raw, tokens_key) if tokens_key is not None else with_words(raw)
    if (
        isinstance(raw, list)
        and len(raw) == 2
        and isinstance(raw[0], str)
        and isinstance(raw[1], dict)
    ):
        record = {"text": raw[0], **raw[1]}
        return record, find_tokens(record)
    return None, None


def _task_examples(
    task: Mapping[str, Any], line: int, findings: _Findings, intake: Intake
) -> Iterator[Example]:
    found = task_records(task)
    if found is None:
        intake.drop([_no_text(task, line, intake)])
        return
    if len(found) > 1:
        message = _("{count} annotations of one task: each is read as a record.").format(
            count=len(found)
        )
        intake.log.add(intake.problem(line, "several-annotations", message, "note"))
    for each in found:
        example = span_example(each, line, findings.spans, intake)
        if example is not None:
            yield example


def _text_example(
    record: Mapping[str, Any], line: int, findings: _Findings, intake: Intake
) -> Example | None:
    text_key = findings.text_key
    if not isinstance(record.get(text_key or ""), str):
        text_key = find_text(record)
    if text_key is None:
        intake.drop([_no_text(record, line, intake)])
        return None
    spans_key = findings.spans_key if findings.spans_key in record else find_spans(record)
    taken = span_record(record, text_key, spans_key if spans_key != text_key else None)
    return span_example(taken, line, findings.spans, intake)


def _no_text(record: Mapping[str, Any], line: int, intake: Intake) -> Problem:
    message = _("no text: the record has {keys}. The text is called 'text', as a rule.").format(
        keys=", ".join(str(key) for key in list(record)[:8]) or "{}"
    )
    return intake.problem(line, "no-text", message)
