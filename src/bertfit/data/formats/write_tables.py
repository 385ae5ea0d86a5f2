"""CSV and Parquet with one text a row."""

import csv
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from bertfit.data.formats.losses import Losses
from bertfit.data.formats.write_spans import entity_list, record_id
from bertfit.language import _
from bertfit.types import Example

_ROWS = 1000


def write_csv(examples: Iterable[Example], file: TextIO, losses: Losses) -> int:
    """Write `id,text,entities,words`, the last two as JSON lists, or empty where unknown."""
    # Every cell is quoted: a carriage return alone would else end a row.
    writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(["id", "text", "entities", "words"])
    count = 0
    for example in examples:
        if "\0" in example.text:
            losses.record(example, _("a text with a NUL character"))
            continue
        count += 1
        entities = None if example.entities is None else entity_list(example)
        writer.writerow([record_id(example), example.text, _json(entities), _json(example.words)])
    return count


def _json(value: object) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def write_parquet(examples: Iterable[Example], path: Path, losses: Losses) -> int:
    """Write the columns id, text, entities (start, end, label) and words (start, end)."""
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema(
        [
            ("id", pyarrow.string()),
            ("text", pyarrow.string()),
            (
                "entities",
                pyarrow.list_(
                    pyarrow.struct(
                        [
                            ("start", pyarrow.int64()),
                            ("end", pyarrow.int64()),
                            ("label", pyarrow.string()),
                            ("text", pyarrow.string()),
                        ]
                    )
                ),
            ),
            ("words", pyarrow.list_(pyarrow.list_(pyarrow.int64()))),
        ]
    )
    count = 0
    rest = iter(examples)
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        while rows := list(_rows(islice(rest, _ROWS))):
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
            count += len(rows)
    return count


def _rows(examples: Iterable[Example]) -> Iterator[dict[str, Any]]:
    for example in examples:
        yield {
            "id": str(record_id(example)),
            "text": example.text,
            "entities": None if example.entities is None else entity_list(example),
            "words": None if example.words is None else [list(word) for word in example.words],
        }
