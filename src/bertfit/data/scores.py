"""Scores of predicted entities against gold ones: strict as seqeval, partial as nervaluate.

Entities are compared as spans of the untouched text, so the tag scheme of a file has no part in
it. Only counts are kept. Where a ratio has nothing to divide by, it is 0.0.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from bertfit.data.span_tree import Box, Rule, SpanTree, shared
from bertfit.types import Entity, LabelScore, Scores, Task

Schema = Literal["strict", "exact", "partial", "ent_type"]
Outcome = Literal["correct", "incorrect", "partial", "missed", "spurious"]

SCHEMAS: tuple[Schema, ...] = ("strict", "exact", "partial", "ent_type")
# nervaluate 1.x: an overlap counts from 1% of the gold entity on.
_LEAST_OVERLAP_PERCENT = 1.0


class Scorer:
    """Adds up the counts of one example after the other."""

    def __init__(self, task: Task = "ner") -> None:
        self._task = task
        self._support: Counter[str] = Counter()
        self._predicted: Counter[str] = Counter()
        self._correct: Counter[str] = Counter()
        self._outcomes: dict[Schema, Counter[Outcome]] = {schema: Counter() for schema in SCHEMAS}
        self._num_examples = 0

    def add(self, gold: Iterable[Entity], predicted: Iterable[Entity]) -> None:
        """Count one example.

        Args:
            gold: Entities as they were annotated, overlapping ones included.
            predicted: Entities of the tagger.
        """
        # nervaluate's counts depend on the order; a text's own order is the natural one.
        gold, predicted = sorted(gold), sorted(predicted)
        self._num_examples += 1
        self._support.update(entity.label for entity in gold)
        self._predicted.update(entity.label for entity in predicted)
        if gold == predicted and _are_apart(gold):  # most examples, once a model is good
            self._correct.update(entity.label for entity in gold)
            for outcomes in self._outcomes.values():
                outcomes["correct"] += len(gold)
            return
        both = Counter(gold) & Counter(predicted)
        for entity, count in both.items():
            self._correct[entity.label] += count
        for schema, outcomes in self._outcomes.items():
            outcomes.update(_outcomes(schema, gold, predicted))

    def scores(self) -> Scores:
        """Return the scores of all examples so far."""
        labels = sorted(self._support.keys() | self._predicted.keys())
        by_label = {
            label: _label_score(self._support[label], self._predicted[label], self._correct[label])
            for label in labels
        }
        micro = _label_score(self._support.total(), self._predicted.total(), self._correct.total())
        count = max(len(labels), 1)
        macro = LabelScore(
            precision=sum(score.precision for score in by_label.values()) / count,
            recall=sum(score.recall for score in by_label.values()) / count,
            f1=sum(score.f1 for score in by_label.values()) / count,
            support=micro.support,
            predicted=micro.predicted,
            correct=micro.correct,
        )
        return Scores(
            micro=micro,
            macro=macro,
            by_label=by_label,
            partial={schema: _ratios(counts) for schema, counts in self._outcomes.items()},
            num_examples=self._num_examples,
            accuracy=micro.recall if self._task == "pos" else None,
        )


def _are_apart(entities: Sequence[Entity]) -> bool:
    return all(before.end <= after.start for before, after in pairwise(entities))


def _label_score(support: int, predicted: int, correct: int) -> LabelScore:
    precision = correct / predicted if predicted else 0.0
    recall = correct / support if support else 0.0
    return LabelScore(
        precision=precision,
        recall=recall,
        f1=_harmonic(precision, recall),
        support=support,
        predicted=predicted,
        correct=correct,
    )


def _harmonic(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _ratios(outcomes: Counter[Outcome]) -> dict[str, float]:
    """Turn counts into nervaluate's ratios; half a point for a partial match."""
    right = outcomes["correct"] + 0.5 * outcomes["partial"]
    decided = outcomes["correct"] + outcomes["incorrect"] + outcomes["partial"]
    actual, possible = decided + outcomes["spurious"], decided + outcomes["missed"]
    precision = right / actual if actual else 0.0
    recall = right / possible if possible else 0.0
    counts = {
        name: float(outcomes[name])
        for name in ("correct", "incorrect", "partial", "missed", "spurious")
    }
    return {
        "precision": precision,
        "recall": recall,
        "f1": _harmonic(precision, recall),
        **counts,
    }


def _outcomes(
    schema: Schema, gold: Sequence[Entity], predicted: Sequence[Entity]
) -> Counter[Outcome]:
    """Match predictions to gold entities, each used once, in order of the text.

    Source: nervaluate 1.x, strategies.py, with its default of 1% overlap.
    """
    found: Counter[Outcome] = Counter()
    left = SpanTree(gold)
    hits = _NearHits(gold) if schema == "ent_type" else _ExactHits(schema, gold, left)
    for entity in predicted:
        outcome: Outcome = "correct"
        place = hits.find(entity)
        if place is None:
            place = left.best(_touched(entity))
            outcome = "partial" if schema == "partial" else "incorrect"
        if place is None:
            outcome = "spurious"
        else:
            left.remove(place)
            hits.remove(place)
        found[outcome] += 1
    found["missed"] += len(left)
    return found


class _ExactHits:
    """Finds the first gold entity that is left on the span of a prediction."""

    def __init__(self, schema: Schema, gold: Sequence[Entity], left: SpanTree) -> None:
        self._strict, self._left = schema == "strict", left
        self._places: dict[tuple[int, int, str], list[int]] = {}
        for place in reversed(range(len(gold))):
            self._places.setdefault(self._key(gold[place]), []).append(place)

    def _key(self, entity: Entity) -> tuple[int, int, str]:
        return entity.start, entity.end, entity.label if self._strict else ""

    def find(self, entity: Entity) -> int | None:
        places = self._places.get(self._key(entity), [])
        while places and places[-1] not in self._left:
            places.pop()
        return places[-1] if places and entity.start < entity.end else None

    def remove(self, place: int) -> None:
        """What is no longer left is passed over."""


class _NearHits:
    """Finds the nearest gold entity of the same label that is left and touched."""

    def __init__(self, gold: Sequence[Entity]) -> None:
        self._gold = gold
        places: dict[str, list[int]] = {}
        for place, entity in enumerate(gold):
            places.setdefault(entity.label, []).append(place)
        self._left = {label: SpanTree(gold, some) for label, some in places.items()}

    def find(self, entity: Entity) -> int | None:
        def distance(gold: Entity) -> int | None:
            if not _touches(entity, gold):
                return None
            return abs(entity.start - gold.start) + abs(entity.end - gold.end)

        def least(box: Box) -> int | None:
            return box.least_distance(entity) if _may_touch(entity, box) else None

        left = self._left.get(entity.label)
        return None if left is None else left.best(Rule(rank=distance, bound=least))

    def remove(self, place: int) -> None:
        self._left[self._gold[place].label].remove(place)


def _touched(entity: Entity) -> Rule:
    """Make the rule for the first gold entity that a prediction touches."""
    return Rule(
        rank=lambda gold: 0 if _touches(entity, gold) else None,
        bound=lambda box: 0 if _may_touch(entity, box) else None,
    )


def _touches(entity: Entity, gold: Entity) -> bool:
    return _counts(shared(entity, gold), gold.end - gold.start)


def _may_touch(entity: Entity, box: Box) -> bool:
    return _counts(box.most_shared(entity), max(box.min_size, 1))


def _counts(shared: int, size: int) -> bool:
    """Say whether so much of a gold entity of this size counts as an overlap."""
    return shared > 0 and shared / size * 100.0 >= _LEAST_OVERLAP_PERCENT
