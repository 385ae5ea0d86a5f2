"""Mistakes in context: what was missed, invented, or found with a wrong edge or type."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from bertfit.data.scores import Overlaps
from bertfit.language import _
from bertfit.types import Entity, Example

MistakeKind = Literal["missed", "invented", "wrong-edge", "wrong-type"]
MISTAKE_KINDS: tuple[MistakeKind, ...] = ("missed", "invented", "wrong-edge", "wrong-type")
_CONTEXT_CHARACTERS = 20
_SHOWN_CHARACTERS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One mistake; `gold` is None where it was invented, `predicted` where it was missed."""

    kind: MistakeKind
    example: Example
    gold: Entity | None
    predicted: Entity | None

    def context(self, num_characters: int = _CONTEXT_CHARACTERS) -> str:
        """Return the place in its text, gold in `[ ]` and predicted in `{ }`, on one line."""
        spans = [span for span in (self.gold, self.predicted) if span is not None]
        text = self.example.text
        start = max(min(span.start for span in spans) - num_characters, 0)
        end = min(max(span.end for span in spans) + num_characters, len(text))
        marks: dict[int, list[str]] = {}
        pairs = [(self.gold, "[", "]"), (self.predicted, "{", "}")]
        # The longer one outside, so that the marks nest.
        for span, opening, closing in sorted(pairs, key=_size, reverse=True):
            if span is not None:
                marks.setdefault(span.end, []).insert(0, closing)
                marks.setdefault(span.start, []).append(opening)
        shown = "".join(
            "".join(marks.get(i, ())) + (text[i] if i < end else "") for i in range(start, end + 1)
        )
        before, after = "…" if start else "", "…" if end < len(text) else ""
        return before + _shortened(shown) + after

    def __str__(self) -> str:
        """Say what is wrong, where, and show it."""
        source = self.example.source
        return _messages()[self.kind].format(
            place=source if source is not None else self.example.id,
            gold=_shown(self.example, self.gold),
            predicted=_shown(self.example, self.predicted),
            context=self.context(),
        )


def _messages() -> dict[MistakeKind, str]:
    return {
        "missed": _("{place}: missed {gold} in: {context}"),
        "invented": _("{place}: invented {predicted} in: {context}"),
        "wrong-edge": _("{place}: wrong edge: {predicted} should be {gold} in: {context}"),
        "wrong-type": _("{place}: wrong type: {predicted} should be {gold} in: {context}"),
    }


def _shown(example: Example, entity: Entity | None) -> str:
    if entity is None:
        return ""
    surface = _shortened(example.text[entity.start : entity.end])
    return f"{entity.label} '{surface}' {entity.start}-{entity.end}"


def _size(marked: tuple[Entity | None, str, str]) -> int:
    span = marked[0]
    return span.end - span.start if span is not None else 0


def _shortened(text: str) -> str:
    """Put a text on one line and leave its middle out if it is long."""
    line = " ".join(text.split())
    if len(line) <= _SHOWN_CHARACTERS:
        return line
    return f"{line[: _SHOWN_CHARACTERS // 2]} … {line[-_SHOWN_CHARACTERS // 2 :]}"


def mistakes(example: Example, predicted: Iterable[Entity]) -> list[Mistake]:
    """Compare the predicted entities of an example with its gold ones, each used once.

    Same span, other label: wrong type. Then overlaps, largest first: with the same label a wrong
    edge, with another a wrong type (the edges may be wrong as well). What is left was missed or
    invented.

    Returns:
        The mistakes in order of the text; none for an example that is not annotated.
    """
    if example.entities is None:
        return []
    gold_left, predicted_left = _without_matches(example.entities, predicted)
    pairs = _pairs(gold_left, predicted_left)
    found = []
    for i, j in pairs:
        gold, guess = gold_left[i], predicted_left[j]
        kind: MistakeKind = "wrong-edge" if gold.label == guess.label else "wrong-type"
        found.append(Mistake(kind=kind, example=example, gold=gold, predicted=guess))
    paired_gold = {i for i, _j in pairs}
    paired_predicted = {j for _i, j in pairs}
    for i, gold in enumerate(gold_left):
        if i not in paired_gold:
            found.append(Mistake(kind="missed", example=example, gold=gold, predicted=None))
    for j, guess in enumerate(predicted_left):
        if j not in paired_predicted:
            found.append(Mistake(kind="invented", example=example, gold=None, predicted=guess))
    return sorted(found, key=_place)


def _place(mistake: Mistake) -> tuple[int, int]:
    spans = [span for span in (mistake.gold, mistake.predicted) if span is not None]
    return min(span.start for span in spans), min(span.end for span in spans)


def _without_matches(
    gold: Iterable[Entity], predicted: Iterable[Entity]
) -> tuple[list[Entity], list[Entity]]:
    """Take out what both have, one for one; both results are sorted."""
    waiting: dict[Entity, int] = {}
    for entity in predicted:
        waiting[entity] = waiting.get(entity, 0) + 1
    gold_left = []
    for entity in sorted(gold):
        if waiting.get(entity, 0):
            waiting[entity] -= 1
        else:
            gold_left.append(entity)
    predicted_left = [entity for entity, count in waiting.items() for _copy in range(count)]
    return gold_left, sorted(predicted_left)


def _pairs(gold: Sequence[Entity], predicted: Sequence[Entity]) -> list[tuple[int, int]]:
    """Pair overlapping entities greedily: same span first, then same label, then most shared."""
    overlaps = Overlaps(gold)
    candidates = []
    for j, guess in enumerate(predicted):
        for i in overlaps.candidates(guess):
            shared = min(guess.end, gold[i].end) - max(guess.start, gold[i].start)
            if shared > 0:
                other_span = (guess.start, guess.end) != (gold[i].start, gold[i].end)
                rank = (other_span, guess.label != gold[i].label, -shared)
                candidates.append((rank, i, j))
    pairs: list[tuple[int, int]] = []
    taken_gold: set[int] = set()
    taken_predicted: set[int] = set()
    for _rank, i, j in sorted(candidates):
        if i not in taken_gold and j not in taken_predicted:
            taken_gold.add(i)
            taken_predicted.add(j)
            pairs.append((i, j))
    return pairs
