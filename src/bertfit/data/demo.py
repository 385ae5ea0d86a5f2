"""Built-in data for the demo: sentences from a small grammar, English or Chinese.

The grammars (`demo_en.toml`, `demo_zh.toml`) compose names from parts and use the same coined name
as a person, a place or a company, so that a tagger must read the context. No entity of the dev file
occurs anywhere in the text of the train file.

A rule is a list of equally likely texts. `{name}` inserts a text of another rule; where the name is
a label, what it inserts is an entity. `{LABEL=name}` makes an entity from the rule `name`,
`{LABEL:text}` from the text itself.
"""

import json
import random
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertfit.types import Entity, Example

DemoLanguage = Literal["en", "zh"]
Split = Literal["train", "dev"]

_SLOT = re.compile(r"\{([^{}:=]+)(?:=([^{}]+)|:([^{}]+))?\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grammar:
    labels: frozenset[str]
    capitalise: bool
    sample: str
    rules: Mapping[Split, Mapping[str, list[str]]]


def _read_grammar(language: DemoLanguage) -> _Grammar:
    content = tomllib.loads(
        Path(__file__).with_name(f"demo_{language}.toml").read_text(encoding="utf-8")
    )
    return _Grammar(
        labels=frozenset(content["labels"]),
        capitalise=content["capitalise"],
        sample=content["sample"],
        rules={
            "train": content["rules"] | content["train"],
            "dev": content["rules"] | content["dev"],
        },
    )


class _Writer:
    """Expands rules into one text and notes where its entities lie."""

    def __init__(self, grammar: _Grammar, split: Split, rng: random.Random) -> None:
        self._labels = grammar.labels
        self._rules = grammar.rules[split]
        self._rng = rng
        self._length = 0
        self._pieces: list[str] = []
        self._entities: list[Entity] = []

    def write(self, template: str) -> tuple[str, tuple[Entity, ...]]:
        self._pieces, self._entities, self._length = [], [], 0
        self._expand(template)
        return "".join(self._pieces), tuple(self._entities)

    def _expand(self, template: str) -> None:
        position = 0
        for slot in _SLOT.finditer(template):
            self._append(template[position : slot.start()])
            position = slot.end()
            name, rule, literal = slot.groups()
            start = self._length
            self._expand(literal or self._rng.choice(self._rules[rule or name]))
            if name in self._labels:
                self._entities.append(Entity(start=start, end=self._length, label=name))
        self._append(template[position:])

    def _append(self, piece: str) -> None:
        self._pieces.append(piece)
        self._length += len(piece)


def _examples(grammar: _Grammar, split: Split, rng: random.Random) -> Iterator[Example]:
    writer = _Writer(grammar, split, rng)
    number = 0
    while True:
        text, entities = writer.write("{sentence}")
        if grammar.capitalise:
            text = (
                text[0].upper() + text[1:] if text[0] != "“" else "“" + text[1:2].upper() + text[2:]
            )
        yield Example(id=f"{split}-{number}", text=text, entities=entities)
        number += 1


def demo_examples(
    language: DemoLanguage, *, seed: int = 0, num_train: int = 1200, num_dev: int = 300
) -> tuple[list[Example], list[Example]]:
    """Make the train and the dev sentences.

    No text occurs twice, and no entity of a dev sentence occurs in the text of any train sentence.

    Args:
        language: `en` or `zh`.
        seed: The same seed makes the same sentences.
        num_train: How many train sentences.
        num_dev: How many dev sentences.

    Returns:
        Train examples, dev examples.
    """
    grammar = _read_grammar(language)
    train: dict[str, Example] = {}
    for example in _examples(grammar, "train", random.Random(f"{seed} train")):
        if len(train) == num_train:
            break
        train.setdefault(example.text, example)
    seen = "\n".join(train)
    dev: dict[str, Example] = {}
    for example in _examples(grammar, "dev", random.Random(f"{seed} dev")):
        if len(dev) == num_dev:
            break
        if example.text not in train and not any(s in seen for s in surfaces(example)):
            dev.setdefault(example.text, example)
    return list(train.values()), list(dev.values())


def write_demo(
    folder: Path,
    language: DemoLanguage,
    *,
    seed: int = 0,
    num_train: int = 1200,
    num_dev: int = 300,
) -> tuple[Path, Path]:
    """Write the demo data as span JSON lines (`text`, `entities` with exclusive ends).

    Args:
        folder: Made if absent; receives `train.jsonl` and `dev.jsonl`.
        language: `en` or `zh`.
        seed: The same seed makes the same sentences.
        num_train: How many train sentences.
        num_dev: How many dev sentences.

    Returns:
        The paths of the train file and the dev file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = (folder / "train.jsonl", folder / "dev.jsonl")
    for path, examples in zip(
        paths,
        demo_examples(language, seed=seed, num_train=num_train, num_dev=num_dev),
        strict=True,
    ):
        path.write_text("".join(_line(example) for example in examples), encoding="utf-8")
    return paths


def _line(example: Example) -> str:
    entities = [
        {"start": entity.start, "end": entity.end, "label": entity.label}
        for entity in example.entities or ()
    ]
    return json.dumps({"text": example.text, "entities": entities}, ensure_ascii=False) + "\n"


def sentence(language: DemoLanguage) -> Example:
    """Return the sentence that the demo prints: its names are in no train file of any seed."""
    grammar = _read_grammar(language)
    text, entities = _Writer(grammar, "dev", random.Random(0)).write(grammar.sample)
    return Example(id="sample", text=text, entities=entities)


def surfaces(example: Example) -> list[str]:
    """Return the text of every entity of an example, in order."""
    return [example.text[entity.start : entity.end] for entity in example.entities or ()]
