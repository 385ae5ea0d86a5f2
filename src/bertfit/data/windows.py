"""Windows: texts as runs of token ids that fit a model, and the way back to entities.

A text longer than a window is cut into several with an overlap; each unit is answered by exactly
one of them, the one where it has most context on both sides. Nothing is truncated.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from bertfit.data.gold import flat, problems_of, unit_span
from bertfit.data.pieces import MAX_PIECES, TextTokenizer, UnitPieces, flatten
from bertfit.data.tags import OUTSIDE, encode, spans
from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.types import IGNORED, Entity, Example, LabelScheme, Problem, Split, Window


def windows(
    examples: Iterable[Example],
    tokenizer: TextTokenizer,
    *,
    scheme: LabelScheme | None,
    max_length: int,
    overlap: int,
    split: Split,
    on_problem: Callable[[Problem], None] | None = None,
) -> Iterator[Window]:
    """Cut texts into windows, one example at a time and in order.

    A text without units (empty, or only white space) has no window. A unit is labelled only in
    the window that answers for it, so that it is learnt once.

    Args:
        examples: Read as the windows are asked for.
        tokenizer: Turns units into token ids.
        scheme: The tags to learn; None makes windows without labels, as does an example whose
            `entities` is None. Units of an entity whose label is not in the scheme are `IGNORED`.
        max_length: Tokens of a window, special tokens included.
        overlap: Tokens that neighbouring windows share at most, up to half a window.
        split: How texts are cut into units.
        on_problem: Told what cannot be learnt as it is stored: overlapping entities, edges inside
            a unit, entities longer than a window.

    Raises:
        ConfigError: a length that holds no unit, or an overlap of over half a window.
    """
    parts = tokenizer.parts
    capacity = room(max_length, len(parts.prefix_ids) + len(parts.suffix_ids))
    _check_overlap(max_length, capacity, overlap)
    labeller = _Labeller(scheme, capacity, on_problem) if scheme is not None else None
    for index, example in enumerate(examples):
        cut = tokenizer.cut(example, split)
        if not cut.starts:
            continue
        if capacity < MAX_PIECES:
            cut = UnitPieces(
                starts=cut.starts, ends=cut.ends, pieces=[ids[:capacity] for ids in cut.pieces]
            )
        bounds = [0, *accumulate(map(len, cut.pieces))]
        labels = labeller.labels(example, cut, bounds) if labeller is not None else None
        for first, last, owned in _ranges(bounds, capacity, overlap):
            yield _window(index, tokenizer, cut, bounds, labels, first, last, owned)


def room(max_length: int, num_special: int) -> int:
    """Return the tokens of text that a window holds beside the special ones.

    Raises:
        ConfigError: it holds none.
    """
    if max_length <= num_special:
        raise ConfigError(
            _(
                "A max_length of {max_length} tokens holds nothing beside the special tokens. "
                "Use at least {least}."
            ).format(max_length=max_length, least=num_special + 1)
        )
    return max_length - num_special


def _check_overlap(max_length: int, capacity: int, overlap: int) -> None:
    if not 0 <= overlap <= capacity // 2:
        raise ConfigError(
            _(
                "An overlap of {overlap} tokens does not suit a max_length of {max_length}: "
                "use 0 to {most}, half a window at most."
            ).format(overlap=overlap, max_length=max_length, most=capacity // 2)
        )


def _ranges(
    bounds: Sequence[int], capacity: int, overlap: int
) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Cut U units into windows.

    Args:
        bounds: (U + 1,) tokens before every unit, and of all.
        capacity: Tokens that a window holds.
        overlap: Tokens that neighbours share at most.

    Yields:
        The units of a window, half-open, and the part of them that it answers for.
    """
    num_units = len(bounds) - 1
    first, owned_from, shared_until = 0, 0, 0
    while True:
        last = max(bisect_right(bounds, bounds[first] + capacity) - 1, first + 1)
        if last == num_units:
            yield first, last, (owned_from, last)
            return
        # Only neighbours share units: the next window begins after the one before this ended.
        following = max(bisect_left(bounds, bounds[last] - overlap), first + 1, shared_until)
        owned_until = last
        for unit in range(following, last):
            # Its context to the right in this window, against that to the left in the next.
            if bounds[last] - bounds[unit + 1] < bounds[unit] - bounds[following]:
                owned_until = unit
                break
        yield first, last, (owned_from, owned_until)
        first, owned_from, shared_until = following, owned_until, last


def _window(
    index: int,
    tokenizer: TextTokenizer,
    cut: UnitPieces,
    bounds: list[int],
    labels: list[int] | None,
    first: int,
    last: int,
    owned: tuple[int, int],
) -> Window:
    prefix, suffix = tokenizer.parts.prefix_ids, tokenizer.parts.suffix_ids
    units = np.empty((last - first, 2), dtype=np.int32)
    units[:, 0] = cut.starts[first:last]
    units[:, 1] = cut.ends[first:last]
    first_token = np.array(bounds[first:last], dtype=np.int32)
    first_token += len(prefix) - bounds[first]
    learnt = None
    begin, end = owned[0] - first, owned[1] - first
    if labels is not None:
        learnt = np.full(last - first, IGNORED, dtype=np.int16)
        learnt[begin:end] = labels[owned[0] : owned[1]]
    return Window(
        index=index,
        input_ids=np.array([*prefix, *flatten(cut.pieces[first:last]), *suffix], dtype=np.int32),
        units=units,
        first_token=first_token,
        labels=learnt,
        owned=(begin, end),
    )


class _Labeller:
    """Gives every unit of an example its tag id."""

    def __init__(
        self,
        scheme: LabelScheme,
        capacity: int,
        on_problem: Callable[[Problem], None] | None,
    ) -> None:
        self._scheme = scheme
        self._capacity = capacity
        self._on_problem = on_problem
        self._ids = {tag: position for position, tag in enumerate(scheme.tags)}
        self._known = frozenset(scheme.labels)

    def labels(self, example: Example, cut: UnitPieces, bounds: Sequence[int]) -> list[int] | None:
        """Return (U,) tag ids; None for an example that is not annotated."""
        if example.entities is None:
            return None
        num_units = len(cut.starts)
        blank = IGNORED if self._scheme.encoding == "none" else self._ids[OUTSIDE]
        labels = [blank] * num_units
        if not example.entities:
            return labels
        if self._on_problem is not None:
            for problem in problems_of(example, cut.starts, cut.ends):
                self._on_problem(problem)
        kept, _dropped = flat(example.entities)
        free = 0  # units before this one are taken by the entity before
        for entity in kept:
            first, last = unit_span(cut.starts, cut.ends, entity)
            first = max(first, free)
            if first >= last:
                continue
            free = last
            self._report_length(example, entity, bounds[last] - bounds[first])
            if entity.label not in self._known:
                labels[first:last] = [IGNORED] * (last - first)
                continue
            tags = encode([(0, last - first, entity.label)], last - first, self._scheme.encoding)
            labels[first:last] = [self._ids[tag] for tag in tags]
        return labels

    def _report_length(self, example: Example, entity: Entity, num_tokens: int) -> None:
        if num_tokens <= self._capacity or self._on_problem is None:
            return
        self._on_problem(
            Problem(
                path=example.source.path if example.source else example.id,
                line=example.source.line if example.source else 0,
                kind="entity-longer-than-window",
                message=_(
                    "{label} at {start}-{end} has {num_tokens} tokens, more than a window's "
                    "{capacity}: no window sees it whole. Raise --max-length if the model allows."
                ).format(
                    label=entity.label,
                    start=entity.start,
                    end=entity.end,
                    num_tokens=num_tokens,
                    capacity=self._capacity,
                ),
                severity="note",
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedWindow:
    """A window with what the model said: U tag ids, and how sure it was of each (or None)."""

    window: Window
    tag_ids: NDArray[np.int16]
    scores: NDArray[np.float32] | None = None


def merge(
    tagged: Iterable[TaggedWindow],
    scheme: LabelScheme,
    *,
    num_examples: int | None = None,
) -> Iterator[list[Entity]]:
    """Turn tagged windows back into the entities of each example.

    Every window gives the tags of the units that it owns; joined, they are the tags of the text,
    so an entity across the border of two windows is one. Illegal sequences are read by the rule of
    `tags.spans`. The score of an entity is the mean of its units'.

    Args:
        tagged: In the order in which `windows` made them.
        scheme: The tags of the model.
        num_examples: How many lists are due; needed if the last examples may have no window.

    Yields:
        One list per example, in order; empty for an example that had no window.
    """
    current: list[TaggedWindow] = []
    index = 0
    for result in tagged:
        if current and result.window.index != index:
            yield _entities(current, scheme)
            current, index = [], index + 1
        while index < result.window.index:
            yield []
            index += 1
        current.append(result)
    if current:
        yield _entities(current, scheme)
        index += 1
    for _missing in range(index, num_examples or 0):
        yield []


def _entities(tagged: Sequence[TaggedWindow], scheme: LabelScheme) -> list[Entity]:
    """Read the entities of one example out of all its windows."""
    units: list[list[int]] = []
    tags: list[str] = []
    scores: list[float] = []
    for result in tagged:
        begin, end = result.window.owned
        units += result.window.units[begin:end].tolist()
        tags += [scheme.tags[tag] for tag in result.tag_ids[begin:end].tolist()]
        if result.scores is not None:
            scores += result.scores[begin:end].tolist()
    found = spans(tags, scheme.encoding, one_each=True)
    return [
        Entity(
            start=units[first][0],
            end=units[last - 1][1],
            label=label,
            score=sum(scores[first:last]) / (last - first) if scores else None,
        )
        for first, last, label in found
    ]
