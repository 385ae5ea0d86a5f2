"""`data check` and `data stats`: what they find, what they count, and what they print."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from bertfit.cli import main
from bertfit.data.check import DataReport, check_files, count_files
from bertfit.data.formats import ReadOptions
from bertfit.data.stats import total
from shared import shared


def write_records(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), "utf-8")
    return path


def kinds(report: DataReport) -> dict[str, int]:
    return dict(report.problems.by_kind)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([{"text": "Ada", "label": [[0, 3, "P"]]}], {}),
        ([{"text": " ", "label": []}, {"text": "a", "label": [[0, 1, "P"]]}], {"empty-text": 1}),
        ([{"text": "a", "label": [[0, 1, "P"]]}, {"text": "b"}], {"unannotated": 1}),
        ([{"text": "Ada x", "label": [[0, 4, "P"]]}], {"space-at-edge": 1}),
        ([{"text": "Ada", "label": [[0, 3, "P"], [0, 3, "P"]]}], {"same-span": 1}),
        ([{"text": "Ada", "label": [[0, 3, "P"], [0, 2, "L"], [1, 2, "L"]]}], {"nested-span": 2}),
        ([{"text": "Adam", "label": [[0, 3, "P"], [2, 4, "L"]]}], {"crossing-span": 1}),
        ([{"text": "Ada", "label": [[0, 9, "P"]]}], {"span-beyond-text": 1}),
        ([{"text": "Ada ok", "label": [[0, 3, "P"], [4, 6, "p"]]}], {"label-case": 1}),
        ([{"text": "a", "label": [[0, 1, "P"]]}] * 2, {"duplicate-text": 1}),
        (
            [{"text": "a", "label": [[0, 1, "P"]]}, {"text": "a", "label": [[0, 1, "L"]]}],
            {"conflicting-annotations": 1},
        ),
    ],
)
def test_each_fault_is_found_once(
    tmp_path: Path, records: list[object], expected: dict[str, int]
) -> None:
    report = check_files([write_records(tmp_path / "a.jsonl", *records)], ReadOptions())
    assert kinds(report) == expected


def test_texts_of_two_files_that_nearly_agree_are_found(tmp_path: Path) -> None:
    train = write_records(
        tmp_path / "train.jsonl",
        {"text": "今天上午十点在北京大学举行了开学典礼。", "label": []},
        {"text": "The committee will meet again on Monday in Berlin.", "label": [[41, 47, "L"]]},
        {"text": "Something else entirely, which nobody repeats.", "label": [[0, 9, "L"]]},
    )
    test = write_records(
        tmp_path / "test.jsonl",
        {"text": "今天上午十点在北京大学举行了开学典礼！", "label": [[0, 2, "T"]]},
        {"text": "The committee will meet again on Monday in Berlin", "label": [[0, 3, "L"]]},
        {"text": "Nothing like it has been seen before in these pages.", "label": [[0, 7, "L"]]},
        {"text": "Something else entirely, which nobody repeats.", "label": [[0, 9, "L"]]},
    )
    report = check_files([train, test], ReadOptions())
    found = [(p.kind, Path(p.path).name, p.line) for p in report.problems.problems]
    assert found == [
        ("shared-text", "test.jsonl", 4),
        ("near-duplicate", "test.jsonl", 1),
        ("near-duplicate", "test.jsonl", 2),
    ]


def test_counts_are_of_spans_as_stored(tmp_path: Path) -> None:
    path = shared("data", "exports/doccano/ner_text_extractor_admin_label.jsonl")
    report = count_files([path], ReadOptions())
    assert report.files[0].counts.entities == 257
    report = check_files([path], ReadOptions())
    assert kinds(report) == {"span-beyond-text": 1, "space-at-edge": 78}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cluener/train.json", {"nested-span": 2}),
        ("exports/brat/bionlp2011-id", {"nested-span": 14, "brat-not-spans": 58}),
        ("exports/doccano/298977887_uie_admin_entities.jsonl", {"unannotated": 87}),
        ("exports/doccano/doccano_test_example_overlapping.jsonl", {"same-span": 1}),
    ],
)
def test_shared_files_have_the_quirks_of_their_readme(name: str, expected: dict[str, int]) -> None:
    assert kinds(check_files([shared("data", name)], ReadOptions())) == expected


@pytest.mark.parametrize("content", ["[]", " [ ]\n", "text,label\n", "[][]"])
def test_a_file_without_records_is_noticed(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a"
    path.write_text(content)
    assert kinds(check_files([path], ReadOptions())) == {"no-records": 1}
    sound = write_records(tmp_path / "b.jsonl", {"text": "Ada", "label": [[0, 3, "P"]]})
    assert kinds(count_files([sound, path], ReadOptions())) == {"no-records": 1}


@pytest.mark.parametrize(
    ("names", "format"),
    [
        (["a.txt", "a.ann"], "brat"),
        (["sentences.txt", "tags.txt"], "pair"),
        (["train-0.parquet"], "parquet"),
    ],
)
def test_what_a_folder_holds_beside_is_named(tmp_path: Path, names: list[str], format: str) -> None:
    (tmp_path / names[0]).write_text("Ada\n")
    if format == "brat":
        (tmp_path / names[1]).write_text("T1\tP 0 3\tAda\n")
    elif format == "pair":
        (tmp_path / names[1]).write_text("O\n")
    else:
        table = pa.table({"tokens": [["Ada"]], "ner_tags": [["O"]]})
        pa.parquet.write_table(table, tmp_path / names[0])
    (tmp_path / "README.txt").write_text("about")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "t.json").write_text("{}")
    assert kinds(count_files([tmp_path], ReadOptions())) == {}
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "dev.jsonl.gz").write_text("{}")
    (tmp_path / "test.csv").write_text("x")
    report = count_files([tmp_path], ReadOptions())
    (note,) = report.problems.problems
    assert (note.kind, note.count, report.files[0].format) == ("not-read", 2, format)
    assert "not read: more/dev.jsonl.gz, test.csv" in note.message


@pytest.mark.parametrize(
    ("name", "content", "flags"),
    [
        ("a.conll", "Ada\tB-P\nsaw\tO\n\n", ["--offsets"]),
        ("a.jsonl", '{"tokens": ["Ada"], "ner_tags": ["B-P"]}\n', ["--separator"]),
        (
            "a.jsonl",
            '{"text": "Ada", "label": [[0, 3, "P"]]}\n',
            ["--separator", "--file-scheme", "--tag-column"],
        ),
        (
            "a.txt",
            "Ada came here yesterday .\n",
            ["--file-scheme", "--tag-column", "--separator", "--offsets"],
        ),
    ],
)
def test_flags_that_a_file_has_no_use_for_are_told(
    tmp_path: Path, name: str, content: str, flags: list[str]
) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert not kinds(count_files([path], ReadOptions()))
    tags = "2" if name == "a.conll" else "ner_tags"
    given = ReadOptions(scheme="bio", tag_column=tags, separator="tab", offsets="utf16")
    notes = [p for p in count_files([path], given).problems.problems if p.kind == "unused-flag"]
    told = [flag for p in notes for flag in p.message.partition(": ")[0].split(", ")]
    assert sorted(told) == sorted(flags)
    assert all(p.severity == "note" and p.path == str(path) for p in notes)


def test_counts_of_files_add_up(tmp_path: Path) -> None:
    path = write_records(
        tmp_path / "a.jsonl", {"text": "Ada", "label": [[0, 3, "P"]]}, {"text": "b"}
    )
    counts = total(file.counts for file in count_files([path, path], ReadOptions()).files)
    assert (counts.examples, counts.entities, counts.unannotated) == (4, 2, 2)
    assert counts.by_label == {"P": 2}


def test_check_prints_one_json_document_and_exits_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_records(
        tmp_path / "a.jsonl", {"text": "Ada", "label": [[0, 9, "P"]]}, {"text": "Ada x"}
    )
    assert main(["data", "check", "--json", str(path)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["examples"] == 2
    assert document["entities"] == 1
    assert document["by_label"] == {"P": 1}
    assert document["max_chars"] == 5
    places = [(p["file"], p["line"], p["kind"]) for p in document["problems"]]
    assert places == [(str(path), 1, "span-beyond-text"), (str(path), 2, "unannotated")]


def test_check_of_a_clean_file_exits_with_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_records(tmp_path / "a.jsonl", {"text": "Ada", "label": [[0, 3, "P"]]})
    assert main(["data", "check", str(path)]) == 0
    assert "Nothing found." in capsys.readouterr().out


def test_stats_and_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_records(tmp_path / "a.jsonl", {"text": "Ada", "label": [[0, 3, "P"]]})
    assert main(["data", "stats", "--json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["by_label"] == {"P": 1}
    assert main(["data", "stats", str(tmp_path / "b.jsonl")]) == 2
    assert "b.jsonl does not exist" in capsys.readouterr().err


def test_convert_counts_in_and_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_records(
        tmp_path / "a.jsonl", {"text": "Ada x", "label": [[0, 3, "P"]]}, {"label": []}
    )
    target = tmp_path / "a.conll"
    assert main(["data", "convert", str(path), str(target)]) == 2
    assert not target.exists()
    assert main(["data", "convert", str(path), str(target), "--on-error", "skip"]) == 0
    captured = capsys.readouterr()
    assert "1 of 2 records written" in captured.out
    assert "a.jsonl:2: no text" in captured.err
    assert target.read_text() == "Ada\tB-P\nx\tO\n\n"
    arguments = ["--to", "brat", "--json", "--scheme", "bio"]
    assert main(["data", "convert", str(target), str(tmp_path / "brat"), *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 1


def test_what_a_tagger_cannot_reach_is_listed_with_the_best_f1(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    # "Google" inside "Googles" cannot be reached by words; "Oslo" can, twice.
    path.write_text(
        '{"text": "Googles in Oslo", "label": [[0, 6, "ORG"], [11, 15, "LOC"]]}\n'
        '{"text": "to Oslo", "label": [[3, 7, "LOC"]]}\n',
        encoding="utf-8",
    )
    by_words = check_files([path], ReadOptions(), split="words")
    reach = by_words.files[0].reach
    assert reach is not None and (reach.entities, reach.reachable, reach.records) == (3, 2, 1)
    assert reach.best_f1 == pytest.approx(2 * 2 / (2 + 3))
    found = [p for p in by_words.problems.problems if p.kind == "edge-inside-unit"]
    assert [(p.line, "Google" in p.message) for p in found] == [(1, True)]
    by_characters = check_files([path], ReadOptions(), split="characters").files[0].reach
    assert by_characters is not None and by_characters.best_f1 == 1.0


_MANY = 20_000


def _hostile_records() -> dict[str, tuple[object, dict[str, int]]]:
    text = "a\u4e2d" * _MANY
    spans = range(_MANY)
    nested = [{"start": i, "end": len(text) - i, "label": "P"} for i in spans]
    return {
        "same": (
            {"text": "anna", "entities": [{"start": 0, "end": 4, "label": "P"}] * _MANY},
            {"same-span": _MANY - 1},
        ),
        "nested": ({"text": text, "entities": nested}, {"nested-span": _MANY - 1}),
        "crossing": (
            {"text": text, "entities": [[i, i + 5000, "P"] for i in spans]},
            # Of equally long ones the first is kept: 0-5000, 5000-10000, 10000-15000, 15000-20000.
            {"crossing-span": _MANY - 4},
        ),
        "nested-with-wrong-surfaces": (
            {"text": "a " * _MANY, "entities": [{**each, "text": "b"} for each in nested]},
            {"nested-span": _MANY - 1, "space-at-edge": _MANY, "surface-mismatch": _MANY},
        ),
        "by-label": (
            {"text": "ab", "label": {f"k{i}": {"a": [[0, 0]]} for i in spans}},
            {"same-span": _MANY - 1},
        ),
        "many-keys": (
            {"text": "anna", "entities": [[0, 4, "P"]], **{f"k{i}": i for i in spans}},
            {},
        ),
    }


# Were the work quadratic, a case would take minutes.
@pytest.mark.parametrize("name", list(_hostile_records()))
def test_one_record_of_twenty_thousand_spans_is_looked_through(name: str, tmp_path: Path) -> None:
    record, expected = _hostile_records()[name]
    path = write_records(tmp_path / "a.jsonl", record)
    assert kinds(check_files([path], ReadOptions())) == expected


def test_one_annotation_of_twenty_thousand_pieces_is_looked_through(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a " * _MANY)
    whole = ";".join([f"0 {2 * _MANY}"] * _MANY)
    (tmp_path / "a.ann").write_text(f"T1\tX {whole}\tanna\n")
    report = check_files([tmp_path], ReadOptions())
    assert kinds(report) == {
        "discontinuous-span": 1,
        "surface-mismatch": 1,
        "space-at-edge": _MANY,
        "same-span": _MANY - 1,
    }
    assert max(len(str(problem)) for problem in report.problems.problems) < 1000


@pytest.mark.parametrize(("pieces", "fits"), [(4, True), (5, False)])
def test_pieces_that_repeat_their_text_are_compared(
    pieces: int, fits: bool, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("anna")
    place = ";".join(["0 4"] * pieces)
    (tmp_path / "a.ann").write_text(f"T1\tX {place}\tanna anna anna anna\n")
    found = kinds(check_files([tmp_path], ReadOptions()))
    assert ("surface-mismatch" in found) != fits
