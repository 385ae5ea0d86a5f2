"""The records of which there are millions behave as frozen dataclasses do."""

import pickle
from dataclasses import replace

import pytest

from bertfit.types import Entity, Example, Source


def example() -> Example:
    return Example(
        id="a-1",
        text="Anna",
        entities=(Entity(start=0, end=4, label="PER", score=0.5),),
        words=((0, 4),),
        source=Source(path="a", line=1),
        extra={"x": 1},
    )


def test_equal_records_are_one_in_a_set_and_differ_by_what_is_compared() -> None:
    assert {example(), example()} == {example()}
    assert hash(example()) == hash(replace(example(), extra={})) != hash(replace(example(), id="b"))
    assert Entity(start=0, end=1, label="A") == Entity(start=0, end=1, label="A", score=0.1)
    assert Entity(start=0, end=1, label="B") < Entity(start=0, end=2, label="A")


def test_they_come_back_from_a_pickle() -> None:
    again = pickle.loads(pickle.dumps(example()))
    assert again == example()
    assert again.extra == {"x": 1} and again.entities[0].score == 0.5


def test_they_hold_their_fields_only_and_take_them_by_name() -> None:
    with pytest.raises(AttributeError):
        example().other = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        Source("a", 1)  # type: ignore[misc]
