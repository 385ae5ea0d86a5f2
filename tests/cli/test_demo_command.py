"""`bertfit demo`: what it writes, shows and refuses."""

import json
import re
from pathlib import Path

import pytest

from bertfit.cli import main
from bertfit.cli.demo import _shell

SHORT = ["demo", "--lang", "zh", "--quiet", "--num-train", "200"]


def test_the_short_demo_shows_commands_scores_and_entities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo"
    assert main([*SHORT, "--output-dir", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[:3] for line in shown.splitlines() if line.startswith("$ ")] == [
        ["$", "bertfit", "train"],
        ["$", "bertfit", "evaluate"],
        ["$", "bertfit", "predict"],
    ]
    assert "诸葛雪梅" in shown
    assert re.search(r"5 个实体中找对 \d 个", shown)
    assert (folder / "data" / "train.jsonl").is_file()
    assert (folder / "run" / "model" / "config.json").is_file()


def test_json_is_one_document_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--json", "--output-dir", str(tmp_path / "demo")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert 0 <= document["f1"] <= 1
    assert "松澜软件公司" in document["unseen"]


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_whole_demo_reaches_its_score(
    language: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["demo", "--lang", language, "--json", "--quiet"]
    assert main([*arguments, "--output-dir", str(tmp_path / "demo")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["f1"] >= 0.80
    found = {document["text"][e["start"] : e["end"]] for e in document["entities"]}
    wanted = {document["text"][e["start"] : e["end"]] for e in document["expected"]}
    assert found & wanted & set(document["unseen"])


def test_a_demo_that_is_there_is_not_replaced_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    assert main(["demo", "--lang", "zh", "--output-dir", str(tmp_path)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


def test_a_folder_with_other_files_is_never_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").write_text("")
    assert main(["demo", "--lang", "en", "--overwrite", "--output-dir", str(tmp_path)]) == 2
    assert "is not the folder of a demo" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "thesis.tex"]


def test_a_long_command_has_a_line_for_each_option() -> None:
    words = ["bertfit", "train", "--model", "my model", "--train-file", "a", "--overwrite"]
    assert _shell(words) == (
        "bertfit train \\\n    --model 'my model' \\\n    --train-file a \\\n    --overwrite"
    )
    assert _shell(["bertfit", "predict", "run", "--text", "a b"]) == (
        "bertfit predict run --text 'a b'"
    )
