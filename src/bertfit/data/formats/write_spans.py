"""Formats that keep the text whole and point into it: they hold everything, or nearly."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from bertfit.data.formats.losses import Losses
from bertfit.data.formats.offsets import has_astral
from bertfit.language import _
from bertfit.types import Entity, Example

_OWN_KEYS = ("id", "text", "entities", "label", "labels", "words", "offsets")


def write_jsonl(examples: Iterable[Example], file: TextIO, losses: Losses) -> int:
    """Write `{"id", "text", "entities": [{"start", "end", "label", "text"}], "words"}` a line."""
    count = 0
    for example in examples:
        count += 1
        record: dict[str, Any] = {"id": record_id(example), "text": example.text}
        if example.entities is not None:
            record["entities"] = entity_list(example)
        if example.words is not None:
            record["words"] = example.words
        record.update(_other_fields(example))
        _write_line(record, file)
    return count


def write_doccano(examples: Iterable[Example], file: TextIO, losses: Losses) -> int:
    """Write doccano's `{"id", "text", "label": [[start, end, label]]}` a line."""
    count = 0
    for example in examples:
        count += 1
        record: dict[str, Any] = {"id": record_id(example), "text": example.text}
        if example.entities is not None:
            record["label"] = [[each.start, each.end, each.label] for each in example.entities]
        if has_astral(example.text):
            # No surface stands beside these offsets, so they say themselves what they count.
            record["offsets"] = "code-points"
        _write_line(record, file)
    return count


def write_label_studio(examples: Iterable[Example], file: TextIO, losses: Losses) -> int:
    """Write Label Studio's JSON tasks; its offsets count UTF-16 units, as the browser does."""
    count = 0
    file.write("[")
    for count, example in enumerate(examples, 1):
        task: dict[str, Any] = {
            "id": count,
            "data": {"text": example.text, "id": record_id(example)},
            "meta": {"offsets": "utf16"},
            "annotations": [],
        }
        if example.entities is not None:
            to_units = _utf16_offsets(example.text)
            results = [
                {
                    "id": f"{count}-{number}",
                    "from_name": "label",
                    "to_name": "text",
                    "type": "labels",
                    "value": {
                        "start": to_units(each.start),
                        "end": to_units(each.end),
                        "text": example.text[each.start : each.end],
                        "labels": [each.label],
                    },
                }
                for number, each in enumerate(example.entities, 1)
            ]
            task["annotations"].append({"id": count, "result": results})
        file.write(",\n" if count > 1 else "\n")
        json.dump(task, file, ensure_ascii=False, default=str)
    file.write("\n]\n")
    return count


def write_brat(examples: Iterable[Example], folder: Path, losses: Losses) -> int:
    """Write one `.txt` and one `.ann` per example into a folder that exists."""
    count = 0
    for count, example in enumerate(examples, 1):
        name = f"{count:06d}"
        (folder / f"{name}.txt").write_bytes(example.text.encode())
        if example.entities is None:
            continue
        lines: list[str] = []
        for entity in example.entities:
            line = _brat_line(example, entity, losses)
            if line is not None:
                lines.append(f"T{len(lines) + 1}\t{line}\n")
        (folder / f"{name}.ann").write_bytes("".join(lines).encode())
    return count


def _brat_line(example: Example, entity: Entity, losses: Losses) -> str | None:
    """Write an entity; across a line break brat wants its pieces apart."""
    text = example.text
    label = "_".join(entity.label.split())
    if label != entity.label:
        losses.entity(example, entity, _("has a label with spaces; they are written as _"))
    pieces = []
    start = entity.start
    for end in [i for i in range(entity.start, entity.end) if text[i] == "\n"] + [entity.end]:
        if start < end:
            pieces.append((start, end))
        start = end + 1
    if not pieces:
        losses.entity(example, entity, _("holds nothing but line breaks; left out"))
        return None
    if (pieces[0][0], pieces[-1][1]) != (entity.start, entity.end):
        losses.entity(example, entity, _("has a line break at its edge; written without"))
    place = ";".join(f"{a} {b}" for a, b in pieces)
    surface = " ".join(" ".join(text[a:b].split("\t")) for a, b in pieces)
    return f"{label} {place}\t{surface}"


def entity_list(example: Example) -> list[dict[str, int | str]]:
    """Return the entities of an example with their surfaces."""
    return [
        {
            "start": each.start,
            "end": each.end,
            "label": each.label,
            "text": example.text[each.start : each.end],
        }
        for each in example.entities or ()
    ]


def record_id(example: Example) -> str | int:
    """Return the id that the record came with, else the one it was given."""
    stored = example.extra.get("id")
    return stored if isinstance(stored, str | int) else example.id


def _other_fields(example: Example) -> Mapping[str, Any]:
    return {key: value for key, value in example.extra.items() if key not in _OWN_KEYS}


def _write_line(record: Mapping[str, Any], file: TextIO) -> None:
    file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")


def _utf16_offsets(text: str) -> Callable[[int], int]:
    if not has_astral(text):
        return int
    offsets = [0]
    for character in text:
        offsets.append(offsets[-1] + (2 if character > "\uffff" else 1))
    return offsets.__getitem__
