"""Parquet, Arrow and gzip files with flipped bits, cut off, or written over in part.

Read in a process of its own: what a damaged file may bring down is a library in C++.
"""

import gzip
import io
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

READER = """
import sys, time
from pathlib import Path
from bertfit.data.formats import ProblemLog, ReadOptions, read
from bertfit.errors import DataError
from data.test_hostile import MOST_BYTES, MOST_SECONDS, peak_bytes, time_limit
for path in sorted(Path(sys.argv[1]).iterdir()):
    print(path.name, end=" ", flush=True)
    before = peak_bytes(reset=True)
    try:
        with time_limit(MOST_SECONDS):
            count = sum(1 for __ in read(path, ReadOptions(on_error="skip"), ProblemLog()))
        end = f"{count} records"
    except DataError as error:
        end = "refused" if str(path) in str(error) else repr(error)
    except BaseException as error:
        end = repr(error)
    if peak_bytes() - before > MOST_BYTES:
        end += " of too many bytes"
    print(end, flush=True)
"""


def _sound() -> dict[str, bytes]:
    rows = range(200)
    words = pa.table(
        {
            "tokens": [["Anna", "住在", "Rome"][: 1 + i % 3] for i in rows],
            "ner_tags": pa.array([[1, 0, 2][: 1 + i % 3] for i in rows], pa.list_(pa.int64())),
        },
        metadata={
            "huggingface": json.dumps(
                {"info": {"features": {"ner_tags": {"feature": {"names": ["O", "B-A", "B-B"]}}}}}
            )
        },
    )
    spans = pa.table(
        {
            "text": pa.array(["Anna lives in Rome"] * 200).dictionary_encode(),
            "entities": [[{"start": 0, "end": 4, "label": "PER"}]] * 200,
            "day": pa.array(rows, pa.timestamp("ns")),
        }
    )
    files = {}
    for name, table in (("words", words), ("spans", spans), ("few", words.slice(0, 3))):
        for compression in ("none", "snappy", "zstd"):
            parquet = io.BytesIO()
            pa.parquet.write_table(table, parquet, compression=compression)
            files[f"{name}-{compression}.parquet"] = parquet.getvalue()
        for compression in (None, "zstd"):
            options = pa.ipc.IpcWriteOptions(compression=compression)
            for kind, new in (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
                arrow = io.BytesIO()
                with new(arrow, table.schema, options=options) as writer:
                    writer.write_table(table)
                files[f"{name}-{compression}-{kind}.arrow"] = arrow.getvalue()
    files["lines.jsonl.gz"] = gzip.compress(b'{"text": "Anna", "entities": []}\n' * 2000)
    files["words.parquet.gz"] = gzip.compress(files["words-snappy.parquet"])
    return files


def _damaged(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    kind = rng.random()
    if kind < 0.15:
        return bytes(changed[: rng.randrange(len(changed))])
    for __ in range(rng.choice([1, 1, 2, 4])):
        # What a table says about itself stands at its ends.
        near = rng.choice([len(changed), min(600, len(changed))])
        place = rng.choice([rng.randrange(near), len(changed) - 1 - rng.randrange(near)])
        if kind < 0.7:
            changed[place] ^= 1 << rng.randrange(8)
        else:
            changed[place] = rng.choice([0, 127, 128, 255])
    return bytes(changed)


def _ends(folder: Path) -> Iterator[str]:
    """Read every file of a folder; yield how that ended where it should not."""
    done = subprocess.run(
        [sys.executable, "-c", READER, str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    if done.returncode != 0:
        yield f"exit {done.returncode}: {done.stdout[-100:]} {done.stderr[-500:]}"
    for line in done.stdout.splitlines():
        if not line.endswith((" refused", " records")):
            yield line


def test_the_sound_tables_are_read(tmp_path: Path) -> None:
    for name, content in _sound().items():
        (tmp_path / name).write_bytes(content)
    assert list(_ends(tmp_path)) == []


@pytest.mark.parametrize(
    ("count", "seed"), [(600, 0), pytest.param(6000, 1, marks=pytest.mark.slow)]
)
def test_damaged_tables_are_read_or_refused(tmp_path: Path, count: int, seed: int) -> None:
    rng = random.Random(seed)
    sound = sorted(_sound().items())
    for number in range(count):
        name, content = sound[number % len(sound)]
        (tmp_path / f"{number:05}-{name}").write_bytes(_damaged(content, rng))
    assert list(_ends(tmp_path)) == []


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_column_whose_name_is_no_text_is_damage(tmp_path: Path, kind: str) -> None:
    table = pa.table({"text": ["a"], "né": ["b"]})
    out = io.BytesIO()
    if kind == "parquet":
        pa.parquet.write_table(table, out, store_schema=False)
    else:
        with pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
    (tmp_path / f"a.{kind}").write_bytes(out.getvalue().replace("né".encode(), b"n\xff\xff"))
    assert list(_ends(tmp_path)) == []
