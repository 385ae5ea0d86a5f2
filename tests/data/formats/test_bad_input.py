"""Files that are no data: never a traceback, never a hang, always a file and a reason."""

import bz2
import gzip
import json
import lzma
import random
import resource
from pathlib import Path

import pytest

from bertfit.data.formats import ProblemLog, ReadOptions, read
from bertfit.data.formats.source import MIN_SUSPECT_BYTES, TextFile
from bertfit.errors import DataError

GOOD = '{"text": "Ada", "label": [[0, 3, "PER"]]}\n'


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        list(read(path))
    message = str(caught.value)
    assert str(path) in message
    return message


@pytest.mark.parametrize(
    ("name", "content", "records", "places"),
    [
        ("a.jsonl", GOOD.encode() + b"\xff\n" + GOOD.encode(), 2, 1),
        ("a.json", b"[" + GOOD.encode() + b"," + GOOD.encode() + b',\n"\xff"]', 2, 1),
        ("a.csv", b'text,label\na,"[]"\n\xff,[]\nb,[]\n', 2, 1),
        ("k.csv", b"Sentence #,Word,Tag\n1,a,O\n1,\xff,O\n2,b,O\n", 2, 1),
        ("a.conll", b"a\tO\n\n\xff\tO\n\nb\tO\n\n", 2, 1),
    ],
)
def test_a_bad_byte_counts_once_and_what_stands_before_is_read(
    tmp_path: Path, name: str, content: bytes, records: int, places: int
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    log = ProblemLog()
    assert len(list(read(path, ReadOptions(on_error="skip"), log))) == records
    assert log.by_kind == {"bad-utf8": places}
    assert len(log.problems) == log.records_dropped == places


@pytest.mark.parametrize("content", [b"", b"\n\n", b" \r\n\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    assert "is empty" in refusal(path)
    packed = tmp_path / "data.jsonl.gz"
    packed.write_bytes(gzip.compress(content))
    assert "is empty" in refusal(packed)


def test_a_missing_path_and_a_foreign_folder_are_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nothing.json")
    assert "is an empty folder. Name a file" in refusal(tmp_path)
    (tmp_path / "notes.md").write_text("x")
    assert "notes.md" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("a.jsonl", GOOD),
        ("a.conll", "a\tB-X\n\nb\tO\n\n"),
        ("a.csv", 'text,label\na,"[[0, 1, ""X""]]"\n'),
        ("a.txt", "x\n"),
    ],
)
def test_bytes_that_are_not_utf8_are_refused_with_their_line(
    tmp_path: Path, name: str, start: str
) -> None:
    path = tmp_path / name
    line = start.count("\n") + 1
    path.write_bytes(start.encode() + "张三\tO\n\n".encode("gb18030"))
    assert f"{path}:{line}: not UTF-8 at byte 1" in refusal(path)
    log = ProblemLog()
    kept = list(read(path, ReadOptions(on_error="skip"), log))
    assert len(kept) == log.records_read > 0
    assert log.records_dropped == 1


def test_utf16_and_archives_are_named(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes("text,label\n".encode("utf-16"))
    assert "is UTF-16. Save" in refusal(path)
    for encoding in ("utf-32", "utf-32-be"):
        path.write_bytes("\ufefftext,label\n".encode(encoding))
        assert "is UTF-32. Save" in refusal(path)
    path.write_bytes(b"PK\x03\x04rest of an archive")
    assert "zip archive or an Excel file" in refusal(path)
    for pack, packer, unpacker in ((bz2, "bzip2", "bunzip2"), (lzma, "xz", "unxz")):
        path.write_bytes(pack.compress(GOOD.encode()))
        assert f"is packed with {packer}. Unpack it first ({unpacker})" in refusal(path)
    path.write_text("BZh\tB-PER\n\n")
    assert [example.text for example in read(path)] == ["BZh"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "a\x00b"}', "a NUL byte at byte 12"),
        ('{"text": "\\ud83d", "label": []}', "half a UTF-16 pair"),
        ('{"text": "a", "score": NaN}', "NaN is no JSON number"),
        ('{"text": "a", "label": [[0, 1, "X"]}', "not valid JSON"),
        ("[" * 10_000 + "]" * 10_000, "nested too deeply"),
        ('{"text": "a", "label": ' + "[" * 10_000 + "]" * 10_000 + "}", "nested too deeply"),
        ('{"text": ' + "9" * 5000 + "}", "not valid JSON"),
        ('{"text": 5}', "no text"),
        ("17", "a record is an object with a text"),
        ('"text"', "a record is an object with a text"),
        ("null", "a record is an object with a text"),
        ('{"text": "a", "label": [[0, 99999999999999999999, "X"]]}', "outside the text"),
        ('{"text": "a", "label": "X"}', "'X' is no span"),
    ],
)
def test_a_bad_record_is_refused_with_its_line(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(GOOD + line + "\n" + GOOD)
    message = refusal(path)
    assert f"{path}:2: " in message
    assert reason in message
    assert len(list(read(path, ReadOptions(on_error="skip")))) == 2


def test_deep_json_as_a_whole_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text("[" * 100_000)
    refusal(path)
    path.write_text('{"a": ' * 100_000)
    refusal(path)


def test_a_cut_off_array_is_refused_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    text = json.dumps([{"text": "Ada", "label": [[0, 3, "PER"]]}] * 3, indent=1)
    path.write_text(text[:-2])
    assert "the file ends inside its array" in refusal(path)
    path.write_text(text[: len(text) // 2])
    assert "not valid JSON" in refusal(path)


def test_twenty_faults_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(GOOD + "{\n" * 50)
    message = refusal(path)
    assert message.count("not valid JSON") == 20
    assert "... 50 errors in all, the first 20 shown." in message
    assert "leave out the 50 faulty records with --on-error skip" in message


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write(GOOD.encode())
        for _block in range(100):
            file.write(b"\n" * (1 << 20))
    assert "expands more than 250 times" in refusal(path)
    unpacked = 0
    with pytest.raises(DataError, match="expands more than"):
        for chunk in TextFile(path=path, is_gzip=True).chunks():
            unpacked += len(chunk)
    assert unpacked <= MIN_SUSPECT_BYTES, "the rest of it is left alone"


@pytest.mark.parametrize("size", [10, 40])
def test_a_long_line_is_read_or_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "data.jsonl"
    long = json.dumps({"text": "ab " * (size << 20 >> 1), "label": []})
    path.write_text(GOOD + long + "\n" + GOOD)
    if size == 10:
        assert len(list(read(path))) == 3
    else:
        assert ":2: longer than 16777216 bytes" in refusal(path)
        assert len(list(read(path, ReadOptions(on_error="skip")))) == 2


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    whole = gzip.compress((GOOD * 5000).encode())
    path.write_bytes(whole[: len(whole) // 2])
    assert "damaged gzip" in refusal(path)
    path.write_bytes(whole[:40] + b"\0\0\0\0" + whole[44:])
    assert "damaged gzip" in refusal(path)


@pytest.mark.parametrize("name", ["data.parquet", "data.arrow", "data"])
def test_a_damaged_table_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"PAR1" + b"\x15\x04" * 100)
    assert "damaged" in refusal(path)


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_end_in_a_refusal_or_in_records(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "data"
    generator = random.Random(seed)
    alphabet = generator.choice([bytes(range(256)), b'{}[]",:\n ', b"ab\t\n B-XIO", b"#-/\n\t ;|,"])
    path.write_bytes(bytes(generator.choices(alphabet, k=3000)))
    try:
        for example in read(path):
            assert example.text is not None
    except DataError as error:
        assert str(path) in str(error)


@pytest.mark.slow
def test_a_large_file_streams_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    with path.open("w") as file:
        for number in range(200_000):
            record = {"text": f"{number} " + "word " * 200, "label": [[0, 1, "X"]]}
            file.write(json.dumps(record) + "\n")
    assert path.stat().st_size > 190 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sum(1 for _example in read(path)) == 200_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
