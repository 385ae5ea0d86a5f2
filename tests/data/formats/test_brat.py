"""brat folders, with the cases that the shared ones do not hold."""

from pathlib import Path

import pytest

from bertfit.data.formats import ProblemLog, ReadOptions, read, sniff
from bertfit.errors import DataError
from bertfit.types import Example


def found(example: Example) -> list[tuple[str, str]]:
    return [(example.text[e.start : e.end], e.label) for e in example.entities or ()]


def document(folder: Path, name: str, text: str, annotations: str | None) -> None:
    (folder / f"{name}.txt").write_bytes(text.encode())
    if annotations is not None:
        (folder / f"{name}.ann").write_bytes(annotations.encode())


def test_a_discontinuous_span_is_split_and_reported(tmp_path: Path) -> None:
    text = "left and right lung"
    document(tmp_path, "a", text, "T1\tORGAN 0 4;15 19\tleft lung\nT2\tORGAN 9 19\tright lung\n")
    log = ProblemLog()
    (example,) = read(tmp_path, problems=log)
    assert found(example) == [("left", "ORGAN"), ("lung", "ORGAN"), ("right lung", "ORGAN")]
    (problem,) = log.problems
    assert (problem.kind, problem.line, Path(problem.path).name) == (
        "discontinuous-span",
        1,
        "a.ann",
    )


def test_a_span_over_a_line_break_stays_one(tmp_path: Path) -> None:
    document(tmp_path, "a", "in New\nYork now", "T1\tLOC 3 6;7 11\tNew York\n")
    log = ProblemLog()
    (example,) = read(tmp_path, problems=log)
    assert found(example) == [("New\nYork", "LOC")]
    assert not log.problems


def test_documents_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("10", "2", "1"):
        document(tmp_path, name, f"text {name}", "")
    assert [x.text for x in read(tmp_path)] == ["text 1", "text 2", "text 10"]
    assert sniff(tmp_path) == "brat"
    assert [x.text for x in read(tmp_path / "2.ann")] == ["text 2"]


def test_an_empty_annotation_file_is_an_annotation_and_a_missing_one_is_none(
    tmp_path: Path,
) -> None:
    document(tmp_path, "a", "one", "")
    document(tmp_path, "b", "two", None)
    assert [x.entities for x in read(tmp_path)] == [(), None]


def test_line_ends_and_utf16_offsets(tmp_path: Path) -> None:
    document(tmp_path, "a", "😀 Ada\r\nBonn\r\n", "T1\tPER 3 6\tAda\nT2\tLOC 8 12\tBonn\n")
    (example,) = read(tmp_path)
    assert example.text == "😀 Ada\r\nBonn\r\n"
    assert found(example) == [("Ada", "PER"), ("Bonn", "LOC")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("T1\tPER 0 3\tAdo", "the PER span 0 3 holds 'Ada', but 'Ado' is stored"),
        ("T1\tPER 0 30\tAda", "the PER span 0-30 lies outside the text of 8 characters"),
        ("T1\tPER 0\tAda", "is no text span: write id TAB label start end TAB text"),
        ("T1", "is no text span"),
    ],
)
def test_a_faulty_line_is_refused_with_its_place(tmp_path: Path, line: str, message: str) -> None:
    document(tmp_path, "a", "Ada rows", f"T9\tX 4 8\trows\n{line}\n")
    with pytest.raises(DataError) as caught:
        list(read(tmp_path))
    assert message in str(caught.value)
    assert "a." in str(caught.value)
    assert list(read(tmp_path, ReadOptions(on_error="skip"))) == []


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    document(tmp_path, "a", "Ada", "T1\tPER 0 3\tAda\n")
    (tmp_path / "b.ann").write_text("")
    with pytest.raises(DataError, match=r"b.txt is missing"):
        list(read(tmp_path))
