"""What a labelled file holds, counted as stored: nested spans and spans on one place included."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bertfit.types import Example


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counts over the examples of one file, or of several.

    Attributes:
        examples: Texts.
        entities: Every span as stored.
        by_label: How many of each label, the most frequent first in `ordered`.
        unannotated: Texts without annotation.
        without_entities: Texts that are annotated with nothing.
        words: Words of the files that have words.
        characters: Code points of all texts.
        max_chars: Code points of the longest text.
        max_entity_chars: Code points of the longest span.
    """

    examples: int = 0
    entities: int = 0
    by_label: Counter[str] = field(default_factory=Counter)
    unannotated: int = 0
    without_entities: int = 0
    words: int = 0
    characters: int = 0
    max_chars: int = 0
    max_entity_chars: int = 0

    def add(self, example: Example) -> None:
        """Count one example."""
        self.examples += 1
        length = len(example.text)
        self.characters += length
        self.max_chars = max(self.max_chars, length)
        if example.words is not None:
            self.words += len(example.words)
        if example.entities is None:
            self.unannotated += 1
        elif not example.entities:
            self.without_entities += 1
        else:
            self.entities += len(example.entities)
            for entity in example.entities:
                self.by_label[entity.label] += 1
                self.max_entity_chars = max(self.max_entity_chars, entity.end - entity.start)

    def ordered(self) -> dict[str, int]:
        """Return the labels with their counts, the most frequent first."""
        return dict(sorted(self.by_label.items(), key=lambda item: (-item[1], item[0])))

    @property
    def mean_chars(self) -> float:
        """Mean length of a text in code points."""
        return self.characters / self.examples if self.examples else 0.0


def total(parts: Iterable[Counts]) -> Counts:
    """Add up the counts of several files."""
    result = Counts()
    for part in parts:
        result.examples += part.examples
        result.entities += part.entities
        result.by_label.update(part.by_label)
        result.unannotated += part.unannotated
        result.without_entities += part.without_entities
        result.words += part.words
        result.characters += part.characters
        result.max_chars = max(result.max_chars, part.max_chars)
        result.max_entity_chars = max(result.max_entity_chars, part.max_entity_chars)
    return result


def counted(examples: Iterable[Example], counts: Counts) -> Iterator[Example]:
    """Pass examples on and count them."""
    for example in examples:
        counts.add(example)
        yield example
