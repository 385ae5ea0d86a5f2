"""What a file is, by its content, and who reads it."""

import atexit
import csv
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from bertfit.data.formats.brat import find_documents, read_brat
from bertfit.data.formats.column_layout import find_layout, is_tag
from bertfit.data.formats.columns import read_columns
from bertfit.data.formats.conllu import is_conllu, read_conllu
from bertfit.data.formats.intake import Intake
from bertfit.data.formats.json_values import decode_json, json_document, json_lines
from bertfit.data.formats.options import FORMATS, ReadOptions, refuse_unknown
from bertfit.data.formats.problems import ProblemLog
from bertfit.data.formats.records import Row, read_records
from bertfit.data.formats.running import (
    find_pair,
    find_segmented,
    find_slashed,
    pair_reading,
    read_pair,
    read_segmented,
    read_slashed,
    read_text,
    refuse_tags_alone,
)
from bertfit.data.formats.source import (
    HEAD_BYTES,
    TextFile,
    open_file,
    refuse_special,
    text_file,
)
from bertfit.data.formats.span_records import TEXT_KEYS, describe
from bertfit.data.formats.tables import (
    ClassNames,
    arrow_rows,
    csv_rows,
    find_delimiter,
    hub_rows,
    is_token_table,
    parquet_rows,
    parquet_shards,
    saved_files,
    token_rows,
)
from bertfit.errors import DataError
from bertfit.language import _
from bertfit.types import Example, Task

HUB_PREFIX = "hub:"
_DATA_SUFFIXES = frozenset(
    (
        *(".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow"),
        *(".txt", ".ann", ".conll", ".conllu", ".bio", ".iob", ".bmes"),
    )
)
_NO_DATA = ("readme", "license", "dataset_info", ".")
_Reader = Callable[[Intake], Iterator[Example]]
_Table = Callable[[], tuple[Iterator[Row], ClassNames]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognised:
    """A format, the task its content stands for, and its reader."""

    name: str
    read: _Reader
    task: Task = "ner"
    path: Path | None = None  # where its lines are counted, if not in the path that was asked for
    beside: tuple[str, ...] = ()  # files of data in its folder that are not read


def recognise(path: str, options: ReadOptions) -> Recognised:
    """Find out what a file or folder is.

    Args:
        path: as `reading.open_data` takes it.
        options: what looking at the content is not to decide.

    Raises:
        DataError: it cannot be read, or is not of the format that was named, or of none.
    """
    wanted = options.format
    refuse_unknown(options)
    if wanted == "hub" or path.startswith(HUB_PREFIX):
        name = path.removeprefix(HUB_PREFIX)
        return _tables("hub", [lambda: hub_rows(name)], options)
    place = Path(path)
    if not os.path.exists(place):  # no, too, for a name that is too long
        raise DataError(
            _(
                "{path} does not exist. Check the path; a data set of the Hugging Face hub is "
                "written hub:owner/name."
            ).format(path=path)
        )
    refuse_special(place)
    pair = find_pair(place) if wanted in (None, "pair") else None
    if pair is not None:
        return replace(_pair(pair, options), beside=_beside(place, pair))
    if wanted in (None, "brat"):
        documents = find_documents(place, named=wanted == "brat")
        if documents:
            return Recognised(
                name="brat",
                read=lambda intake: read_brat(documents, intake),
                beside=_beside(place, [*documents, *(d.with_suffix(".ann") for d in documents)]),
            )
    if place.is_dir():
        return _folder(place, options)
    found = _binary(place, options) or _text(place, options)
    if found is not None:
        return found
    if wanted is not None:
        raise DataError(
            _("{path} does not look like the format '{name}'.").format(path=path, name=wanted)
        )
    raise DataError(
        _("{path} is of no known format. Name one with --format: {formats}.").format(
            path=path, formats=", ".join(FORMATS)
        )
    )


def _pair(pair: tuple[Path, Path], options: ReadOptions) -> Recognised:
    words, tags = (text_file(each) for each in pair)
    how = pair_reading(words, tags, options)
    return Recognised(
        name="pair",
        path=pair[0],
        task=how.reading.task,
        read=lambda intake: read_pair(words, pair[1], how, intake),
    )


def _folder(place: Path, options: ReadOptions) -> Recognised:
    arrow = saved_files(place)
    if arrow is not None:
        return _tables("datasets", [_arrow(each) for each in arrow], options)
    shards = parquet_shards(place)
    if shards:
        found = _tables("parquet", [_parquet(each) for each in shards], options)
        return replace(found, beside=_beside(place, shards))
    names = sorted(each.name for each in place.iterdir())[:10]
    if not names:
        raise DataError(
            _("{path} is an empty folder. Name a file, or a folder that holds data.").format(
                path=place
            )
        )
    raise DataError(
        _(
            "{path} is a folder, but neither of brat (.txt with .ann), nor of `datasets`, nor of "
            "Parquet files, nor sentences.txt with tags.txt. Name a file in it: {names}."
        ).format(path=place, names=", ".join(names))
    )


def _beside(folder: Path, read: Iterable[Path]) -> tuple[str, ...]:
    """Return the files of data in a folder that are not among those that are read."""
    if not folder.is_dir():
        return ()
    others = set(folder.rglob("*")).difference(read)
    return tuple(
        str(each.relative_to(folder))
        for each in sorted(others)
        if Path(each.name.removesuffix(".gz")).suffix in _DATA_SUFFIXES
        and not each.name.lower().startswith(_NO_DATA)
        and not any(part.startswith(".") for part in each.relative_to(folder).parts)
        and each.is_file()
    )


def _arrow(path: Path) -> _Table:
    return lambda: arrow_rows(path)


def _parquet(path: Path) -> _Table:
    return lambda: parquet_rows(path)


def _tables(name: str, tables: Sequence[_Table], options: ReadOptions) -> Recognised:
    names = tables[0]()[1]

    def rows(log: ProblemLog) -> Iterator[Row]:
        return chain.from_iterable(table()[0] for table in tables)

    return Recognised(
        name=name,
        task=options.task or "ner",
        read=lambda intake: read_records(rows, intake, names),
    )


def _binary(place: Path, options: ReadOptions) -> Recognised | None:
    with open_file(place) as file:
        magic = file.read(8)
    if magic[:4] == b"PAR1":
        return _tables("parquet", [_parquet(place)], options)
    if magic[:6] == b"ARROW1" or (magic[:4] == b"\xff\xff\xff\xff" and place.suffix == ".arrow"):
        return _tables("arrow", [_arrow(place)], options)
    if magic[:2] == b"PK":
        raise DataError(
            _("{path} is a zip archive or an Excel file. Unpack it, or save it as CSV.").format(
                path=place
            )
        )
    return _packed_table(place, options) if magic[:2] == b"\x1f\x8b" else None


def _packed_table(place: Path, options: ReadOptions) -> Recognised | None:
    """Recognise a Parquet or Arrow file in a gzip; None if something else is in it.

    Tables are read from their end, so it is unpacked to a temporary folder, which lasts as long as
    the process.
    """
    packed = TextFile(path=place, is_gzip=True)
    if not packed.head(8).startswith((b"PAR1", b"ARROW1")):
        return None
    folder = tempfile.mkdtemp(prefix="bertfit-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    unpacked = Path(folder) / place.name.removesuffix(".gz")
    with unpacked.open("wb") as file:
        file.writelines(packed.chunks())
    found = _binary(unpacked, options)
    return None if found is None else replace(found, path=place)


def _text(place: Path, options: ReadOptions) -> Recognised | None:
    file = text_file(place)
    wanted = options.format
    if wanted in (None, "json", "jsonl"):
        found = _json(file, wanted)
        if found is not None or wanted is not None:
            return found
    log = ProblemLog()
    lines = [line for _n, line in file.lines(log, HEAD_BYTES) if line is not None]
    lines = [line for line in lines if line.strip()]
    if not lines:
        log.raise_errors()
        return None
    _refuse_foreign(place, lines[0], wanted)
    if wanted == "text":
        return Recognised(name="text", read=lambda intake: read_text(file, intake))
    if wanted == "conllu" or (wanted is None and is_conllu(lines)):
        task = options.task or "pos"
        return Recognised(
            name="conllu", task=task, read=lambda intake: read_conllu(file, task, intake)
        )
    if wanted in (None, "csv"):
        found = _csv(file, lines, options)
        if found is not None or wanted is not None:
            return found
    return _columns_or_running(file, lines, options)


def _refuse_foreign(place: Path, first: str, wanted: str | None) -> None:
    """Refuse what would pass for columns or text and is neither.

    Raises:
        DataError: a format of INCEpTION and WebAnno, or a markup language.
    """
    if first.startswith("#FORMAT=WebAnno"):
        raise DataError(
            _("{path} is WebAnno TSV. Export it as CoNLL 2002 or as CoNLL-U instead.").format(
                path=place
            )
        )
    if wanted is None and first.lstrip()[:9].lower().startswith(("<?xml", "<!doctype", "<html")):
        raise DataError(
            _("{path} is XML or HTML. Convert it to one of {formats}.").format(
                path=place, formats=", ".join(FORMATS)
            )
        )


def _json(file: TextFile, wanted: str | None) -> Recognised | None:
    text = file.head().decode("utf-8", "replace").lstrip()
    if text[:1] not in ("{", "["):
        return None
    lines = [line for line in text.split("\n")[:20] if line.strip()]
    if wanted == "jsonl" or (wanted is None and _is_json_lines(lines)):
        return Recognised(
            name="jsonl",
            read=lambda intake: read_records(lambda log: json_lines(file, log), intake),
        )
    # A column file can begin with a bracket too: "[ O".
    if wanted is None and re.match(r'\{\s*["}]|\[\s*[\[{\]"]', text) is None:
        return None
    return Recognised(
        name="json", read=lambda intake: read_records(lambda log: json_document(file), intake)
    )


def _is_json_lines(lines: list[str]) -> bool:
    """Say whether every line is a JSON value, rather than a part of one value."""
    first = lines[0].rstrip()
    if len(lines) == 1 and first.startswith("["):
        # An array of records on one line, or one record of spaCy's: [text, {...}].
        value, fault = decode_json(first, "", 0)
        return fault is None and bool(value) and isinstance(value[0], str)
    # A faulty first line still ends like a record; the first line of a printed object does not.
    return _is_record_line(first) or (
        first.startswith("{")
        and first.endswith("}")
        and any(_is_record_line(line) for line in lines[1:])
    )


def _is_record_line(line: str) -> bool:
    value, fault = decode_json(line, "", 0)
    return fault is None and isinstance(value, dict | list) and bool(value)


def _csv(file: TextFile, lines: list[str], options: ReadOptions) -> Recognised | None:
    named = options.format is not None
    is_table = Path(file.path.name.removesuffix(".gz")).suffix in (".csv", ".tsv")
    delimiter = find_delimiter(lines[0], named=named or is_table)
    if delimiter is None:
        if named:
            raise DataError(
                _(
                    "{path} does not look like the format 'csv': its first line is to name the "
                    "columns, one of them {names} or the like, but it is {line}. Add such a line, "
                    "or leave --format out."
                ).format(path=file.path, names=", ".join(TEXT_KEYS[:4]), line=describe(lines[0]))
            )
        return None
    names = next(csv.reader([lines[0]], delimiter=delimiter))
    if is_token_table(names):
        return Recognised(
            name="csv",
            task=options.task or "ner",
            read=lambda intake: read_records(lambda log: token_rows(file, delimiter, log), intake),
        )
    if not named and not _holds_records(file, delimiter):
        return None  # one word a row, and no sentence named: blank lines separate sentences
    return Recognised(
        name="csv",
        task=options.task or "ner",
        read=lambda intake: read_records(lambda log: csv_rows(file, delimiter, log), intake),
    )


def _holds_records(file: TextFile, delimiter: str) -> bool:
    """Say whether a row holds a whole text, and not one word of it with its tag."""
    rows = list(islice(csv_rows(file, delimiter, ProblemLog()), 50))
    first = [row for _line, row, _fault in rows if row is not None]
    if not first:
        return True  # not one good row under a header of texts: let the reader say why
    if any(isinstance(value, list | dict) for row in first for value in row.values()):
        return True
    tagged = any(
        isinstance(value, str) and is_tag(value) for row in first for value in [*row.values()][1:]
    )
    return not tagged and any(name.lower() in TEXT_KEYS for row in first[:1] for name in row)


def _columns_or_running(
    file: TextFile, lines: list[str], options: ReadOptions
) -> Recognised | None:
    wanted = options.format
    if wanted in (None, "slash"):
        slashed = find_slashed(lines, options, named=wanted == "slash")
        if slashed is not None:
            return Recognised(
                name="slash",
                task=slashed.reading.task,
                read=lambda intake: read_slashed(file, slashed, intake),
            )
    if wanted in (None, "columns"):
        layout = find_layout(file, options, named=wanted == "columns")
        if layout is not None:
            return Recognised(
                name="columns",
                task=layout.reading.task,
                read=lambda intake: read_columns(file, layout, intake),
            )
    if wanted in (None, "words"):
        segmented = find_segmented(lines, named=wanted == "words")
        if segmented is not None:
            return Recognised(
                name="words",
                task="segmentation",
                read=lambda intake: read_segmented(file, segmented, intake),
            )
    if wanted is not None:
        return None
    refuse_tags_alone(file.path, lines)
    return Recognised(name="text", read=lambda intake: read_text(file, intake))
