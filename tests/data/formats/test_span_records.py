"""JSON records with spans, in every spelling, and offsets in every way of counting."""

import json
from pathlib import Path
from typing import Any

import pytest

from bertfit.data.formats import ProblemLog, ReadOptions, read, sniff
from bertfit.errors import DataError
from bertfit.types import Example

TEXT = "Ada lives in Bonn."
BONN = {"start": 13, "end": 17, "label": "LOC"}


def found(example: Example) -> list[tuple[str, str]]:
    return [(example.text[e.start : e.end], e.label) for e in example.entities or ()]


def read_records(tmp_path: Path, *records: Any, **options: Any) -> list[Example]:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), "utf-8")
    return list(read(path, ReadOptions(**options)))


@pytest.mark.parametrize(
    "record",
    [
        {"text": TEXT, "label": [[0, 3, "PER"], [13, 17, "LOC"]]},
        {"data": TEXT, "labels": [[0, 3, "PER"], [13, 17, "LOC"]]},
        {"id": 4, "content": TEXT, "entities": [["PER", 0, 3], ["LOC", 13, 17]]},
        {"text": TEXT, "spans": [[0, 3, "PER", "Ada"], [13, 17, "LOC", "Bonn"]]},
        {"my_text": TEXT, "my_spans": [[0, 3, "PER"], [13, 17, "LOC"]], "id": "x"},
        {"text": TEXT, "entities": [{"start": 0, "end": 3, "label": "PER"}, BONN]},
        {
            "text": TEXT,
            "entities": [
                {"start_offset": 0, "end_offset": 3, "label": "PER", "id": 1},
                {"start_offset": 13, "end_offset": 17, "label": "LOC", "id": 2},
            ],
            "relations": [{"from_id": 1, "to_id": 2, "type": "lives"}],
            "Comments": [],
        },
        {
            "text": TEXT,
            "entity_list": [
                {"entity_index": {"begin": 0, "end": 3}, "entity_type": "PER", "entity": "Ada"},
                {"entity_index": {"begin": 13, "end": 17}, "entity_type": "LOC", "entity": "Bonn"},
            ],
        },
        {
            "text": TEXT,
            "entities": [
                {"start_idx": 0, "end_idx": 2, "type": "PER", "entity": "Ada"},
                {"start_idx": 13, "end_idx": 16, "type": "LOC", "entity": "Bonn"},
            ],
        },
        {"text": TEXT, "label": {"PER": {"Ada": [[0, 2]]}, "LOC": {"Bonn": [[13, 16]]}}},
        {"text": TEXT, "entities": [{"offset": 0, "length": 3, "type": "PER"}, BONN]},
        {"text": TEXT, "entities": [{"span": [0, 3], "label": ["PER"]}, BONN]},
        {
            "content": TEXT,
            "annotation": [
                {"label": ["PER"], "points": [{"start": 0, "end": 2, "text": "Ada"}]},
                {"label": ["LOC"], "points": [{"start": 13, "end": 16, "text": "Bonn"}]},
            ],
        },
        [TEXT, {"entities": [[0, 3, "PER"], [13, 17, "LOC"]]}],
        {"tokens": TEXT[:-1].split(), "ner_tags": ["B-PER", "O", "O", "B-LOC"]},
        {"text": TEXT[:-1].split(), "labels": ["B-PER", "O", "O", "B-LOC"]},
        {"text": TEXT[:-1], "labels": ["B-PER", "O", "O", "B-LOC"]},
    ],
)
def test_every_spelling_gives_the_same_entities(tmp_path: Path, record: Any) -> None:
    (example,) = read_records(tmp_path, record)
    assert found(example) == [("Ada", "PER"), ("Bonn", "LOC")]


def test_one_tag_for_every_character_leaves_the_text_untouched(tmp_path: Path) -> None:
    (example,) = read_records(tmp_path, {"text": "去 北京", "labels": ["O", "O", "B-LOC", "I-LOC"]})
    assert example.text == "去 北京"
    assert found(example) == [("北京", "LOC")]


def test_no_annotation_is_not_an_empty_annotation(tmp_path: Path) -> None:
    examples = read_records(
        tmp_path, {"text": "a", "label": [[0, 1, "X"]]}, {"text": "b", "label": []}, {"text": "c"}
    )
    assert [x.entities if x.entities is None else len(x.entities) for x in examples] == [1, 0, None]


def test_the_rest_of_a_record_stays_with_it(tmp_path: Path) -> None:
    (example,) = read_records(tmp_path, {"id": 7, "text": "a", "label": [], "meta": {"k": 1}})
    assert example.extra == {"id": 7, "meta": {"k": 1}}


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_an_array_or_printed_objects_read_like_lines(tmp_path: Path, indent: int | None) -> None:
    records = [{"text": TEXT, "label": [[0, 3, "PER"]]}, {"text": "去Bonn", "label": [[1, 5, "L"]]}]
    path = tmp_path / "data.json"
    path.write_text(json.dumps(records, indent=indent), "utf-8")
    assert sniff(path) == "json"
    assert [found(x) for x in read(path)] == [[("Ada", "PER")], [("Bonn", "L")]]
    path.write_text("\n".join(json.dumps(record, indent=4) for record in records), "utf-8")
    assert sniff(path) == "json"
    examples = list(read(path))
    assert [found(x) for x in examples] == [[("Ada", "PER")], [("Bonn", "L")]]
    assert examples[1].source is not None and examples[1].source.line == 11


def stored(text: str, unit: str, surface: bool = True) -> dict[str, Any]:
    """A record that marks `Bonn` with offsets in some unit."""
    start = text.index("Bonn")
    before, name = text[:start], "Bonn"
    sizes = {
        "code-points": len,
        "utf16": lambda part: len(part.encode("utf-16-le")) // 2,
        "bytes": lambda part: len(part.encode()),
    }
    begin = sizes[unit](before)
    span: dict[str, Any] = {"start": begin, "end": begin + len(name), "label": "LOC"}
    return {"text": text, "entities": [span | ({"text": name} if surface else {})]}


@pytest.mark.parametrize("unit", ["code-points", "utf16", "bytes"])
def test_offsets_are_converted_where_the_surface_shows_their_unit(
    tmp_path: Path, unit: str
) -> None:
    records = [stored(text, unit) for text in ("In Bonn", "😀 in Bonn", "去 👩‍👩‍👧 Bonn, 😀 Bonn!")]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps(r, ensure_ascii=False) for r in records), "utf-8")
    log = ProblemLog()
    examples = list(read(path, problems=log))
    assert [found(x) for x in examples] == [[("Bonn", "LOC")]] * 3
    assert examples[2].entities is not None
    assert examples[2].entities[0].start == examples[2].text.index("Bonn")
    assert log.by_kind["offsets-converted"] == (0 if unit == "code-points" else 2)


def test_a_repeated_surface_follows_what_the_file_has_proved(tmp_path: Path) -> None:
    # As code points, 2-3 is the second 哈; as UTF-16 units the first.
    repeated = {"text": "😀哈哈", "entities": [{"start": 2, "end": 3, "label": "X", "text": "哈"}]}
    first, _second = read_records(tmp_path, repeated, stored("😀 in Bonn", "utf16"))
    assert first.entities is not None
    assert first.entities[0].start == 1


def test_offsets_without_surface_are_refused_after_an_emoji(tmp_path: Path) -> None:
    records = [stored(text, "utf16", surface=False) for text in ("In Bonn", "😀 in Bonn now")]
    with pytest.raises(DataError, match=r"jsonl:2: .*--offsets code-points or --offsets utf16"):
        read_records(tmp_path, *records)
    examples = read_records(tmp_path, *records, offsets="utf16")
    assert [found(x) for x in examples] == [[("Bonn", "LOC")]] * 2


def test_offsets_beyond_the_text_prove_utf16_without_surface(tmp_path: Path) -> None:
    records = [stored(text, "utf16", surface=False) for text in ("😀 in Bonn now", "😀 in Bonn")]
    examples = read_records(tmp_path, *records)
    assert [found(x) for x in examples] == [[("Bonn", "LOC")]] * 2


def test_a_surface_that_is_not_there_is_refused(tmp_path: Path) -> None:
    wrong = {"text": TEXT, "entities": [{"start": 1, "end": 5, "label": "X", "text": "Bonn"}]}
    with pytest.raises(DataError, match=r"jsonl:2: the X span 1-5 holds 'da l', but 'Bonn'"):
        read_records(tmp_path, stored("In Bonn", "code-points"), wrong)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ([3, 30, "X"], "the X span 3-30 lies outside the text of 18 characters"),
        ([-2, 3, "X"], "the X span -2-3 lies outside"),
        ([3, 3, "X"], "the X span 3-3 is empty"),
        ([0, 3, ""], "the span 0-3 has no label"),
        ([0, 3, " "], "the span 0-3 has no label"),
        ([5, 3, "X"], "the X span 5-3 ends before it begins"),
        ([3, "X"], "is no span with a start, an end and a label"),
        ({"start": 1, "end": 3}, "is no span with a start, an end and a label"),
        ({"start": True, "end": 3, "label": "X"}, "is no span"),
    ],
)
def test_an_impossible_span_is_refused_with_its_line(
    tmp_path: Path, span: Any, message: str
) -> None:
    good = {"text": TEXT, "label": [[0, 3, "PER"]]}
    with pytest.raises(DataError) as caught:
        read_records(tmp_path, good, {"text": TEXT, "label": [[0, 3, "PER"], span]})
    assert "data.jsonl:2: " in str(caught.value)
    assert message in str(caught.value)


def task(results: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "id": 1,
        "data": {"text": "😀 Ada in Bonn"},
        "annotations": [{"result": results}],
        **more,
    }


def result(start: int, end: int, text: str, *labels: str) -> dict[str, Any]:
    value = {"start": start, "end": end, "text": text, "labels": list(labels)}
    return {"type": "labels", "from_name": "label", "to_name": "text", "value": value}


def write_tasks(tmp_path: Path, *tasks: Any) -> Path:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(tasks, ensure_ascii=False), "utf-8")
    return path


def test_label_studio_counts_utf16_and_may_give_two_labels(tmp_path: Path) -> None:
    path = write_tasks(
        tmp_path, task([result(3, 6, "Ada", "PER", "HERO"), result(10, 14, "Bonn", "L")])
    )
    (example,) = read(path)
    assert found(example) == [("Ada", "PER"), ("Ada", "HERO"), ("Bonn", "L")]


def test_label_studio_annotations_that_were_cancelled_are_none(tmp_path: Path) -> None:
    cancelled = {"result": [result(3, 6, "Ada", "PER")], "was_cancelled": True}
    path = write_tasks(tmp_path, task([]), {**task([]), "annotations": [cancelled]})
    assert [x.entities for x in read(path)] == [(), None]


def test_label_studio_gives_one_record_for_every_annotation(tmp_path: Path) -> None:
    both = task([result(3, 6, "Ada", "PER")])
    both["annotations"].append({"result": [result(3, 6, "Ada", "ORG")]})
    log = ProblemLog()
    examples = list(read(write_tasks(tmp_path, both), problems=log))
    assert [found(x) for x in examples] == [[("Ada", "PER")], [("Ada", "ORG")]]
    assert log.by_kind["several-annotations"] == 1


def test_label_studio_minimal_reads(tmp_path: Path) -> None:
    span = {"start": 3, "end": 6, "text": "Ada", "labels": ["PER"]}
    record = {"text": "😀 Ada", "id": 1, "label": [span], "annotator": 2, "lead_time": 1.5}
    (example,) = read(write_tasks(tmp_path, record))
    assert found(example) == [("Ada", "PER")]


@pytest.mark.parametrize(
    "words",
    [
        {"tokens": TEXT.split()},
        {"words": TEXT.split()},
        {"tokens": []},
        {"tokens": TEXT.split(), "token_ids": [7, 8, 9, 10]},
    ],
)
def test_spans_of_a_text_are_read_although_its_words_stand_beside_them(
    tmp_path: Path, words: dict[str, Any]
) -> None:
    record = {"text": TEXT, **words, "entities": [{"start": 0, "end": 3, "label": "PER"}, BONN]}
    (example,) = read_records(tmp_path, record)
    assert example.text == TEXT
    assert found(example) == [("Ada", "PER"), ("Bonn", "LOC")]


def test_tags_beside_a_text_with_spans_are_read_as_tags(tmp_path: Path) -> None:
    record = {"text": TEXT, "tokens": ["Ada", "lives"], "ner_tags": ["B-PER", "O"], "spans": [BONN]}
    (example,) = read_records(tmp_path, record)
    assert found(example) == [("Ada", "PER")]


@pytest.mark.parametrize(
    "spans",
    [
        {"entities": [{"type": "PER", "start": 0, "end": 1}]},
        {"ner": [{"index": [0], "type": "PER"}]},
        {"ner": [[0, 0, "PER"]]},
    ],
)
def test_spans_that_count_words_are_refused_and_not_forgotten(
    tmp_path: Path, spans: dict[str, Any]
) -> None:
    with pytest.raises(DataError, match=r":1: words with spans in '.*such spans count words"):
        read_records(tmp_path, {"tokens": TEXT.split(), **spans})


def test_byte_offsets_without_a_surface_are_refused_with_the_way_to_say_it(tmp_path: Path) -> None:
    record = {"text": "我在北京和天津", "label": [[6, 12, "LOC"], [15, 21, "LOC"]]}
    with pytest.raises(DataError, match="--offsets bytes"):
        read_records(tmp_path, record)
    (example,) = read_records(tmp_path, record, offsets="bytes")
    assert found(example) == [("北京", "LOC"), ("天津", "LOC")]


def test_label_studio_s_small_export_may_call_the_text_anything(tmp_path: Path) -> None:
    about = {"id": 1, "annotator": "a@example.com", "created_at": "2024-01-01T00:00:00Z"}
    spans = [{"start": 0, "end": 3, "text": "Ada", "labels": ["PER"]}]
    untouched, annotated = read_records(
        tmp_path, {"review": TEXT, **about}, {"review": TEXT, "ner": spans, **about}
    )
    assert untouched.entities is None
    assert found(annotated) == [("Ada", "PER")]
