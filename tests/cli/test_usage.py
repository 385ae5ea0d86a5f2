"""Wrong command lines, and output that a terminal's encoding cannot hold."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bertfit.cli import main
from bertfit.language import use_language

WRONG = [
    (["trian", "x"], "no command 'trian'", "没有 'trian' 这个命令", "train"),
    (["evaluate", "model"], "FILES is missing", "缺少 FILES", "evaluate --help"),
    (["data", "stats"], "FILES is missing", "缺少 FILES", "--help"),
    (
        ["train", "--epochs", "3"],
        "no option --epochs",
        "没有 --epochs 这个选项",
        "num-train-epochs",
    ),
    (["demo", "--num-train", "0"], "--num-train 0: must be 1 or", "必须至少是 1", "demo --help"),
    (["demo", "--num-train", "x"], "x: must be a whole number", "必须是整数", "demo --help"),
    (
        ["train", "--model"],
        "--model is given with nothing behind it",
        "--model 后面",
        "train --help",
    ),
    (["doctor", "a", "b"], "too many arguments: a b", "参数太多：a b", "doctor --help"),
]


@pytest.mark.parametrize("command", [[], ["predict"], ["data", "convert"], ["embed"]])
def test_help_is_wholly_in_chinese(
    capsys: pytest.CaptureFixture[str], command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # each option on a line
    try:
        assert main([*command, "--help", "--lang", "zh"]) == 0
    finally:
        use_language(None)
    printed = capsys.readouterr().out
    assert printed.startswith("用法：") and "\n选项:\n" in printed
    english = r"(?i)usage|options:|arguments:|commands:|\[default|\[required|show this"
    assert not re.search(english, printed)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("arguments", "english", "chinese", "hint"), WRONG)
def test_a_wrong_command_line_is_named(
    capsys: pytest.CaptureFixture[str],
    language: str,
    arguments: list[str],
    english: str,
    chinese: str,
    hint: str,
) -> None:
    try:
        assert main([*arguments, "--lang", language]) == 2
    finally:
        use_language("en")
    said = capsys.readouterr()
    assert not said.out
    assert (english if language == "en" else chinese) in said.err
    assert hint in said.err and len(said.err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["data"]])
def test_no_command_prints_the_help(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out.startswith("Usage:") and not said.err


def test_a_pipe_gets_utf_8_whatever_the_terminal_has(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    record = {"text": "😀张三", "entities": [{"start": 1, "end": 3, "label": "人名"}]}
    path.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "bertfit", "data", "stats", str(path), "--json"],
        env={**os.environ, "PYTHONIOENCODING": "gbk"},
        capture_output=True,
        check=True,
    )
    assert "人名" in json.dumps(json.loads(done.stdout.decode("utf-8")), ensure_ascii=False)
