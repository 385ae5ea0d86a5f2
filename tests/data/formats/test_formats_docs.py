"""The examples of docs/formats.md read as the page says."""

import re
from pathlib import Path

import pytest

from bertfit.data.formats import read, sniff
from bertfit.types import Example

DOCS = Path(__file__).resolve().parents[3] / "docs"
ADA = [("Ada", "PER"), ("Bonn", "LOC")]


def blocks(page: str) -> list[str]:
    text = (DOCS / page).read_text("utf-8")
    return re.findall(r"```[a-z]*\n(.*?)```", text, re.DOTALL)


def found(example: Example) -> list[tuple[str, str]]:
    return [(example.text[e.start : e.end], e.label) for e in example.entities or ()]


@pytest.mark.parametrize("page", ["formats.md", "formats.zh-CN.md"])
def test_the_examples_of_the_page_read_as_it_says(page: str, tmp_path: Path) -> None:
    jsonl, array, columns, conllu, words, slash, pair, spans, lists, rows = blocks(page)[:10]

    def examples(text: str) -> list[Example]:
        path = tmp_path / "example"
        path.write_text(text, "utf-8")
        return list(read(path))

    for line in jsonl.splitlines():
        assert [found(x) for x in examples(line)] == [ADA]
    for block in (array, columns, spans, lists):
        assert [found(x) for x in examples(block)] == [ADA]
    assert found(examples(rows)[0]) == ADA[:1]
    assert [word for word, _label in found(examples(conllu)[0])] == ["我", "爱", "你"]
    assert [word for word, _label in found(examples(words)[0])] == ["我", "爱", "北京", "天安门"]
    assert found(examples(slash)[0]) == [("艾达", "nr"), ("波恩", "ns")]
    for line in pair.splitlines():
        name, content = line.split(":", 1)
        (tmp_path / name).write_text(content.strip() + "\n")
    assert [found(x) for x in read(tmp_path / "tags.txt")] == [ADA]


@pytest.mark.parametrize("page", ["annotation-tools.md", "annotation-tools.zh-CN.md"])
def test_the_examples_of_the_tools_read(page: str, tmp_path: Path) -> None:
    doccano, studio, text, annotation = blocks(page)[:4]
    (tmp_path / "a.jsonl").write_text(doccano)
    (tmp_path / "b.json").write_text(studio)
    folder = tmp_path / "brat"
    folder.mkdir()
    (folder / "doc.txt").write_text(text)
    (folder / "doc.ann").write_text(annotation)
    assert [found(x) for x in read(tmp_path / "a.jsonl")] == [ADA]
    assert [found(x) for x in read(tmp_path / "b.json")] == [ADA[:1]]
    assert sniff(folder) == "brat"
    assert [found(x) for x in read(folder)] == [ADA]
