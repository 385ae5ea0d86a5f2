"""What README.md and README.zh-CN.md tell people to type is run as written."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from bertfit.cli import main
from bertfit.models.encoder import build_classifier, load_tokenizer, save_pretrained
from bertfit.models.tiny import save_tokenizer, tiny_encoder
from jobs.corpora import write_corpus

ROOT = Path(__file__).parents[1]
READMES = ("README.md", "README.zh-CN.md")


def blocks(readme: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / readme).read_text("utf-8"), re.DOTALL)


def commands(readme: str, program: str) -> list[list[str]]:
    lines = [line for block in blocks(readme, "sh") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith(program + " ")]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the README names, and a small model under the name of the hub's."""
    for name in ("train.json", "dev.json", "test.json", "texts.json"):
        write_corpus(tmp_path / name, 30)
    texts = ["Anna lives in Rome .", "In Oslo we met Bert today ."]
    tiny = tiny_encoder(texts * 2)
    save_tokenizer(tiny, tmp_path / "tokenizer")
    tokenizer = load_tokenizer(tmp_path / "tokenizer").fast
    for folder in ("hfl/chinese-macbert-base", "runs/base"):
        save_pretrained(build_classifier(tiny.config, ("O", "B-X")), tokenizer, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_run(workplace: Path) -> None:
    typed = commands(READMES[0], "bertfit")  # both show the same, see below
    assert {command[1] for command in typed} >= {"train", "evaluate", "predict"}
    for command in typed:
        assert main(command[1:]) == 0, command
    assert len((workplace / "found.jsonl").read_text().splitlines()) == 30


@pytest.mark.parametrize("readme", READMES)
def test_the_python_runs(readme: str, workplace: Path) -> None:
    for block in blocks(readme, "python"):
        exec(compile(block, readme, "exec"), {})


@pytest.mark.parametrize("readme", READMES)
def test_the_make_targets_exist(readme: str) -> None:
    typed = commands(readme, "make")
    assert {command[1] for command in typed} >= {"demo", "test", "test-all", "lint"}
    for command in typed:
        subprocess.run([*command, "--dry-run"], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("readme", READMES)
def test_the_links_lead_somewhere(readme: str) -> None:
    text = (ROOT / readme).read_text("utf-8")
    links = [t for t in re.findall(r"\]\(([^)]+)\)", text) if "://" not in t]
    assert links
    assert [link for link in links if not (ROOT / link.split("#")[0]).exists()] == []


def test_both_readmes_show_the_same_commands() -> None:
    assert commands(READMES[0], "bertfit") == commands(READMES[1], "bertfit")
    assert commands(READMES[0], "make") == commands(READMES[1], "make")
