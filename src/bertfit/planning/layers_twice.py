"""The events of a micro-batch with k of N layers computed twice, from those with none and with all.

A layer asks for the same memory whatever the layers around it do, as long as one tensor goes up
from it and one gradient comes down. So the lower k layers of one trace and the others of another
make the trace of any k. What does not join cleanly is refused: then it is to be traced.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from bertfit.types import Category

RETURNED = -1


@dataclass(frozen=True, slots=True)
class Event:
    """A request or a return; `key` names the block within its piece, or through the whole job."""

    key: Hashable
    size_bytes: int  # `RETURNED` for a return
    category: Category
    place: tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Part:
    """What happens in one layer, upwards or downwards.

    Attributes:
        events: keys of blocks that do not outlive the micro-batch are the same in every trace.
        lasting: key and size of what it makes or returns of the blocks that do.
    """

    events: list[Event]
    lasting: list[tuple[Hashable, int]]


LayerOf = Callable[[str], int]
"""Gives the layer that a module is part of; -1 for none."""


def twice_below(
    none: Sequence[Event], every: Sequence[Event], count: int, num_layers: int, layer_of: LayerOf
) -> list[Event] | None:
    """Join two traces of a micro-batch: the lower layers of one, the upper layers of the other.

    Args:
        none: its events where no layer is computed twice; blocks that do not outlive it have
            numbers as keys, unlike others.
        every: where all are.
        count: so many of the first layers are.
        num_layers: of the encoder.
        layer_of: module -> layer.

    Returns:
        The events, or None where the traces do not join.
    """
    once = _by_layer(none, num_layers, layer_of)
    twice = _by_layer(every, num_layers, layer_of)
    if once is None or twice is None:
        return None
    joined: list[Event] = []
    for number, (one, other) in enumerate(zip(once, twice, strict=True)):
        if one.lasting != other.lasting:
            return None
        joined += (other if 0 <= _layer_at(number, num_layers) < count else one).events
    lasting = {key for part in once for key, _size in part.lasting}
    joined = _released_once(joined, lasting)
    return joined if _is_whole(joined, lasting) else None


def _released_once(events: Sequence[Event], lasting: set[Hashable]) -> list[Event]:
    """Drop all returns of a block but the last: who holds it longest decides.

    What all layers read (a mask) is returned with the forward in one trace, and by the first layer
    in the other, which must keep it.
    """
    kept: list[Event] = []
    gone: set[Hashable] = set()
    for event in reversed(events):
        if event.size_bytes == RETURNED and event.key not in lasting:
            if event.key in gone:
                continue
            gone.add(event.key)
        kept.append(event)
    return kept[::-1]


def _layer_at(number: int, num_layers: int) -> int:
    """Return the layer of a part: -1 below them, then the layers upwards, and downwards again."""
    return number - 1 if number <= num_layers else 2 * num_layers - number


def _by_layer(events: Sequence[Event], num_layers: int, layer_of: LayerOf) -> list[_Part] | None:
    """Cut a micro-batch where it enters another layer; None where it leaves one out.

    What one layer leaves to another is named after the one that made it and counted in order.
    """
    parts: list[list[Event]] = [[]]
    made_in: dict[Hashable, int] = {}
    gone_in: dict[Hashable, int] = {}
    for event in events:
        if event.size_bytes == RETURNED:
            gone_in[event.key] = len(parts) - 1
        else:
            phase, module = event.place
            layer = layer_of(module)
            number = 2 * num_layers - layer if phase == "backward" else layer + 1
            # Between forward and backward the module is that of before.
            if layer >= 0 and phase in ("forward", "backward") and number == len(parts):
                parts.append([])
            made_in[event.key] = len(parts) - 1
        parts[-1].append(event)
    if len(parts) != 2 * num_layers + 1:
        return None
    names: dict[Hashable, Hashable] = {}
    handed = [0] * len(parts)
    for key, number in made_in.items():
        if not isinstance(key, int):
            continue
        layer = _layer_at(number, num_layers)
        if _layer_at(gone_in.get(key, number), num_layers) == layer:
            names[key] = ("own", layer, key)
        else:
            names[key] = ("handed", number, handed[number])
            handed[number] += 1
    return [
        _Part(
            events=[replace(e, key=names.get(e.key, e.key)) for e in part],
            lasting=[(e.key, e.size_bytes) for e in part if e.key not in names],
        )
        for part in parts
    ]


def _is_whole(events: Sequence[Event], lasting: set[Hashable]) -> bool:
    """Say whether what goes was made before, and what was made goes, but for what is to last."""
    live: set[Hashable] = set()
    for event in events:
        if event.key in lasting:
            continue
        if event.size_bytes != RETURNED:
            live.add(event.key)
        elif event.key in live:
            live.remove(event.key)
        else:
            return False
    return not live
