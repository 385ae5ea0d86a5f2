"""Which texts make up a step, and how a step is cut into micro-batches (law 2).

The order is a pure function of (seed, epoch): nothing of it needs to be saved to resume.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from bertfit.types import IGNORED, Batch, Window

# What a micro-batch costs beside its tokens (dispatch, casting the weights), in padded tokens.
# E5-small on two CPU cores, steps of 16 CLUENER texts cut into 1, 2 and 4: 0.80, 0.80, 0.86 s for
# 832, 734 and 690 padded tokens.
MICRO_BATCH_COST_TOKENS = 100
FEW_WINDOWS = 256


def steps_of_epoch(num_examples: int, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Return the example indices of every step: a plain seeded shuffle, cut in order.

    The last step of an epoch holds what is left.
    """
    order = np.random.default_rng([seed, epoch]).permutation(num_examples)
    return [order[i : i + batch_size].tolist() for i in range(0, num_examples, batch_size)]


def cut(windows: Sequence[Window], budget_tokens: int) -> list[list[Window]]:
    """Cut windows into micro-batches of at most `budget_tokens` padded tokens, longest first.

    Longest first, so that the largest micro-batch comes first and later ones reuse its memory. A
    window longer than the budget is a micro-batch of its own. Few windows (a training step) are cut
    where padding and the fixed cost of a micro-batch are least together; many (a read-ahead) as
    full as they get, since sorted neighbours there are of nearly one length.
    """
    ordered = sorted(windows, key=lambda w: -len(w.input_ids))
    lengths = [len(window.input_ids) for window in ordered]
    find = _cheapest if len(ordered) <= FEW_WINDOWS else _fullest
    return [ordered[first:last] for first, last in find(lengths, budget_tokens)]


def _cheapest(lengths: Sequence[int], budget_tokens: int) -> list[tuple[int, int]]:
    """Return the ranges of least cost; `lengths` fall."""
    count = len(lengths)
    cost, following = [0.0] * (count + 1), [count] * (count + 1)
    for first in reversed(range(count)):
        cost[first] = float("inf")
        last = first + 1
        while last <= count and (
            last == first + 1 or (last - first) * lengths[first] <= budget_tokens
        ):
            total = (last - first) * lengths[first] + MICRO_BATCH_COST_TOKENS + cost[last]
            if total <= cost[first]:
                cost[first], following[first] = total, last
            last += 1
    ranges, first = [], 0
    while first < count:
        ranges.append((first, following[first]))
        first = following[first]
    return ranges


def _fullest(lengths: Sequence[int], budget_tokens: int) -> list[tuple[int, int]]:
    """Return ranges that are each as long as the budget allows; `lengths` fall."""
    ranges: list[tuple[int, int]] = []
    first = 0
    for last in range(1, len(lengths) + 1):
        if last == len(lengths) or (last + 1 - first) * lengths[first] > budget_tokens:
            ranges.append((first, last))
            first = last
    return ranges


def cut_as(windows: Sequence[Window], sizes: Sequence[int]) -> list[list[Window]]:
    """Cut windows into micro-batches of given sizes, in the order of `cut`: repeats an old cut."""
    ordered = sorted(windows, key=lambda w: -len(w.input_ids))
    assert sum(sizes) == len(ordered), "the cut is that of another step"
    parts = []
    for size in sizes:
        parts.append(ordered[:size])
        del ordered[:size]
    return parts


def pad(windows: Sequence[Window], pad_id: int) -> Batch:
    """Pad windows to the longest of them, on the right."""
    lengths = [len(window.input_ids) for window in windows]
    shape = (len(windows), max(lengths))
    input_ids = np.full(shape, pad_id, dtype=np.int64)
    for row, window in enumerate(windows):
        input_ids[row, : lengths[row]] = window.input_ids
    mask = None
    if min(lengths) < shape[1]:
        mask = (np.arange(shape[1]) < np.asarray(lengths)[:, None]).astype(np.int64)
    labels = None
    if all(window.labels is not None for window in windows):
        labels = np.full(shape, IGNORED, dtype=np.int64)
        for row, window in enumerate(windows):
            assert window.labels is not None
            labels[row, window.first_token] = window.labels
    return Batch(
        input_ids=input_ids,
        attention_mask=mask,
        labels=labels,
        num_labelled=0 if labels is None else int((labels != IGNORED).sum()),
        num_tokens=sum(lengths),
    )


def read_ahead(windows: Iterator[Window], num_windows: int) -> Iterator[list[Window]]:
    """Group a stream of windows into lists of about `num_windows`, for sorting inside them."""
    group: list[Window] = []
    for window in windows:
        group.append(window)
        if len(group) >= num_windows:
            yield group
            group = []
    if group:
        yield group
