"""Tasks of Label Studio's full JSON export as span records."""

from collections.abc import Mapping
from typing import Any

from bertfit.data.formats.offsets import StoredSpan
from bertfit.data.formats.span_records import SpanRecord, describe

_ANNOTATION_KEYS = ("annotations", "completions")  # `completions` before Label Studio 1.0
_SPAN_TYPES = ("labels", "hypertextlabels", "paragraphlabels")


def is_task(record: Any) -> bool:
    """Say whether a JSON value is a task: its data apart from its annotations."""
    return (
        isinstance(record, dict)
        and isinstance(record.get("data"), dict)
        and any(isinstance(record.get(key), list) for key in _ANNOTATION_KEYS)
    )


def task_records(task: Mapping[str, Any]) -> list[SpanRecord] | None:
    """Return one record for every finished annotation of a task, or one without annotation.

    Cancelled annotations are skipped by the annotator, so they are no annotation. Relations,
    choices and other results that are no spans stay in `extra`. None if the task has no text.
    """
    text = _text(task)
    if text is None:
        return None
    rest = {key: value for key, value in task.items() if key not in _ANNOTATION_KEYS}
    annotations = next(task[key] for key in _ANNOTATION_KEYS if isinstance(task.get(key), list))
    finished = [
        each for each in annotations if isinstance(each, dict) and not each.get("was_cancelled")
    ]
    if not finished:
        return [SpanRecord(text=text, spans=None, inclusive=False, faults=[], extra=rest)]
    return [_annotation_record(text, each, rest) for each in finished]


def _text(task: Mapping[str, Any]) -> str | None:
    data = task["data"]
    if isinstance(data.get("text"), str):
        return str(data["text"])
    strings = [value for value in data.values() if isinstance(value, str)]
    return max(strings, key=len) if strings else None


def _annotation_record(
    text: str, annotation: Mapping[str, Any], rest: Mapping[str, Any]
) -> SpanRecord:
    spans: list[StoredSpan] = []
    faults: list[tuple[str, str]] = []
    others = []
    result = annotation.get("result")
    for item in result if isinstance(result, list) else []:
        value = item.get("value") if isinstance(item, dict) else None
        kind = item.get("type") if isinstance(item, dict) else None
        if not isinstance(value, dict) or (kind not in _SPAN_TYPES and "labels" not in value):
            others.append(item)
            continue
        # `start` of marked-up text counts inside one element; the global offsets count the text.
        overall = value.get("globalOffsets")
        place = overall if isinstance(overall, dict) else value
        start, end = place.get("start"), place.get("end")
        labels = value.get("labels", value.get(str(kind)))
        if not isinstance(start, int) or not isinstance(end, int):
            faults.append(("bad-span", describe(value)))
        elif not isinstance(labels, list) or not labels:
            faults.append(("no-label", describe(value)))
        else:
            surface = value.get("text") if isinstance(value.get("text"), str) else None
            spans.extend(StoredSpan(start, end, str(label), surface) for label in labels)
    extra = {**rest, "annotation_id": annotation.get("id")}
    if others:
        extra["other_results"] = others
    return SpanRecord(text=text, spans=spans, inclusive=False, faults=faults, extra=extra)
