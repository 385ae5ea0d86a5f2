"""Gold entities against units: which can be learnt, which cannot, and the F1 that costs.

A tagger gives one tag to every unit, so it can point at runs of whole units that do not overlap.
Gold spans are never moved for scoring; what is said here is what a perfect tagger would reach.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from bertfit.data.segments import units_of
from bertfit.language import N_, _
from bertfit.types import Entity, Example, Problem, Split

_SHOWN_CHARACTERS = 40
_MESSAGES = {
    "overlapping-entities": N_(
        "{label} '{surface}' at {start}-{end} overlaps a longer entity. Training leaves it out"
        " and scoring counts it as missed."
    ),
    "edge-at-space": N_(
        "{label} '{surface}' at {start}-{end} begins or ends with white space. An entity is"
        " predicted without it, so scoring counts this one as missed."
    ),
    "edge-inside-unit": N_(
        "{label} '{surface}' at {start}-{end} begins or ends inside a word. Scoring counts it"
        " as missed; --split characters can point at it."
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Representable:
    """How many gold entities whole, flat runs of units can express.

    Attributes:
        entities: All gold entities, as stored.
        reachable: Those that a perfect tagger would get right.
        overlapping: Those inside or across a longer one, or on the same span.
        edge_inside_unit: Those with an edge inside a unit.
        edge_at_space: Those that begin or end with white space, or hold nothing else.
        records: Examples with at least one unreachable entity.
    """

    entities: int
    reachable: int
    overlapping: int
    edge_inside_unit: int
    edge_at_space: int
    records: int

    @property
    def best_f1(self) -> float:
        """Return the strict micro F1 of a perfect tagger: precision 1, recall reachable / all."""
        if not self.entities:
            return 1.0
        return 2 * self.reachable / (self.reachable + self.entities)


def flat(entities: Iterable[Entity]) -> tuple[list[Entity], list[Entity]]:
    """Keep the longest of overlapping entities.

    Ties go to the one that begins first, then to the one that stands first in the record.

    Returns:
        The kept ones in order of their text, and the dropped ones in the order of the record.
    """
    stored = list(entities)
    if len(stored) < 2:
        return stored, []
    ranked = sorted(range(len(stored)), key=lambda i: (_size(stored[i]), stored[i].start, i))
    starts: list[int] = []
    ends: list[int] = []
    kept: list[int] = []
    dropped: list[int] = []
    for i in ranked:
        entity = stored[i]
        place = bisect_right(starts, entity.start)
        after_previous = place == 0 or ends[place - 1] <= entity.start
        before_next = place == len(starts) or entity.end <= starts[place]
        same_start = place > 0 and starts[place - 1] == entity.start
        if after_previous and before_next and not same_start:
            starts.insert(place, entity.start)
            ends.insert(place, entity.end)
            kept.append(i)
        else:
            dropped.append(i)
    return sorted(stored[i] for i in kept), [stored[i] for i in sorted(dropped)]


def _size(entity: Entity) -> int:
    return entity.start - entity.end  # longest first


def unit_span(starts: Sequence[int], ends: Sequence[int], entity: Entity) -> tuple[int, int]:
    """Return the half-open range of the units that an entity touches; empty if it touches none."""
    return bisect_right(ends, entity.start), bisect_left(starts, entity.end)


def unreachable_kind(
    text: str, starts: Sequence[int], ends: Sequence[int], entity: Entity
) -> str | None:
    """Say why no run of whole units is this entity: `edge-at-space`, `edge-inside-unit`, None."""
    first, last = unit_span(starts, ends, entity)
    if first < last and starts[first] == entity.start and ends[last - 1] == entity.end:
        return None
    surface = text[entity.start : entity.end]
    inside = first < last and (starts[first] < entity.start or ends[last - 1] > entity.end)
    if not inside or surface != surface.strip():
        return "edge-at-space"
    return "edge-inside-unit"


def problems_of(example: Example, starts: Sequence[int], ends: Sequence[int]) -> list[Problem]:
    """List what keeps the entities of one example from being learnt as they are stored."""
    return [_problem(example, kind, entity) for kind, entity in _unreachable(example, starts, ends)]


def _unreachable(
    example: Example, starts: Sequence[int], ends: Sequence[int]
) -> list[tuple[str, Entity]]:
    kept, dropped = flat(example.entities or ())
    found = [("overlapping-entities", entity) for entity in dropped]
    for entity in kept:
        kind = unreachable_kind(example.text, starts, ends, entity)
        if kind is not None:
            found.append((kind, entity))
    return found


def _problem(example: Example, kind: str, entity: Entity) -> Problem:
    # Nested spans may be as many as they are long: none is copied for the sake of its beginning.
    surface = example.text[entity.start : min(entity.end, entity.start + _SHOWN_CHARACTERS + 1)]
    if len(surface) > _SHOWN_CHARACTERS:
        surface = surface[: _SHOWN_CHARACTERS - 1] + "…"
    return Problem(
        path=example.source.path if example.source else example.id,
        line=example.source.line if example.source else 0,
        kind=kind,
        message=_(_MESSAGES[kind]).format(
            label=entity.label, surface=surface, start=entity.start, end=entity.end
        ),
        severity="note",
    )


def representable(
    examples: Iterable[Example],
    split: Split,
    on_problem: Callable[[Problem], None] | None = None,
) -> Representable:
    """Count the gold entities that a perfect tagger could reach; streaming.

    Args:
        examples: Read once; only counts are kept.
        split: How the texts are cut.
        on_problem: Told every entity that cannot be reached, with its record.
    """
    reach = Reach(split, on_problem)
    for example in examples:
        reach.add(example)
    return reach.result()


class Reach:
    """Counts, one example after the other, what a perfect tagger could reach."""

    def __init__(
        self,
        split: Split,
        on_problem: Callable[[Problem], None] | None = None,
        kinds: Collection[str] = tuple(_MESSAGES),
    ) -> None:
        """Tell `on_problem` of every entity that cannot be reached for one of these reasons."""
        self.split = split
        self._on_problem = on_problem
        self._kinds = kinds
        self._counts = dict.fromkeys(_MESSAGES, 0)
        self._entities = self._records = 0

    def add(self, example: Example) -> None:
        """Count one example; one without annotation counts nothing."""
        if not example.entities:
            return
        self._entities += len(example.entities)
        units = units_of(example, self.split)
        starts = [start for start, _end in units]
        ends = [end for _start, end in units]
        found = _unreachable(example, starts, ends)
        self._records += bool(found)
        for kind, entity in found:
            self._counts[kind] += 1
            if self._on_problem is not None and kind in self._kinds:
                self._on_problem(_problem(example, kind, entity))

    def result(self) -> Representable:
        """Return the counts so far."""
        counts = self._counts
        return Representable(
            entities=self._entities,
            reachable=self._entities - sum(counts.values()),
            overlapping=counts["overlapping-entities"],
            edge_inside_unit=counts["edge-inside-unit"],
            edge_at_space=counts["edge-at-space"],
            records=self._records,
        )
