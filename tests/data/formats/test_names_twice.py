"""A name that stands twice in an object, or in the head of a table: what it hides is not lost."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertfit.data.formats import ProblemLog, ReadOptions, read
from bertfit.data.formats.json_values import NAME_TWICE, decode_json
from bertfit.errors import DataError

_STRINGS = st.text(alphabet='a:"\\ 中', max_size=4)


class Pairs(list[tuple[str, Any]]):
    """An object as it is written, with names that may repeat."""


def _written(value: Any) -> str:
    if isinstance(value, Pairs):
        return "{" + ", ".join(f"{json.dumps(k)} : {_written(v)}" for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)


def _repeats(value: Any) -> bool:
    if isinstance(value, Pairs):
        names = [name for name, __ in value]
        return len(set(names)) < len(names) or any(_repeats(each) for __, each in value)
    return isinstance(value, list) and any(map(_repeats, value))


_VALUES = st.recursive(
    st.none() | st.integers() | _STRINGS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(st.tuples(_STRINGS, inner), max_size=3).map(Pairs)
    ),
)


@given(_VALUES, st.sampled_from(["", " ", "\t \r"]), st.sampled_from(["", "  "]))
def test_it_is_found_at_any_depth_and_only_there(value: Any, before: str, after: str) -> None:
    decoded, fault = decode_json(before + _written(value) + after, "a.jsonl", 3)
    assert (fault is not None) == _repeats(value)
    if fault is None:
        assert decoded == json.loads(_written(value))
    else:
        assert (fault.kind, fault.line, decoded) == (NAME_TWICE, 3, None)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_the_records_around_it_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    records = [
        '{"text": "at 10:30"}',
        '{"text": "a", "label": [], "text": "b"}',
        '{"text": "c", "entities": [{"start": 0, "end": 1, "start": 1, "label": "X"}]}',
        '{"text": "d"}',
    ]
    document = "[" + ",\n".join(records) + "]" if name == "a.json" else "\n".join(records)
    path.write_text(document)
    log = ProblemLog()
    assert [e.text for e in read(path, ReadOptions(on_error="skip"), log)] == ["at 10:30", "d"]
    assert [str(problem) for problem in log.problems] == [
        f"{path}:2: 'text' stands twice in one object. Leave the one that is meant.",
        f"{path}:3: 'start' stands twice in one object. Leave the one that is meant.",
    ]
    assert log.records_dropped == 2


def test_a_cell_of_a_table_is_looked_through(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        'text,entities\na,"[{""start"": 0, ""start"": 1, ""end"": 1, ""label"": ""X""}]"\n'
    )
    with pytest.raises(DataError, match=r"a\.csv:2: 'start' stands twice"):
        list(read(path))


def test_a_table_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label,label\na,[],[]\n")
    with pytest.raises(DataError, match=r"a\.csv:1: two columns are called 'label'"):
        list(read(tmp_path / "a.csv"))
    (tmp_path / "b.csv").write_text("Sentence #,Word,Tag,Word\n1,a,O,b\n")
    with pytest.raises(DataError, match=r"b\.csv:1: two columns are called 'Word'"):
        list(read(tmp_path / "b.csv"))
    (tmp_path / "c.csv").write_text("sentence_id,Word,word,tag\n1,a,b,O\n")
    with pytest.raises(DataError, match=r"c\.csv:1: two columns are called 'word'"):
        list(read(tmp_path / "c.csv"))
    table = pa.table([["a"], ["b"]], names=["text", "text"])
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("a.parquet", "a.arrow"):
        with pytest.raises(DataError, match=rf"{name}: two columns are called 'text'"):
            list(read(tmp_path / name))


def test_columns_without_a_name_may_be_several(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,label,,\na,"[[0, 1, ""X""]]",,\n')
    assert [example.text for example in read(path)] == ["a"]
