"""The best of many spans, found by looking at few, is the best of all."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertfit.data import mistakes as mistakes_module
from bertfit.data import scores as scores_module
from bertfit.data import span_tree
from bertfit.data.mistakes import mistakes
from bertfit.data.scores import Scorer
from bertfit.data.span_tree import Rule, SpanTree, shared
from bertfit.types import Entity, Example

_SPANS = st.tuples(st.integers(0, 60), st.integers(1, 40)).map(
    lambda drawn: Entity(start=drawn[0], end=sum(drawn), label="A")
)


def most_shared(span: Entity) -> Rule:
    return Rule(
        rank=lambda other: -shared(span, other) if shared(span, other) > 0 else None,
        bound=lambda box: -box.most_shared(span) if box.most_shared(span) > 0 else None,
    )


def nearest(span: Entity) -> Rule:
    return Rule(
        rank=lambda other: abs(span.start - other.start) + abs(span.end - other.end),
        bound=lambda box: box.least_distance(span),
    )


def anyone(span: Entity) -> Rule:
    return Rule(rank=lambda other: 0, bound=lambda box: 0)


@given(
    spans=st.lists(_SPANS, max_size=120),
    asked=st.lists(st.tuples(_SPANS, st.sampled_from([most_shared, nearest, anyone])), max_size=30),
    part=st.integers(1, 3),
)
def test_the_best_is_that_of_all_that_are_left(
    spans: list[Entity], asked: list[tuple[Entity, object]], part: int
) -> None:
    places = list(range(0, len(spans), part))
    tree = SpanTree(spans, places)
    for span, make in asked:
        rule = make(span)  # type: ignore[operator]
        ranks = [(rule.rank(spans[place]), place) for place in places]
        expected = min(((r, p) for r, p in ranks if r is not None), default=(None, None))[1]
        assert tree.best(rule) == expected
        if expected is not None:
            tree.remove(expected)
            places.remove(expected)
        assert (tree.first, len(tree)) == (min(places, default=None), len(places))
        assert all((place in tree) == (place in places) for place in range(len(spans)))


_MANY = 3000
_RNG = random.Random(0)


def _e(start: int, end: int, label: str = "A") -> Entity:
    return Entity(start=start, end=end, label=label)


def _any() -> Entity:
    start = _RNG.randrange(_MANY)
    return _e(start, start + 1 + _RNG.randrange(_MANY), _RNG.choice("AB"))


_NESTED = [_e(i, 2 * _MANY - i) for i in range(_MANY)]
_CASES = {
    "nested, flat": (_NESTED, [_e(i, i + 1) for i in range(0, 2 * _MANY, 2)]),
    "nested": (_NESTED, [_e(i, 2 * _MANY - i - 1) for i in range(_MANY)]),
    "nested, other label": (_NESTED, [_e(i, 2 * _MANY - i, "B") for i in range(_MANY)]),
    "crossing": (
        [_e(i, i + _MANY) for i in range(_MANY)],
        [_e(i + 1, i + _MANY, "AB"[i % 2]) for i in range(_MANY)],
    ),
    "all the same": ([_e(0, 9)] * _MANY, [_e(0, 8)] * _MANY),
    "one start": (
        [_e(0, i + 1) for i in range(_MANY)],
        [_e(1, i + 2) for i in range(_MANY)],
    ),
    "each its label": (
        [_e(i, 2 * _MANY - i, str(i)) for i in range(_MANY)],
        [_e(i + 1, 2 * _MANY - i, str(i)) for i in range(_MANY)],
    ),
    "anywhere": ([_any() for __ in range(_MANY)], [_any() for __ in range(_MANY)]),
}


@pytest.mark.parametrize("name", list(_CASES))
def test_thousands_of_spans_across_each_other_are_not_all_compared(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gold, predicted = _CASES[name]
    compared = 0

    def counted(a: Entity, b: Entity) -> int:
        nonlocal compared
        compared += 1
        return shared(a, b)

    for module in (span_tree, scores_module, mistakes_module):
        monkeypatch.setattr(module, "shared", counted)
    scorer = Scorer()
    scorer.add(gold, predicted)
    found = mistakes(Example(id="x", text="", entities=tuple(gold)), predicted)
    correct = scorer.scores().micro.correct
    assert sum(mistake.gold is not None for mistake in found) == len(gold) - correct
    # All pairs, in four schemas and as mistakes, would be 45 million.
    assert compared < 400 * _MANY
