"""Mistakes in context: what was missed, invented, or found with a wrong edge or type."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bertfit.data.span_tree import Box, Rule, SpanTree, shared
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
    pairs = _same_spans(gold, predicted)
    by_label = [_by_label(side, set(used)) for side, used in _sides(gold, predicted, pairs)]
    for label in sorted(by_label[0].keys() & by_label[1].keys()):
        pairs += _best_pairs(
            SpanTree(gold, by_label[0][label]), SpanTree(predicted, by_label[1][label])
        )
    pairs += _best_pairs(
        *(
            SpanTree(side, sorted(set(range(len(side))).difference(used)))
            for side, used in _sides(gold, predicted, pairs)
        )
    )

    def rank(pair: tuple[int, int]) -> tuple[bool, bool, int, tuple[int, int]]:
        one, other = gold[pair[0]], predicted[pair[1]]
        other_span = (one.start, one.end) != (other.start, other.end)
        return other_span, one.label != other.label, -shared(one, other), pair

    return sorted(pairs, key=rank)


def _sides(
    gold: Sequence[Entity], predicted: Sequence[Entity], pairs: Sequence[tuple[int, int]]
) -> list[tuple[Sequence[Entity], list[int]]]:
    """Return both sides with the places of theirs that are in a pair."""
    return [(gold, [i for i, __ in pairs]), (predicted, [j for __, j in pairs])]


def _by_label(entities: Sequence[Entity], used: set[int]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, entity in enumerate(entities):
        if place not in used:
            places.setdefault(entity.label, []).append(place)
    return places


def _same_spans(gold: Sequence[Entity], predicted: Sequence[Entity]) -> list[tuple[int, int]]:
    """Pair entities of one span, in order; their labels differ, or they would be no mistake."""
    places: dict[tuple[int, int], list[int]] = {}
    for i, entity in enumerate(gold):
        if entity.start < entity.end:
            places.setdefault((entity.start, entity.end), []).append(i)
    waiting = {span: iter(found) for span, found in places.items()}
    pairs = []
    for j, entity in enumerate(predicted):
        found = next(waiting.get((entity.start, entity.end), iter(())), None)
        if found is not None:
            pairs.append((found, j))
    return pairs


def _best_pairs(gold: SpanTree, predicted: SpanTree) -> Iterator[tuple[int, int]]:
    """Take the two that share most out of both trees, again and again while any share something.

    Not by looking at all pairs. From one to that which it shares most with, from there to the
    next, and so on, there is more at every step, until two are each other's best. No other pair
    has a better claim to one of them, so they are a pair, whatever comes before it.
    """
    chain: list[int] = []  # places in turn: predicted, gold, predicted, ...
    while chain or predicted.first is not None:
        if not chain and predicted.first is not None:
            chain.append(predicted.first)
        own, other = (predicted, gold) if len(chain) % 2 else (gold, predicted)
        best = other.best(_most_shared(own.spans[chain[-1]]))
        if best is None:
            own.remove(chain.pop())
        elif chain[-2:-1] == [best]:
            pair = chain.pop(), chain.pop()
            own.remove(pair[0])
            other.remove(pair[1])
            yield pair if own is gold else (pair[1], pair[0])
        else:
            chain.append(best)


def _most_shared(entity: Entity) -> Rule:
    def rank(other: Entity) -> int | None:
        size = shared(entity, other)
        return -size if size > 0 else None

    def bound(box: Box) -> int | None:
        size = box.most_shared(entity)
        return -size if size > 0 else None

    return Rule(rank=rank, bound=bound)
