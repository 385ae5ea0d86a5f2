"""Predictions as bytes of an output file: each format in pieces that can be appended.

A piece depends on its records and their position alone, so a file that was gone on with is the
file that was never stopped.
"""

import csv
import gzip
import io
import json
import os
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from bertfit.data.formats.offsets import has_astral
from bertfit.data.formats.write_spans import record_id
from bertfit.data.segments import word_units
from bertfit.data.tags import SCHEMES, Scheme, encode
from bertfit.errors import ConfigError
from bertfit.jobs.arrow_stream import stream_end, stream_head, stream_piece, to_parquet
from bertfit.language import _
from bertfit.types import Entity, Example

Found = tuple[Example, list[Entity]]
PREDICTION_FORMATS = ("jsonl", "conll", "csv", "parquet", "label-studio", "doccano")
_BY_SUFFIX = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "label-studio",
    ".conll": "conll",
    ".bio": "conll",
    ".tsv": "conll",
    ".txt": "conll",
    ".csv": "csv",
    ".parquet": "parquet",
}
_BREAKS = re.compile(r"[\t\n\r\0]")
_OWN_KEYS = frozenset(("id", "text", "entities", "label", "labels", "words", "offsets"))


class PredictionFormat(Protocol):
    """What a format does with predictions."""

    def head(self) -> bytes:
        """Return what stands before the first record."""

    def piece(self, found: Sequence[Found], position: int) -> bytes:
        """Return records; `position` counts those written before them."""

    def tail(self) -> bytes:
        """Return what stands behind the last record."""

    def finish(self, parts: Sequence[Path], targets: Sequence[Path]) -> None:
        """Make the target out of the part, which may be gone already."""


def format_of(path: Path, asked: str | None) -> str:
    """Return the format of an output file: as asked, else by its name.

    Raises:
        ConfigError: no such format, or the name does not say one.
    """
    if asked is not None:
        if asked not in PREDICTION_FORMATS:
            raise ConfigError(
                _("--output-format {name}: choose one of {formats}.").format(
                    name=asked, formats=", ".join(PREDICTION_FORMATS)
                )
            )
        return asked
    name = path.name.lower().removesuffix(".gz")
    for said in ("doccano", "label-studio"):
        if said in name.replace("_", "-"):
            return said
    found = _BY_SUFFIX.get(Path(name).suffix)
    if found is None:
        raise ConfigError(
            _(
                "--output {path}: its name does not say the format. Let it end in {suffixes}, or "
                "name one with --output-format: {formats}."
            ).format(
                path=path,
                suffixes=", ".join(_BY_SUFFIX),
                formats=", ".join(PREDICTION_FORMATS),
            )
        )
    return found


def prediction_format(
    name: str, *, packed: bool, model_name: str, scheme: Scheme
) -> PredictionFormat:
    """Return what writes a format.

    Args:
        name: one of `PREDICTION_FORMATS`.
        packed: write gzip, a member for every piece.
        model_name: what Label Studio shows as the version of the model.
        scheme: the tags of CoNLL.

    Raises:
        ConfigError: Parquet cannot be packed again.
    """
    if name == "parquet":
        if packed:
            raise ConfigError(_("--output: Parquet is packed by itself; leave .gz out."))
        return _Parquet()
    piece: dict[str, Callable[[Sequence[Found], int], str]] = {
        "jsonl": _jsonl,
        "doccano": _doccano,
        "conll": lambda found, position: _conll(found, scheme),
        "csv": lambda found, position: _csv_rows(map(_csv_row, found)),
        "label-studio": lambda found, position: _label_studio(found, position, model_name),
    }
    head = {"csv": _csv_rows([["id", "text", "entities"]]), "label-studio": "["}.get(name, "")
    return _Text(head, piece[name], "\n]\n" if name == "label-studio" else "", packed)


class _Text:
    def __init__(
        self, head: str, piece: Callable[[Sequence[Found], int], str], tail: str, packed: bool
    ) -> None:
        self._head, self._piece, self._tail, self._packed = head, piece, tail, packed

    def head(self) -> bytes:
        return self._bytes(self._head)

    def piece(self, found: Sequence[Found], position: int) -> bytes:
        return self._bytes(self._piece(found, position))

    def tail(self) -> bytes:
        return self._bytes(self._tail)

    def finish(self, parts: Sequence[Path], targets: Sequence[Path]) -> None:
        move(parts[0], targets[0])

    def _bytes(self, text: str) -> bytes:
        plain = text.encode()
        return gzip.compress(plain, 6, mtime=0) if self._packed and plain else plain


class _Parquet:
    def __init__(self) -> None:
        import pyarrow

        entity = pyarrow.struct(
            [
                ("start", pyarrow.int64()),
                ("end", pyarrow.int64()),
                ("label", pyarrow.string()),
                ("text", pyarrow.string()),
                ("score", pyarrow.float32()),
            ]
        )
        self._schema = pyarrow.schema(
            [
                ("id", pyarrow.string()),
                ("text", pyarrow.string()),
                ("entities", pyarrow.list_(entity)),
            ]
        )

    def head(self) -> bytes:
        return stream_head(self._schema)

    def piece(self, found: Sequence[Found], position: int) -> bytes:
        import pyarrow

        rows = [
            {
                "id": str(record_id(example)),
                "text": example.text,
                "entities": entity_values(example, entities),
            }
            for example, entities in found
        ]
        return stream_piece(pyarrow.RecordBatch.from_pylist(rows, schema=self._schema))

    def tail(self) -> bytes:
        return stream_end()

    def finish(self, parts: Sequence[Path], targets: Sequence[Path]) -> None:
        to_parquet(parts[0], targets[0])


def move(part: Path, target: Path) -> None:
    """Give a part its name, if it has not got it already."""
    if part.exists():
        os.replace(part, target)


def entity_values(example: Example, entities: Sequence[Entity]) -> list[dict[str, Any]]:
    """Return entities as they are written: with their surface, the score rounded."""
    return [
        {
            "start": entity.start,
            "end": entity.end,
            "label": entity.label,
            "text": example.text[entity.start : entity.end],
            **({} if entity.score is None else {"score": round(entity.score, 4)}),
        }
        for entity in entities
    ]


def json_record(example: Example, entities: Sequence[Entity]) -> dict[str, Any]:
    """Return a prediction as the record of a JSON line; what the input carried goes along."""
    return {
        "id": record_id(example),
        "text": example.text,
        "entities": entity_values(example, entities),
        **{key: value for key, value in example.extra.items() if key not in _OWN_KEYS},
    }


def _line(record: object) -> str:
    return json.dumps(record, ensure_ascii=False, default=str) + "\n"


def _jsonl(found: Sequence[Found], position: int) -> str:
    return "".join(_line(json_record(example, entities)) for example, entities in found)


def _doccano(found: Sequence[Found], position: int) -> str:
    lines = []
    for example, entities in found:
        record: dict[str, Any] = {
            "id": record_id(example),
            "text": example.text,
            "label": [[entity.start, entity.end, entity.label] for entity in entities],
        }
        if has_astral(example.text):
            # No surface stands beside these offsets, so they say themselves what they count.
            record["offsets"] = "code-points"
        lines.append(_line(record))
    return "".join(lines)


def _csv_row(found: Found) -> list[object]:
    example, entities = found
    values = json.dumps(entity_values(example, entities), ensure_ascii=False)
    return [record_id(example), example.text, values]


def _csv_rows(rows: Any) -> str:
    file = io.StringIO(newline="")
    # Every cell is quoted: a carriage return alone would else end a row.
    csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    return file.getvalue()


def _conll(found: Sequence[Found], scheme: Scheme) -> str:
    parts = []
    for example, entities in found:
        units = _conll_units(example, entities)
        starts = {start: index for index, (start, _end) in enumerate(units)}
        ends = {end: index for index, (_start, end) in enumerate(units)}
        tags = encode(
            [(starts[e.start], ends[e.end] + 1, e.label) for e in entities], len(units), scheme
        )
        text = example.text
        plain = text == text.strip() and not text.startswith('"') and not _BREAKS.search(text)
        parts.append(f"# text = {text if plain else json.dumps(text, ensure_ascii=False)}\n")
        parts += [
            f"{text[start:end]}\t{tag}\n" for (start, end), tag in zip(units, tags, strict=True)
        ]
        parts.append("\n")
    return "".join(parts)


def _conll_units(example: Example, entities: Sequence[Entity]) -> list[tuple[int, int]]:
    """Return the words to write, cut where an entity begins or ends and at breaks."""
    edges = {edge for entity in entities for edge in (entity.start, entity.end)}
    for match in _BREAKS.finditer(example.text):
        edges.update(match.span())
    units = []
    for start, end in word_units(example.text) if example.words is None else example.words:
        cuts = [start, *sorted(edge for edge in edges if start < edge < end), end]
        units += [(a, b) for a, b in pairwise(cuts) if not _BREAKS.fullmatch(example.text[a:b])]
    return units


def _label_studio(found: Sequence[Found], position: int, model_name: str) -> str:
    tasks = []
    for number, (example, entities) in enumerate(found, position + 1):
        to_units = utf16_offsets(example.text)
        results = [
            {
                "id": f"{number}-{index}",
                "from_name": "label",
                "to_name": "text",
                "type": "labels",
                "value": {
                    "start": to_units[entity.start],
                    "end": to_units[entity.end],
                    "text": example.text[entity.start : entity.end],
                    "labels": [entity.label],
                    **({} if entity.score is None else {"score": round(entity.score, 4)}),
                },
            }
            for index, entity in enumerate(entities, 1)
        ]
        scores = [entity.score for entity in entities if entity.score is not None]
        task = {
            "id": number,
            "data": {"text": example.text, "id": record_id(example)},
            "meta": {"offsets": "utf16"},
            "predictions": [
                {
                    "model_version": model_name,
                    "score": round(min(scores), 4) if scores else None,
                    "result": results,
                }
            ],
        }
        tasks.append((",\n" if number > 1 else "\n") + _line(task).rstrip("\n"))
    return "".join(tasks)


def utf16_offsets(text: str) -> Sequence[int]:
    """Return the offset of every code point, and of the end, in UTF-16 units."""
    if not has_astral(text):
        return range(len(text) + 1)
    offsets = [0]
    for character in text:
        offsets.append(offsets[-1] + (2 if character > "\uffff" else 1))
    return offsets


def scheme_of(name: str) -> Scheme:
    """Return a tag scheme by its name.

    Raises:
        ConfigError: there is none of that name.
    """
    known: tuple[Scheme, ...] = ("bio", *SCHEMES[:-1])
    for scheme in known:
        if scheme == name:
            return scheme
    raise ConfigError(
        _("--output-scheme {name}: choose one of {schemes}.").format(
            name=name, schemes=", ".join(known)
        )
    )
