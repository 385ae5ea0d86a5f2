"""About what a step allocates, at any shape and with any number of layers computed twice.

A screen before the exact estimate: what is far too large need not be traced.
"""

from collections.abc import Sequence

import numpy as np

from bertfit.planning.levers import Shape
from bertfit.planning.sample import Sample, features, solve


class Screen:
    """About what is allocated at the peak of a second micro-batch; the allocator rounds that up.

    Args:
        samples: of the step, with nothing computed twice.
        host_state: inputs of layers computed twice leave the card.
    """

    def __init__(self, samples: Sequence[Sample], *, host_state: bool = False) -> None:
        self._host_state = host_state
        self.num_layers = max(1, len(samples[0].layers))
        self._multiples = solve(samples, [np.array(_held(sample), float) for sample in samples])

    def about_bytes(self, shape: Shape, checkpointed_layers: int) -> int:
        """Return about what is allocated at the peak."""
        before, outside, inside, entering, above, below = self._multiples @ features(shape)
        layer = inside / self.num_layers
        # The first layers are computed again when those above them have let go.
        kept = max(layer * (self.num_layers - checkpointed_layers), layer)
        waiting = min(checkpointed_layers, 1) if self._host_state else checkpointed_layers
        in_layers = before + outside + kept + entering * waiting + above
        return int(max(in_layers, below))


def _held(sample: Sample) -> tuple[int, int, int, int, int, int]:
    """Return bytes of the second micro-batch.

    They are: what is there before it; what its forward leaves outside and inside the layers; what
    enters one layer; how far the backward of the layers goes above all that; and the peak of what
    follows below the layers, where the gradient of a large embedding is made.
    """
    trace, size = sample.trace, sample.trace.sizes
    awaited = ["backward", "forward", "backward", "optimizer"]
    live: set[int] = set()
    before: set[int] = set()
    left: set[int] = set()
    level = highest = below = 0
    in_layers = False
    for entry in trace.stream:
        if entry < 0:
            live.discard(~entry)
            level -= size[~entry]
            continue
        phase, module = trace.places[entry]
        if awaited and phase == awaited[0]:
            awaited.pop(0)
            if len(awaited) == 2:
                before = set(live)
            elif len(awaited) == 1:
                left, highest = live - before, level
            elif not awaited:
                break
        live.add(entry)
        level += size[entry]
        if len(awaited) == 1:
            is_layer = sample.layer_of(module) >= 0
            in_layers |= is_layer
            if is_layer or not in_layers:
                highest = max(highest, level)
            else:
                below = max(below, level)
    inside = {block for block in left if sample.layer_of(trace.places[block][1]) >= 0}
    held = [sum(map(size.__getitem__, part)) for part in (before, left - inside, inside)]
    entering = sample.shape[0] * sample.shape[1] * sample.layer_input_bytes
    return held[0], held[1], held[2], entering, max(0, highest - sum(held)), below
