"""Vectors as bytes of output files: Parquet, a NumPy file to map, safetensors.

Numbers are little-endian, as every reader of these formats expects.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from bertfit.data.formats.write_spans import record_id
from bertfit.errors import ConfigError
from bertfit.jobs.arrow_stream import stream_end, stream_head, stream_piece, to_parquet
from bertfit.jobs.embed import TextVectors, What
from bertfit.jobs.prediction_formats import move
from bertfit.language import _
from bertfit.types import Example

Dtype = Literal["fp32", "fp16"]
Rows = list[tuple[Example, TextVectors]]
VECTOR_SUFFIXES = (".parquet", ".npy", ".safetensors")
# A shard is copied at the end; a file below this size only gets its name.
SHARD_BYTES = 2 << 30
_NUMPY = {"fp32": "<f4", "fp16": "<f2"}
_NPY_HEADER_BYTES = 128
_TENSOR_HEADER_BYTES = 256
_COPY_BYTES = 8 << 20


def shape_of_row(what: What, concatenate: bool, hidden_size: int) -> tuple[int, ...]:
    """Return the shape of what one row holds."""
    if what == "entities":
        return (2 * hidden_size,) if concatenate else (2, hidden_size)
    return (hidden_size,)


def suffix_of(path: Path) -> str:
    """Return the suffix of an output of vectors.

    Raises:
        ConfigError: it is none of `VECTOR_SUFFIXES`.
    """
    if path.suffix not in VECTOR_SUFFIXES:
        raise ConfigError(
            _("--output {path}: let its name end in {suffixes}.").format(
                path=path, suffixes=", ".join(VECTOR_SUFFIXES)
            )
        )
    return path.suffix


def targets_of(path: Path) -> list[Path]:
    """Return the files that an output consists of."""
    if path.suffix == ".parquet":
        return [path]
    return [path, path.with_name(path.stem + ".rows.jsonl")]


class ArrayFormat:
    """Raw numbers in one part behind room for a header, and who they belong to in another.

    Args:
        suffix: `.npy` or `.safetensors`.
        row_shape: the shape of one row.
        dtype: of the numbers.
        shard_bytes: safetensors beyond this size are several files.
    """

    def __init__(
        self,
        suffix: str,
        row_shape: tuple[int, ...],
        dtype: Dtype,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self._is_npy = suffix == ".npy"
        self._row_shape = row_shape
        self._dtype = dtype
        self._row_bytes = int(np.prod(row_shape)) * np.dtype(_NUMPY[dtype]).itemsize
        self._shard_bytes = shard_bytes
        self._header_bytes = _NPY_HEADER_BYTES if self._is_npy else _TENSOR_HEADER_BYTES

    def head(self) -> Sequence[bytes]:
        """Return room for the header, which is known at the end."""
        return [self._header(0), b""]

    def pieces(self, rows: Rows, position: int) -> Sequence[bytes]:
        """Return the numbers, and a JSON line for each record."""
        numbers = [found.vectors for __, found in rows]
        lines = [json.dumps(_row(*row), ensure_ascii=False, default=str) + "\n" for row in rows]
        raw = b""
        if numbers:
            raw = np.concatenate(numbers).astype(_NUMPY[self._dtype]).tobytes()
        return [raw, "".join(lines).encode()]

    def tail(self) -> Sequence[bytes]:
        """Return nothing: these formats have no end."""
        return [b"", b""]

    def finish(self, parts: Sequence[Path], targets: Sequence[Path]) -> None:
        """Write the header, and give the parts their names."""
        if parts[1].exists():
            os.replace(parts[1], targets[1])
        if not parts[0].exists():
            return
        num_rows = (parts[0].stat().st_size - self._header_bytes) // self._row_bytes
        if not self._is_npy and num_rows * self._row_bytes > self._shard_bytes:
            self._shards(parts[0], targets[0], num_rows)
            return
        with parts[0].open("r+b") as file:
            file.write(self._header(num_rows))
        move(parts[0], targets[0])

    def _shards(self, part: Path, target: Path, num_rows: int) -> None:
        rows_each = max(1, self._shard_bytes // self._row_bytes)
        count = -(-num_rows // rows_each)
        with part.open("rb") as file:
            file.seek(self._header_bytes)
            for number in range(count):
                rows = min(rows_each, num_rows - number * rows_each)
                name = f"{target.stem}-{number + 1:05d}-of-{count:05d}.safetensors"
                with target.with_name(name).open("wb") as shard:
                    shard.write(self._header(rows))
                    _copy(file, shard, rows * self._row_bytes)

    def _header(self, num_rows: int) -> bytes:
        shape = (num_rows, *self._row_shape)
        if self._is_npy:
            # numpy.lib.format, version 1.0: magic, version, length, a dict padded with spaces.
            text = repr({"descr": _NUMPY[self._dtype], "fortran_order": False, "shape": shape})
            return (
                b"\x93NUMPY\x01\x00"
                + (118).to_bytes(2, "little")
                + text.ljust(117).encode()
                + b"\n"
            )
        names = {"fp32": "F32", "fp16": "F16"}
        entry = {
            "dtype": names[self._dtype],
            "shape": list(shape),
            "data_offsets": [0, num_rows * self._row_bytes],
        }
        text = json.dumps({"embeddings": entry}).ljust(_TENSOR_HEADER_BYTES - 8)
        return (_TENSOR_HEADER_BYTES - 8).to_bytes(8, "little") + text.encode()


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    while size > 0:
        chunk = source.read(min(size, _COPY_BYTES))
        target.write(chunk)
        size -= len(chunk)


def _row(example: Example, found: TextVectors) -> dict[str, Any]:
    row: dict[str, Any] = {"id": record_id(example), **carried(example)}
    if found.offsets is not None:
        row["offsets"] = found.offsets.tolist()
    return row


def carried(example: Example) -> dict[str, str | int | float | bool]:
    """Return what goes along with a record: its fields that are one value (labels, groups)."""
    return {
        key: value
        for key, value in example.extra.items()
        if isinstance(value, str | int | float | bool) and key not in ("id", "text")
    }


class ParquetFormat:
    """One row a record, or a token: id, what the record carried, and the vector.

    Args:
        what: which vectors.
        concatenate: both entities in one vector; else two columns.
        hidden_size: H.
        dtype: of the numbers.
        schema: of a stream that is gone on with; None takes the columns from the first records.
    """

    def __init__(
        self,
        what: What,
        concatenate: bool,
        hidden_size: int,
        dtype: Dtype,
        schema: Any = None,
    ) -> None:
        import pyarrow

        self._what, self._concatenate = what, concatenate
        self._numpy = _NUMPY[dtype]
        numbers = pyarrow.float32() if dtype == "fp32" else pyarrow.float16()
        self._numbers = numbers
        size = 2 * hidden_size if what == "entities" and concatenate else hidden_size
        self._size = size
        self._vector = pyarrow.list_(numbers, size)
        self._schema = schema

    def head(self) -> Sequence[bytes]:
        """Return the schema; for no records at all it has no carried columns."""
        if self._schema is None:
            self._schema = self._schema_of([])
        return [stream_head(self._schema)]

    def pieces(self, rows: Rows, position: int) -> Sequence[bytes]:
        """Return a record batch."""
        import pyarrow

        if self._schema is None:
            self._schema = self._schema_of([carried(example) for example, __ in rows])
        repeats = [1 if found.offsets is None else len(found.offsets) for __, found in rows]
        columns: dict[str, Any] = {
            "id": _repeated([str(record_id(example)) for example, __ in rows], repeats)
        }
        own = self._own_columns(rows)
        values = [carried(example) for example, __ in rows]
        for field in self._schema:
            if field.name != "id" and field.name not in own:
                column = [_fitting(row.get(field.name), field.type) for row in values]
                columns[field.name] = _repeated(column, repeats)
        columns.update(own)
        arrays = [
            column if isinstance(column, pyarrow.Array) else pyarrow.array(column, field.type)
            for field, column in ((field, columns[field.name]) for field in self._schema)
        ]
        return [stream_piece(pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema))]

    def tail(self) -> Sequence[bytes]:
        """Return the end of the stream."""
        return [stream_end()]

    def finish(self, parts: Sequence[Path], targets: Sequence[Path]) -> None:
        """Write the stream as Parquet."""
        to_parquet(parts[0], targets[0])

    def _own_columns(self, rows: Rows) -> dict[str, Any]:
        vectors = [found.vectors for __, found in rows]
        if self._what == "entities" and not self._concatenate:
            return {
                name: self._array([found[[row]] for found in vectors])
                for row, name in enumerate(("e1_vector", "e2_vector"))
            }
        if self._what == "tokens":
            offsets = [found.offsets for __, found in rows if found.offsets is not None]
            stacked = np.concatenate(offsets) if offsets else np.zeros((0, 2), np.int32)
            numbers = [np.arange(len(each), dtype=np.int32) for each in offsets]
            return {
                "token": np.concatenate(numbers) if numbers else np.zeros(0, np.int32),
                "start": np.ascontiguousarray(stacked[:, 0]),
                "end": np.ascontiguousarray(stacked[:, 1]),
                "vector": self._array(vectors),
            }
        return {"vector": self._array(vectors)}

    def _array(self, vectors: Sequence[Any]) -> Any:
        import pyarrow

        flat = np.concatenate([each.reshape(-1) for each in vectors]) if vectors else np.zeros(0)
        numbers = pyarrow.array(flat.astype(self._numpy))
        return pyarrow.FixedSizeListArray.from_arrays(numbers, self._size)

    def _schema_of(self, values: Sequence[dict[str, Any]]) -> Any:
        import pyarrow

        own = {
            "sentence": [("vector", self._vector)],
            "entities": [("vector", self._vector)]
            if self._concatenate
            else [("e1_vector", self._vector), ("e2_vector", self._vector)],
            "tokens": [
                ("token", pyarrow.int32()),
                ("start", pyarrow.int32()),
                ("end", pyarrow.int32()),
                ("vector", self._vector),
            ],
        }[self._what]
        taken = {"id", *(name for name, __ in own)}
        kinds: dict[str, set[type]] = {}
        for row in values:
            for key, value in row.items():
                if key not in taken:
                    kinds.setdefault(key, set()).add(type(value))
        types = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
        columns = [
            (key, types.get(next(iter(found)), pyarrow.string()))
            if len(found) == 1
            else (key, pyarrow.float64() if found == {int, float} else pyarrow.string())
            for key, found in kinds.items()
        ]
        return pyarrow.schema([("id", pyarrow.string()), *columns, *own])


def _repeated(values: Sequence[Any], repeats: Sequence[int]) -> list[Any]:
    return [value for value, count in zip(values, repeats, strict=True) for __ in range(count)]


def _fitting(value: Any, kind: Any) -> Any:
    """Return a value in the type of its column; text where the column is text; else nothing."""
    import pyarrow

    if value is None:
        return None
    if pyarrow.types.is_string(kind):
        return str(value)
    if pyarrow.types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if pyarrow.types.is_floating(kind):
        return float(value)
    return value if isinstance(value, int) and abs(value) < 2**63 else None
