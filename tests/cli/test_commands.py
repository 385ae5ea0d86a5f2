"""The command line as a user meets it: exit codes, one line per fault, JSON alone on stdout."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertfit.cli import COMMANDS, main
from bertfit.language import use_language
from jobs.corpora import write_corpus

TINY = ["--model", "tiny", "--num-train-epochs", "1", "--device", "cpu", "--quiet"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    data = write_corpus(folder / "t.jsonl", 60)
    assert main(["train", *TINY, "--train-file", str(data), "--output-dir", str(folder / "r")]) == 0
    return folder


def test_train_prints_one_json_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 30)
    flags = ["--train-file", str(data), "--output-dir", str(tmp_path / "r"), "--json"]
    assert main(["train", *TINY, *flags]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["output_dir"] == str(tmp_path / "r")
    assert 0 <= document["scores"]["micro"]["f1"] <= 1
    assert (tmp_path / "r" / "job.yaml").is_file()


def test_the_job_file_of_a_run_trains_the_same_again(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 30)
    first, second = tmp_path / "a", tmp_path / "b"
    main(["train", *TINY, "--train-file", str(data), "--output-dir", str(first), "--seed", "5"])
    flags = ["--config", str(first / "job.yaml"), "--output-dir", str(second), "--quiet"]
    assert main(["train", *flags]) == 0

    def losses(run: Path) -> list[float]:
        return [json.loads(s)["loss"] for s in (run / "steps.jsonl").read_text().splitlines()]

    assert losses(first) == losses(second)


def test_evaluate_prints_scores_and_errors(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", str(trained / "r"), str(trained / "t.jsonl"), "--quiet"]
    assert main([*arguments, "--errors", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    micro = document["scores"]["micro"]
    wrong = micro["support"] - micro["correct"]
    assert micro["support"] == 120
    assert (len(document["errors"]) > 0) == (wrong > 0 or micro["predicted"] > micro["correct"])
    assert main(arguments) == 0
    assert "micro" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], ["--model is missing", "--train-file is missing"]),
        (["train", "--modell", "x"], ["--modell", "bertfit train --help"]),
        (["frobnicate"], ["frobnicate", "bertfit --help"]),
        (["train", "--model", "tiny", "--train-file", "no.json"], ["no.json"]),
        (["train", "--model", "./no", "--train-file", "no.json"], ["./no", "no such folder"]),
        (["--lang", "xx", "train"], ["--lang 'xx'", "en, zh"]),
        (["evaluate", "no-run/x", "no.json"], ["no-run/x"]),
        (
            ["train", "--model", "tiny", "--train-file", "x", "--seed", "-1", "--batch-size", "z"],
            ["2 settings are wrong", "--seed -1", "--batch-size z"],
        ),
        (
            ["train", "--model", "tiny", "--train-file", "x", "--device", "cuda:77"],
            ["--device cuda:77"],
        ),
        (
            ["train", "--model", "tiny", "--train-file", "x", "--precision", "fp16"],
            ["--precision fp16"],
        ),
    ],
)
def test_what_a_user_can_fix_is_one_error_with_exit_code_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ")
    assert "Traceback" not in captured.err
    for word in words:
        assert word in captured.err


LONG = "a" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--model", LONG, "--train-file", "x"],
        ["train", "--model", "./" + LONG, "--train-file", "x"],
        ["train", "--model", "tiny", "--train-file", LONG],
        ["train", "--model", "tiny", "--train-file", "x", "--config", LONG],
        ["train", "--resume", LONG],
        ["evaluate", LONG, "x"],
        ["predict", LONG, "x"],
        ["data", "check", LONG],
        ["data", "stats", LONG],
        ["data", "convert", LONG, "x.jsonl"],
    ],
    ids=lambda arguments: "-".join(arguments).replace(LONG, "LONG"),
)
def test_a_name_that_no_system_takes_is_one_line(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and printed.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="devices of Linux")
@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "/dev/null", "/proc/self/mem"])
@pytest.mark.parametrize("reader", [None, "jsonl", "text", "brat", "pair", "parquet"])
def test_what_is_no_file_or_cannot_be_read_is_one_line(
    name: str, reader: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    flags = [] if reader is None else ["--format", reader]
    assert main(["data", "check", str(tmp_path / name), *flags]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {tmp_path / name} ") and printed.count("\n") == 1


def test_language_is_taken_wherever_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(["train", "--lang", "zh"]) == 2
    finally:
        use_language("en")
    assert "错误" in capsys.readouterr().err


def test_help_lists_every_command_and_loads_no_heavy_library() -> None:
    code = (
        "import sys; from bertfit.cli import main; main(['--help']);"
        "print([m for m in ('torch', 'transformers', 'pydantic', 'numpy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
    assert all(name in run.stdout for name in COMMANDS)


def test_import_bertfit_loads_no_heavy_library() -> None:
    code = (
        "import sys, bertfit; print([m for m in ('torch', 'transformers') if m in sys.modules]);"
        "print(bertfit.JobConfig.__name__, bertfit.Entity.__name__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "JobConfig Entity"]


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_every_flag_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    flags = [line for line in lines if line.strip().startswith("--")]
    assert len(flags) > 5


def test_disk_full_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    from bertfit.models import tagger

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tagger, "save_pretrained", full)
    data = write_corpus(tmp_path / "t.jsonl", 20)
    flags = ["--train-file", str(data), "--output-dir", str(tmp_path / "r")]
    assert main(["train", *TINY, *flags]) == 2
    error = capsys.readouterr().err
    assert "error: " in error and "No space left" in error and str(tmp_path / "r") in error
