"""`bertfit predict` without a file to write: JSON on standard output; and what is refused first."""

import json
from pathlib import Path

import pytest

from bertfit.cli import main
from jobs.tiny_taggers import save_tiny_tagger

TEXTS = ("ab 北京 cd", "我爱上海", "xyz", "北京 is in a b c")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_tagger(tmp_path_factory.mktemp("tagger"), ["O", "B-PER", "I-PER"]))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["predict", *arguments, "--device", "cpu"]) == 0
    return capsys.readouterr().out


def test_lines_of_a_file_and_one_document_hold_the_same(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    file = str(tmp_path / "in.txt")
    lines = printed(capsys, model, file).splitlines()
    assert [json.loads(line)["text"] for line in lines] == list(TEXTS)
    document = printed(capsys, model, file, "--json")
    assert document.endswith("]\n")
    assert json.loads(document) == [json.loads(line) for line in lines]


def test_texts_of_the_command_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, model, "--text", TEXTS[0], "--text", TEXTS[1])
    assert [json.loads(line)["text"] for line in out.splitlines()] == list(TEXTS[:2])


def test_no_readable_text_is_an_empty_document(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": 4}\n{"text": 5}\n')
    file = str(tmp_path / "in.jsonl")
    assert json.loads(printed(capsys, model, file, "--json")) == []
    assert printed(capsys, model, file) == ""


def test_texts_do_not_replace_a_file_without_a_word(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "o.jsonl"
    output.write_text("mine")
    assert main(["predict", model, "--text", "ab", "--output", str(output)]) == 2
    assert "--overwrite" in capsys.readouterr().err and output.read_text() == "mine"
    printed(capsys, model, "--text", "ab", "--output", str(output), "--overwrite")
    assert json.loads(output.read_text())["text"] == "ab"


def test_texts_in_a_file_are_lines_and_the_document_counts_them(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "o.jsonl"
    texts = ["--text", TEXTS[0], "--text", TEXTS[1]]
    counted = json.loads(printed(capsys, model, *texts, "--output", str(output), "--json"))
    assert counted["counts"]["num_written"] == 2
    lines = output.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in lines] == list(TEXTS[:2])
    packed = str(tmp_path / "o.jsonl.gz")
    assert main(["predict", model, "--text", "ab", "--output", packed]) == 2
    assert "end it in .jsonl" in capsys.readouterr().err


def test_flags_of_a_file_are_refused_for_texts(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--text", "ab", "--whole-files", "--format", "csv", "--offsets", "utf16"]
    assert main(["predict", "no/model", *flags]) == 2
    assert "--whole-files, --format, --offsets: says how a file" in capsys.readouterr().err


def test_a_scheme_is_refused_for_output_without_tags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("ab\n")
    flags = ["--output", str(tmp_path / "o.jsonl"), "--output-scheme", "bmes"]
    assert main(["predict", "no/model", str(tmp_path / "in.txt"), *flags]) == 2
    assert "--output-scheme: only with CoNLL, and the output is jsonl" in capsys.readouterr().err
    columns = tmp_path / "a.conll"
    columns.write_text("Ada\tB-PER\n\n")
    convert = ["data", "convert", str(columns), str(tmp_path / "a.jsonl"), "--scheme", "bioes"]
    assert main(convert) == 2
    assert "--scheme bioes: only columns have tags" in capsys.readouterr().err
    assert main(convert[:-2]) == 0


def test_flags_that_text_has_no_use_for_are_told(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.txt"
    path.write_text("ab\n")
    assert main(["predict", model, str(path), "--separator", ",", "--offsets", "utf16"]) == 0
    said = capsys.readouterr().err
    assert f"{path}: --separator, --offsets: changes nothing here, for the file is read" in said


@pytest.mark.parametrize(
    "flags", [["--output-format", "conll"], ["--output-scheme", "bmes"], ["--ray"]]
)
def test_flags_that_need_an_output_file_are_refused_without_one(
    model: str, tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("ab\n")
    assert main(["predict", model, str(tmp_path / "in.txt"), *flags]) == 2
    assert flags[0] in capsys.readouterr().err


@pytest.mark.parametrize("output", ["o.jsonl", None])
@pytest.mark.parametrize(
    ("name", "flags", "words"),
    [
        ("in.txt", ["--format", "nope"], "no format 'nope'"),
        ("-", ["--format", "nope"], "no format 'nope'"),
        ("in.txt", ["--file-scheme", "nope"], "no tag scheme 'nope'. Choose one of bio, iob1"),
        ("-", ["--file-scheme", "nope"], "no tag scheme 'nope'"),
        ("in.txt", ["--whole-files", "--format", "csv"], "--format: not with --whole-files"),
        ("in.txt", ["--whole-files", "--separator", ","], "--separator: not with --whole-files"),
        ("in.txt", ["--format", "parquet"], "does not look like the format 'parquet'"),
        ("gone.txt", [], "no such file"),
    ],
)
def test_an_input_that_cannot_be_read_is_refused_before_the_model_is_looked_for(
    tmp_path: Path,
    name: str,
    flags: list[str],
    words: str,
    output: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "in.txt").write_text("ab cd\n")
    file = name if name == "-" else str(tmp_path / name)
    to = [] if output is None else ["--output", str(tmp_path / output)]
    assert main(["predict", "no/model", file, *flags, *to]) == 2
    assert words in capsys.readouterr().err
    assert main(["embed", "no/model", file, *flags, "--output", str(tmp_path / "o.npy")]) == 2
    assert words in capsys.readouterr().err
