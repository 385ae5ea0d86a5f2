"""Arrow's stream format as bytes that can be appended, and Parquet made of it at the end.

A Parquet file that was not closed cannot be read: its index comes last. A stream of record batches
can, up to any of them; so rows are kept as a stream until all are there.
"""

import os
from pathlib import Path
from typing import Any

# Rows of a row group: small texts and vectors make some megabytes of it.
_ROW_GROUP_BYTES = 32 << 20


def stream_head(schema: Any) -> bytes:
    """Return the message that begins a stream."""
    return bytes(schema.serialize())


def stream_piece(batch: Any) -> bytes:
    """Return a record batch as a message of a stream."""
    return bytes(batch.serialize())


def stream_end() -> bytes:
    """Return the message that ends a stream: a continuation mark and a length of zero."""
    return b"\xff\xff\xff\xff\x00\x00\x00\x00"


def to_parquet(part: Path, target: Path) -> None:
    """Write a stream as Parquet, batch by batch; the target appears whole."""
    if not part.exists():
        return
    import pyarrow
    import pyarrow.parquet

    draft = target.with_name(target.name + ".part.parquet")
    with (
        pyarrow.OSFile(str(part)) as file,
        pyarrow.ipc.open_stream(file) as reader,
        pyarrow.parquet.ParquetWriter(draft, reader.schema, compression="zstd") as writer,
    ):
        held: list[Any] = []
        size = 0
        for batch in reader:
            held.append(batch)
            size += batch.nbytes
            if size >= _ROW_GROUP_BYTES:
                writer.write_table(pyarrow.Table.from_batches(held))
                held, size = [], 0
        if held:
            writer.write_table(pyarrow.Table.from_batches(held))
    os.replace(draft, target)


def stream_schema(part: Path) -> Any:
    """Return the schema of a stream that was begun; None where the part is gone."""
    if not part.exists():
        return None
    import pyarrow

    with pyarrow.OSFile(str(part)) as file, pyarrow.ipc.open_stream(file) as reader:
        return reader.schema
