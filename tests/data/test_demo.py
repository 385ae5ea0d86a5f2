"""The built-in data: varied, honest about its offsets, and dev names that train never shows."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertfit.data.demo import DemoLanguage, demo_examples, sentence, surfaces, write_demo
from bertfit.data.formats import ProblemLog, ReadOptions, read
from bertfit.types import Example

LANGUAGES: tuple[DemoLanguage, ...] = ("en", "zh")
both_languages = pytest.mark.parametrize("language", LANGUAGES)


@both_languages
def test_no_dev_entity_occurs_anywhere_in_the_train_text(language: DemoLanguage) -> None:
    train, dev = demo_examples(language, num_train=4000)
    text = "\n".join(example.text for example in train)
    assert [s for example in dev for s in surfaces(example) if s in text] == []


@both_languages
def test_no_entity_of_the_printed_sentence_occurs_in_the_train_text(language: DemoLanguage) -> None:
    train, __ = demo_examples(language, num_train=4000)
    text = "\n".join(example.text for example in train)
    assert sentence(language).entities
    assert [s for s in surfaces(sentence(language)) if s in text] == []


def test_the_printed_sentence_marks_its_entities() -> None:
    example = sentence("zh")
    assert example.text == "诸葛雪梅2031年10月离开松澜软件公司，回梅屏县写了小说《雪夜来信》。"
    assert surfaces(example) == ["诸葛雪梅", "2031年10月", "松澜软件公司", "梅屏县", "雪夜来信"]
    assert [entity.label for entity in example.entities or ()] == [
        "人物",
        "日期",
        "机构",
        "地点",
        "作品",
    ]


@both_languages
def test_the_same_seed_writes_the_same_bytes(language: DemoLanguage, tmp_path: Path) -> None:
    first = write_demo(tmp_path / "a", language, seed=3, num_train=50, num_dev=20)
    again = write_demo(tmp_path / "b", language, seed=3, num_train=50, num_dev=20)
    other = write_demo(tmp_path / "c", language, seed=4, num_train=50, num_dev=20)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert first[0].read_bytes() != other[0].read_bytes()


@both_languages
def test_no_text_occurs_twice(language: DemoLanguage) -> None:
    train, dev = demo_examples(language, num_train=1000)
    texts = [example.text for example in (*train, *dev)]
    assert len(texts) == 1300
    assert len(set(texts)) == len(texts)


@both_languages
def test_every_label_is_in_both_files(language: DemoLanguage) -> None:
    train, dev = demo_examples(language, num_train=300, num_dev=100)
    labels = [{e.label for x in part for e in x.entities or ()} for part in (train, dev)]
    assert len(labels[0]) == 6
    assert labels[0] == labels[1]


@both_languages
def test_sentences_hold_no_one_or_several_entities(language: DemoLanguage) -> None:
    train, __ = demo_examples(language, num_train=1000)
    counts = [len(example.entities or ()) for example in train]
    assert 0.05 < counts.count(0) / 1000 < 0.25
    assert sum(count >= 3 for count in counts) > 300


@both_languages
def test_a_name_is_one_thing_here_and_another_there(language: DemoLanguage) -> None:
    train, __ = demo_examples(language, num_train=1000)
    labels: dict[str, set[str]] = {}
    for example in train:
        for surface, entity in zip(surfaces(example), example.entities or (), strict=True):
            labels.setdefault(surface, set()).add(entity.label)
    assert sum(len(found) > 1 for found in labels.values()) >= 5


@both_languages
def test_the_reader_reads_what_was_written(language: DemoLanguage, tmp_path: Path) -> None:
    path, __ = write_demo(tmp_path, language, num_train=100, num_dev=10)
    wanted, __ = demo_examples(language, num_train=100, num_dev=10)
    log = ProblemLog()
    found = list(read(path, ReadOptions(), log))
    assert [(x.text, x.entities) for x in found] == [(x.text, x.entities) for x in wanted]
    assert log.problems == []


def test_ends_are_exclusive_in_the_file(tmp_path: Path) -> None:
    path, __ = write_demo(tmp_path, "en", num_train=5, num_dev=1)
    record = next(r for r in map(json.loads, path.read_text("utf-8").splitlines()) if r["entities"])
    span = record["entities"][0]
    before, after = record["text"][: span["start"]], record["text"][span["end"] :]
    assert not before[-1:].isalnum()
    assert not after[:1].isalnum()


def faults(example: Example) -> list[str]:
    found = []
    end = 0
    for entity in example.entities or ():
        surface = example.text[entity.start : entity.end]
        if not surface or surface != surface.strip() or entity.start < end:
            found.append(f"{entity} in {example.text}")
        end = entity.end
    if "{" in example.text or "}" in example.text or example.text != example.text.strip():
        found.append(example.text)
    return found


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(LANGUAGES), st.integers(0, 2**32))
def test_entities_are_whole_words_in_order_for_any_seed(language: DemoLanguage, seed: int) -> None:
    train, dev = demo_examples(language, seed=seed, num_train=60, num_dev=20)
    assert [fault for example in (*train, *dev) for fault in faults(example)] == []
