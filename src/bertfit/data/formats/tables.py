"""Tables: CSV, Parquet, Arrow, and data sets of the Hugging Face hub, on disk or by name.

Their rows are records with named fields, so `records` reads what is in them.
"""

import ast
import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertfit.data.formats.column_layout import is_tag
from bertfit.data.formats.json_values import NAME_TWICE, decode_json
from bertfit.data.formats.problems import ProblemLog
from bertfit.data.formats.source import MAX_LINE_BYTES, TextFile
from bertfit.data.formats.span_records import (
    SPAN_KEYS,
    TAG_KEYS,
    TEXT_KEYS,
    TOKEN_KEYS,
    describe,
)
from bertfit.errors import DataError
from bertfit.language import _
from bertfit.types import Problem

Row = tuple[int, Any, Problem | None]
ClassNames = Mapping[str, Sequence[str]]
DELIMITERS = (",", "\t", ";", "|")
_TEXTS = frozenset(("text", "sentence", "content", "document"))
_WORDS = frozenset(("tokens", "words"))
_TAGS = frozenset((*TAG_KEYS, "tag"))
_LISTS = frozenset((*_WORDS, *SPAN_KEYS, *TAG_KEYS))
_SENTENCE_KEYS = ("sentence #", "sentence_id", "sent_id", "sentence_no", "sentence id", "sentence")
_WORD_KEYS = ("word", "words", "token", "tokens", "char", "character", "form")
_BATCH_ROWS = 500
_STRING = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)


def find_delimiter(first_line: str, *, named: bool = False) -> str | None:
    """Return the delimiter if the line is the header of a table of texts, else None.

    Args:
        first_line: of the file.
        named: the file is said to be a table, so a column of texts will do, without any of tags.
    """
    csv.field_size_limit(MAX_LINE_BYTES)  # else a long first line is an error
    for delimiter in DELIMITERS:
        names = {
            name.strip().lower() for name in next(csv.reader([first_line], delimiter=delimiter), [])
        }
        if named and names & set(TEXT_KEYS):
            return delimiter
        texts = names & {*TEXT_KEYS, *TOKEN_KEYS, *_WORD_KEYS}
        tags = names & {*TAG_KEYS, *SPAN_KEYS, "tag", "pos"}
        if len(names) > 1 and texts and (tags - texts or len(texts & {"text", *tags}) > 1):
            return delimiter
    return None


def is_token_table(names: Sequence[str]) -> bool:
    """Say whether a header names a word, a tag and the sentence they belong to."""
    lower = {name.strip().lower() for name in names}
    return bool(lower & set(_WORD_KEYS)) and bool(lower & set(_SENTENCE_KEYS)) and len(lower) > 2


def csv_rows(file: TextFile, delimiter: str, log: ProblemLog) -> Iterator[Row]:
    """Yield (line, record, fault); cells that hold lists or objects are decoded."""
    path = str(file.path)
    names: list[str] = []
    decoded: list[tuple[int, str, str]] = []  # the columns that are no plain text
    for line, row, fault in _csv_lines(file, delimiter, log):
        if row is None:
            yield line, None, fault
        elif not names:
            names = row
            keyed = enumerate(zip(names, map(str.lower, names), strict=True))
            decoded = [(place, *pair) for place, pair in keyed if pair[1] not in _TEXTS]
        else:
            # `_csv_lines` gives as many cells as names; to say `strict` takes as long as the rest.
            record: dict[str, Any] = dict(zip(names, row))  # noqa: B905
            for place, name, key in decoded:
                record[name], fault = _cell(key, row[place], path, line)
                if fault is not None:
                    break
            yield line, record if fault is None else None, fault


def _csv_lines(
    file: TextFile, delimiter: str, log: ProblemLog
) -> Iterator[tuple[int, list[str] | None, Problem | None]]:
    """Yield (line, cells, fault): first the names of the columns, then rows of as many cells."""
    path = str(file.path)
    # A cell holds a text of any length; the module's own limit of 128 KiB is for all readers.
    csv.field_size_limit(MAX_LINE_BYTES)
    holes: set[int] = set()  # lines that could not be read

    def lines() -> Iterator[str]:
        for number, text in file.lines(log, keep_returns=True):
            if text is None:
                holes.add(number)
            yield (text or "") + "\n"

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    names: list[str] = []
    line = 1
    try:
        for row in reader:
            if not names:
                names = [name.strip() for name in row]
                _refuse_twins(names, f"{path}:{line}")
                if names:
                    yield line, names, None
            elif holes and not holes.isdisjoint(range(line, reader.line_num + 1)):
                yield line, None, None
            elif len(row) == len(names):
                yield line, row, None
            elif row:
                yield line, None, _wrong_count(row, names, path, line)
            line = reader.line_num + 1
    except csv.Error as error:
        message = _("not valid CSV: {reason}.").format(reason=error)
        yield line, None, Problem(path=path, line=line, kind="bad-csv", message=message)


def _refuse_twins(names: Sequence[str], place: str) -> None:
    """Refuse a table of which one column would hide another.

    Raises:
        DataError: two columns have one name.
    """
    twin = next((name for name, count in Counter(names).items() if name and count > 1), None)
    if twin is not None:
        raise DataError(
            _("{place}: two columns are called {name}. Give one of them another name.").format(
                place=place, name=describe(twin)
            )
        )


def _wrong_count(row: Sequence[str], names: Sequence[str], path: str, line: int) -> Problem:
    message = _("{found} cells where the header has {expected}.").format(
        found=len(row), expected=len(names)
    )
    return Problem(path=path, line=line, kind="column-count", message=message)


def _cell(key: str, cell: str, path: str, line: int) -> tuple[Any, Problem | None]:
    """Decode a cell: JSON, a Python or NumPy list, tags between spaces, or a plain string.

    Returns:
        The value, and a fault where it has two meanings.
    """
    if cell[:1] in ("[", "{"):
        value, fault = decode_json(cell, path, line)
        if fault is None:
            return value, None
        return (None, fault) if fault.kind == NAME_TWICE else (_not_json(cell), None)
    return _plain_cell(key, cell), None


def _plain_cell(key: str, cell: str) -> str | list[str] | None:
    if not cell and key in _LISTS:
        return None
    if key in _TAGS:
        tags = cell.split()
        return tags if len(tags) > 1 and all(is_tag(tag) for tag in tags) else cell
    return cell.split(" ") if key in _WORDS else cell


def _not_json(cell: str) -> Any:
    strings = [match.group(1) or match.group(2) or "" for match in _STRING.finditer(cell)]
    rest = _STRING.sub("", cell)
    if len(strings) > 1 and "," not in rest and "{" not in rest:
        return strings  # NumPy: ['a' 'b']
    try:
        return ast.literal_eval(cell)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return cell


def token_rows(file: TextFile, delimiter: str, log: ProblemLog) -> Iterator[Row]:
    """Group the rows of a table with one word a row into records with words and tags.

    The sentence column may name its sentence in every row, or in the first row only.
    """
    current: str | None = None
    record: dict[str, list[str]] = {}
    layers: dict[str, int] = {}  # where words and tags stand
    sentence_at = -1
    start = 0
    for line, row, fault in _csv_lines(file, delimiter, log):
        if row is None:
            yield line, None, fault
            continue
        if sentence_at < 0:
            names = [name.lower() for name in row]
            _refuse_twins(names, f"{file.path}:{line}")
            place_of = {name: place for place, name in enumerate(names)}
            sentence_at = next(place_of[key] for key in _SENTENCE_KEYS if key in place_of)
            for key, place in place_of.items():
                if key not in _SENTENCE_KEYS:
                    layers.setdefault("tokens" if key in _WORD_KEYS else key, place)
            continue
        sentence = row[sentence_at]
        if record and sentence and sentence != current:
            yield start, record, None
            record = {}
        current = sentence or current
        if record:
            for layer, place in layers.items():
                record[layer].append(row[place])
        else:
            start = line
            record = {layer: [row[place]] for layer, place in layers.items()}
    if record:
        yield start, record, None


def parquet_rows(path: Path) -> tuple[Iterator[Row], ClassNames]:
    """Return the rows of a Parquet file, numbered from 1, and the names of its class labels.

    Raises:
        DataError: the file is damaged.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        names = file.schema_arrow.names
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error
    _refuse_twins(names, str(path))
    batches = file.iter_batches(batch_size=_BATCH_ROWS)
    return _batch_rows(path, batches), class_names(file.schema_arrow.metadata)


def arrow_rows(path: Path) -> tuple[Iterator[Row], ClassNames]:
    """Return the rows of an Arrow file (stream or random access) and its class names.

    Raises:
        DataError: the file is damaged.
    """
    import pyarrow
    import pyarrow.ipc

    try:
        source = pyarrow.memory_map(str(path))
        if source.read(6) == b"ARROW1":
            reader = pyarrow.ipc.open_file(source)
            batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        else:
            source.seek(0)
            reader = pyarrow.ipc.open_stream(source)
            batches = iter(reader)
        names = reader.schema.names
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error
    _refuse_twins(names, str(path))
    return _batch_rows(path, batches), class_names(reader.schema.metadata)


def _batch_rows(path: Path, batches: Iterator[Any]) -> Iterator[Row]:
    import pyarrow

    number = 0
    try:
        for batch in batches:
            # pyarrow believes the offsets of a file, and a damaged one crashes the process.
            batch.validate(full=True)
            has_nulls = any(column.null_count for column in batch.columns)
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                for row in batch.slice(start, _BATCH_ROWS).to_pylist():
                    number += 1
                    yield number, _without_nulls(row) if has_nulls else row, None
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        # The last two: text that is not UTF-8, and dates beyond the year 9999.
        raise _damaged(path, error) from error


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """Leave out the columns that are null in this row."""
    if None not in row.values():
        return row
    return {key: value for key, value in row.items() if value is not None}


def _damaged(path: Path, error: Exception) -> DataError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return DataError(
        _("{path} is damaged or of another kind: {reason}.").format(path=path, reason=reason)
    )


def class_names(metadata: Mapping[bytes, bytes] | None) -> ClassNames:
    """Return the names behind integer tags from the metadata that `datasets` writes."""
    raw = (metadata or {}).get(b"huggingface")
    if raw is None:
        return {}
    try:
        features = json.loads(raw)["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    if not isinstance(features, dict):
        return {}
    return {key: names for key, value in features.items() if (names := _names(value))}


def _names(feature: Any) -> list[str] | None:
    if isinstance(feature, list) and len(feature) == 1:
        return _names(feature[0])
    if not isinstance(feature, dict):
        return None
    names = feature.get("names")
    if isinstance(names, list):
        return [str(name) for name in names]
    return _names(feature.get("feature"))


def saved_files(folder: Path) -> list[Path] | None:
    """Return the Arrow files of a folder that `datasets` saved, or None if it is no such folder.

    Raises:
        DataError: the folder holds several splits, of which one must be named.
    """
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(each.name for each in folder.iterdir() if (each / "state.json").is_file())
        raise choose_split(folder, [str(folder / split) for split in splits])
    state = folder / "state.json"
    if not state.is_file():
        return None
    try:
        files = [
            folder / each["filename"] for each in json.loads(state.read_bytes())["_data_files"]
        ]
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise _damaged(state, error) from error
    missing = [str(each) for each in files if not each.is_file()]
    if missing or not files:
        raise DataError(
            _("{path} names files that are not there: {files}.").format(
                path=state, files=", ".join(missing) or "-"
            )
        )
    return files


def choose_split(folder: Path, choices: Sequence[str]) -> DataError:
    """Make the error that asks for one of several splits."""
    return DataError(
        _("{path} holds several splits. Name one of them: {choices}.").format(
            path=folder, choices=", ".join(choices)
        )
    )


def parquet_shards(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder if they are the shards of one split.

    Raises:
        DataError: they belong to several splits.
    """
    files = sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))
    splits: dict[str, list[str]] = {}
    for each in files:
        split = re.sub(r"-\d+-of-\d+$", "", each.stem)
        splits.setdefault(split, []).append(str(each))
    if len(splits) > 1:
        raise choose_split(folder, [names[0] for names in splits.values()])
    return files


def hub_rows(name: str) -> tuple[Iterator[Row], ClassNames]:
    """Return the rows of a data set of the Hugging Face hub.

    Args:
        name: `owner/name`, or `owner/name:split`; the split is `train` unless named.

    Raises:
        DataError: the package `datasets` is missing, or the data set cannot be had.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            _(
                "a data set of the hub needs the package 'datasets': pip install "
                "'bertfit[datasets]'. Or save it as a folder and give its path."
            )
        ) from error
    identifier, _colon, split = name.partition(":")
    try:
        data = datasets.load_dataset(identifier, split=split or "train", streaming=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            _("the hub has no data set '{name}' that can be read here: {reason}.").format(
                name=name, reason=error
            )
        ) from error
    features = data.features.to_dict() if data.features is not None else {}
    names = {key: found for key, value in features.items() if (found := _names(value))}
    rows = ((number, _without_nulls(row), None) for number, row in enumerate(data, 1))
    return rows, names
