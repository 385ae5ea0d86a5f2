"""Spans that lie across each other, of which the best under some rule is found by looking at few.

A text may hold thousands of spans, each of them across most others, as hostile files do. Spans are
points in the plane of their middle and their size; a tree of boxes halves them by the one and by
the other in turn, and boxes in which nothing better can be are not looked into.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from bertfit.types import Entity

_LEAF_SPANS = 16


def shared(a: Entity, b: Entity) -> int:
    """Return how many characters two spans have in common; not positive where they have none."""
    return min(a.end, b.end) - max(a.start, b.start)


@dataclass(slots=True, eq=False)
class Box:
    """A part of the spans.

    Attributes:
        min_start: of any of its spans, those that were removed included; so the others.
        max_end: likewise.
        min_size: likewise; so `max_size`.
        min_sum: of start and end, twice the middle; so `max_sum`.
        first: the lowest place of a span that is left.
        places: of the spans that are left, in order; none where there are halves.
        halves: the boxes in it.
        around: the box that it is in.
    """

    min_start: int
    max_end: int
    min_size: int
    max_size: int
    min_sum: int
    max_sum: int
    first: int | None
    places: list[int] = field(default_factory=list)
    halves: tuple["Box", ...] = ()
    around: "Box | None" = field(default=None, repr=False)

    def most_shared(self, span: Entity) -> int:
        """Return what none of its spans has more of in common with this one; it may be negative."""
        return min(
            span.end - span.start,
            self.max_size,
            span.end - self.min_start,
            self.max_end - span.start,
        )

    def least_distance(self, span: Entity) -> int:
        """Return what none of its spans is nearer by: the distance of starts plus that of ends."""
        size, total = span.end - span.start, span.end + span.start
        # |a| + |b| is the larger of |a - b| and |a + b|.
        return max(
            0,
            self.min_size - size,
            size - self.max_size,
            self.min_sum - total,
            total - self.max_sum,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What makes a span better than another; of equals the first in place is the best.

    Attributes:
        rank: of a span, the lower the better; None where it is out of the question.
        bound: no span in a box has a lower rank; None where all of them are out of the question.
    """

    rank: Callable[[Entity], int | None]
    bound: Callable[[Box], int | None]


class SpanTree:
    """Some of the spans of a text, to be taken out one after the other.

    Args:
        spans: all of them.
        places: of those that are in the tree; None is all.

    Attributes:
        spans: all of them, the removed ones included.
    """

    def __init__(self, spans: Sequence[Entity], places: Sequence[int] | None = None) -> None:
        self.spans = spans
        self._leaf_of: dict[int, Box] = {}
        self._root = self._box(list(range(len(spans)) if places is None else places), by_size=False)

    def __contains__(self, place: int) -> bool:
        """Say whether a span is left."""
        return place in self._leaf_of

    def __len__(self) -> int:
        """Return how many are left."""
        return len(self._leaf_of)

    @property
    def first(self) -> int | None:
        """The lowest place that is left."""
        return self._root.first

    def best(self, rule: Rule) -> int | None:
        """Return the place of the best span that is left; None where none is in question."""
        best: tuple[int, int] | None = None  # rank and place
        waiting: list[tuple[int, int, Box]] = []
        box = self._root
        while True:
            for place in box.places:
                rank = rule.rank(self.spans[place])
                if rank is not None and (best is None or (rank, place) < best):
                    best = rank, place
            for half in box.halves:
                if half.first is not None and (bound := rule.bound(half)) is not None:
                    heappush(waiting, (bound, half.first, half))
            if not waiting or (best is not None and waiting[0][:2] > best):
                return None if best is None else best[1]
            box = heappop(waiting)[2]

    def remove(self, place: int) -> None:
        """Take a span out."""
        box: Box | None = self._leaf_of.pop(place)
        assert box is not None
        box.places.remove(place)
        while box is not None:
            firsts = [half.first for half in box.halves if half.first is not None]
            box.first = min([*box.places[:1], *firsts], default=None)
            box = box.around

    def _box(self, places: list[int], *, by_size: bool) -> Box:
        spans = [self.spans[place] for place in places]
        sizes = [span.end - span.start for span in spans]
        sums = [span.end + span.start for span in spans]
        box = Box(
            min_start=min((span.start for span in spans), default=0),
            max_end=max((span.end for span in spans), default=0),
            min_size=min(sizes, default=0),
            max_size=max(sizes, default=0),
            min_sum=min(sums, default=0),
            max_sum=max(sums, default=0),
            first=min(places, default=None),
        )
        if len(places) <= _LEAF_SPANS:
            box.places = sorted(places)
            self._leaf_of.update(dict.fromkeys(places, box))
            return box
        order = [
            place for __, place in sorted(zip(sizes if by_size else sums, places, strict=True))
        ]
        middle = len(order) // 2
        box.halves = tuple(
            self._box(half, by_size=not by_size) for half in (order[:middle], order[middle:])
        )
        for half in box.halves:
            half.around = box
        return box
