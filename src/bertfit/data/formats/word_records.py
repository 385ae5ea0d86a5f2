"""Records of words and their tags: which fields hold them, and the example they make."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertfit.data.formats.column_layout import is_tag
from bertfit.data.formats.intake import Intake
from bertfit.data.formats.span_records import (
    SPAN_KEYS,
    TAG_KEYS,
    TOKEN_KEYS,
    describe,
    find_text,
    holds_spans,
)
from bertfit.data.formats.tagged import TagReading, tagged_example
from bertfit.data.formats.words import Joining
from bertfit.errors import DataError
from bertfit.language import _
from bertfit.types import Example

_TAG_KEYS = frozenset(TAG_KEYS)
_STRINGS = frozenset((str,))
_EMPTY_TOKENS = ("tokens", "words")  # where an empty list is a sentence without words


@dataclass(slots=True)
class WordFindings:
    """What the first records of a file said about their words.

    Attributes:
        tokens_key: the field of the words; None while there were none.
        tags_key: the field of the tags.
        joining: how words make a text.
        reading: how tags are read.
    """

    tokens_key: str | None = None
    tags_key: str | None = None
    joining: Joining = field(default_factory=Joining)
    reading: TagReading = field(default_factory=TagReading)


def is_usual(record: Mapping[str, Any], found: WordFindings) -> bool:
    """Say whether a record is words and tags where the file has them, and nothing beside.

    Nothing else can be meant by it, so that the other fields of other records cost it no time.
    """
    words = record.get(found.tokens_key or "")
    return (
        len(record) == 2 and _is_words(words) and isinstance(record.get(found.tags_key or ""), list)
    )


def may_hold_words(record: Mapping[str, Any]) -> bool:
    """Say whether a record is worth a closer look for words; most with spans are not."""
    for key, value in record.items():
        if isinstance(value, list):
            if isinstance(value[0], str) if value else key in _EMPTY_TOKENS:
                return True
        elif isinstance(value, str) and key in _TAG_KEYS:
            return True
    return False


def with_words(record: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """Give words to a text whose tags are a list: its characters, or what spaces separate.

    Returns:
        The record with its words and their key; as it was and None where there are no such tags.
    """
    for tags_key, tags in record.items():
        if isinstance(tags, str):
            found = tags_key in TAG_KEYS and is_tag(tags)
        else:
            found = _is_words(tags) and all(is_tag(tag) for tag in tags)
        if found:
            break
    else:
        return record, None
    text_key = find_text(record)
    if text_key is None:
        return record, None
    text = record[text_key]
    words = list(text) if len(text) == len(tags) else text.split(" ")
    rest = {key: value for key, value in record.items() if key != text_key}
    laid = {TOKEN_KEYS[0]: words, **rest, tags_key: [tags] if isinstance(tags, str) else tags}
    return laid, find_tokens(laid)


def _is_words(value: Any) -> bool:
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        return False
    return _STRINGS.issuperset(map(type, value))


def find_tokens(record: Mapping[str, Any]) -> str | None:
    """Return the key of the words, unless a text with spans stands beside them, and no tags."""
    for key in TOKEN_KEYS:
        value = record.get(key)
        # Most values are no lists: that alone is asked of every record of every file.
        if isinstance(value, list) and (_is_words(value) or (not value and key in _EMPTY_TOKENS)):
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


def find_tags(record: Mapping[str, Any], tokens_key: str, intake: Intake) -> str | None:
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


def named_tags(
    tags: Any, findings: WordFindings, class_names: Mapping[str, Sequence[str]]
) -> list[str] | str | None:
    """Return the tags as strings; a string says why they cannot be."""
    if not isinstance(tags, list):
        return None
    if _is_words(tags):
        return tags
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


def word_example(
    record: Mapping[str, Any],
    tokens_key: str,
    line: int,
    findings: WordFindings,
    intake: Intake,
    class_names: Mapping[str, Sequence[str]],
) -> Example | None:
    """Make an example of a record of words.

    Args:
        record: the record.
        tokens_key: where its words are, if they are not where most records of the file have them.
        line: its line, for messages.
        findings: what the first records of the file said.
        intake: where the example goes out.
        class_names: the names behind integer tags, by field.
    """
    usual = findings.tokens_key
    if usual is not None and usual != tokens_key and _is_words(record.get(usual)):
        tokens_key = usual
    words: list[str] = record[tokens_key]
    tags = named_tags(record.get(findings.tags_key or ""), findings, class_names)
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
    extra = dict(record)
    del extra[tokens_key]
    extra.pop(findings.tags_key or "", None)
    return tagged_example(
        words,
        [tags] if isinstance(tags, list) and not faults else [],
        [line] * len(words),
        findings.joining,
        findings.reading,
        intake,
        faults=faults,
        extra=extra,
    )
