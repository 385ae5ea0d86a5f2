"""Scores of predicted entities against gold ones: strict as seqeval, partial as nervaluate.

Entities are compared as spans of the untouched text, so the tag scheme of a file has no part in
it. Only counts are kept. Where a ratio has nothing to divide by, it is 0.0.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Literal

from bertfit.types import Entity, LabelScore, Scores, Task

Schema = Literal["strict", "exact", "partial", "ent_type"]
Outcome = Literal["correct", "incorrect", "partial", "missed", "spurious"]

SCHEMAS: tuple[Schema, ...] = ("strict", "exact", "partial", "ent_type")
# nervaluate 1.x: an overlap counts from 1% of the gold entity on.
_LEAST_OVERLAP_PERCENT = 1.0


class Overlaps:
    """Finds the entities that overlap a span, without looking at all of them."""

    def __init__(self, entities: Sequence[Entity]) -> None:
        """Take entities sorted by their start; they may overlap each other."""
        self._starts = [entity.start for entity in entities]
        self._furthest = list(accumulate((entity.end for entity in entities), max))

    def candidates(self, span: Entity) -> range:
        """Return the positions of all entities that may overlap a span, few others among them."""
        return range(bisect_right(self._furthest, span.start), bisect_left(self._starts, span.end))


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
    overlaps = Overlaps(gold)
    used: set[int] = set()
    for entity in predicted:
        hit: int | None = None
        near: int | None = None
        nearest = 0
        for place in overlaps.candidates(entity):
            if place in used:
                continue
            other = gold[place]
            touches = _touches(entity, other)
            if schema == "ent_type":
                distance = abs(entity.start - other.start) + abs(entity.end - other.end)
                if touches and entity.label == other.label and (hit is None or distance < nearest):
                    hit, nearest = place, distance
                elif touches and entity.label != other.label and near is None:
                    near = place
            elif _is_hit(schema, entity, other):
                hit = place
                break
            elif touches and near is None:
                near = place
        chosen = hit if hit is not None else near
        if hit is not None:
            found["correct"] += 1
        elif near is not None:
            found["partial" if schema == "partial" else "incorrect"] += 1
        else:
            found["spurious"] += 1
        if chosen is not None:
            used.add(chosen)
    found["missed"] += len(gold) - len(used)
    return found


def _is_hit(schema: Schema, entity: Entity, other: Entity) -> bool:
    same_span = entity.start == other.start and entity.end == other.end
    return same_span and (schema != "strict" or entity.label == other.label)


def _touches(entity: Entity, gold: Entity) -> bool:
    shared = min(entity.end, gold.end) - max(entity.start, gold.start)
    return shared > 0 and shared / (gold.end - gold.start) * 100.0 >= _LEAST_OVERLAP_PERCENT
