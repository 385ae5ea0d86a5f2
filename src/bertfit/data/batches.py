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
# A packed row is filled up to a multiple of this. 16-bit products of 629 rows take 33 us a row and
# layer of E5-small, forward and backward, those of 632 to 704 take 28 (two cores, AVX512-BF16).
ROW_MULTIPLE = 32


def steps_of_epoch(num_examples: int, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Return the example indices of every step: a plain seeded shuffle, cut in order.

    The last step of an epoch holds what is left.
    """
    order = np.random.default_rng([seed, epoch]).permutation(num_examples)
    return [order[i : i + batch_size].tolist() for i in range(0, num_examples, batch_size)]


def cut(
    windows: Sequence[Window], budget_tokens: int, *, packed: bool = False
) -> list[list[Window]]:
    """Cut windows into micro-batches of at most `budget_tokens` padded tokens, longest first.

    Longest first, so that the largest micro-batch comes first and later ones reuse its memory. A
    window longer than the budget is a micro-batch of its own. Few windows (a training step) are cut
    where padding and the fixed cost of a micro-batch are least together; many (a read-ahead) as
    full as they get, since sorted neighbours there are of nearly one length. Micro-batches that
    will be packed are as full as they get too, and the budget is of real tokens.
    """
    ordered = sorted(windows, key=lambda w: -len(w.input_ids))
    lengths = [len(window.input_ids) for window in ordered]
    ranges = (
        _fullest_packed(lengths, budget_tokens) if packed else cut_lengths(lengths, budget_tokens)
    )
    return [ordered[first:last] for first, last in ranges]


def cut_lengths(lengths: Sequence[int], budget_tokens: int) -> list[tuple[int, int]]:
    """Return the ranges that `cut` puts windows of these lengths in; the lengths fall."""
    if len(lengths) <= FEW_WINDOWS:
        return cheapest_ranges(lengths, MICRO_BATCH_COST_TOKENS, budget_tokens)
    return _fullest(lengths, budget_tokens)


def cheapest_ranges(
    widths: Sequence[int], cost: float, budget: float = float("inf")
) -> list[tuple[int, int]]:
    """Return the ranges of least cost: for each its first width times its count, and `cost`.

    Args:
        widths: falling.
        cost: of a range, beside its widths.
        budget: first width times count of a range of several; without one, equal widths are never
            parted, which spares looking at every place between them.
    """
    is_free = budget == float("inf")
    edges = [i for i in range(len(widths)) if not (is_free and i and widths[i] == widths[i - 1])]
    edges.append(len(widths))
    count = len(edges) - 1
    costs, following = [0.0] * (count + 1), [count] * (count + 1)
    for first in reversed(range(count)):
        costs[first] = float("inf")
        begin, width = edges[first], widths[edges[first]]
        last = first + 1
        while last <= count and (last == first + 1 or (edges[last] - begin) * width <= budget):
            total = (edges[last] - begin) * width + cost + costs[last]
            if total <= costs[first]:
                costs[first], following[first] = total, last
            last += 1
    ranges, first = [], 0
    while first < count:
        ranges.append((edges[first], edges[following[first]]))
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


def _fullest_packed(lengths: Sequence[int], budget_tokens: int) -> list[tuple[int, int]]:
    """Return ranges whose lengths add up to at most the budget."""
    ranges: list[tuple[int, int]] = []
    first, total = 0, 0
    for place, length in enumerate(lengths):
        if place > first and total + length > budget_tokens:
            ranges.append((first, place))
            first, total = place, 0
        total += length
    return [*ranges, (first, len(lengths))] if lengths else []


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


def few_rows(num_tokens: int) -> int:
    """Round the length of a packed row up to one of few: of `ROW_MULTIPLE`, from 256 on of 128.

    A stream of texts would else ask for ever new shapes, and oneDNN keeps what it compiled for
    1,024 of them, half a MiB each.
    """
    multiple = ROW_MULTIPLE if num_tokens <= 8 * ROW_MULTIPLE else 4 * ROW_MULTIPLE
    return -(-num_tokens // multiple) * multiple


def pack(windows: Sequence[Window], *, few_lengths: bool = False) -> Batch:
    """Put windows one after the other, longest first; `engine.packing` says what becomes of it.

    The last token is repeated up to `ROW_MULTIPLE`: it looks at nothing and nothing looks at it.

    Args:
        windows: with or without labels.
        few_lengths: repeat it up to what `few_rows` says, where batches come without end.
    """
    ordered = sorted(windows, key=lambda w: -len(w.input_ids))
    lengths = [len(window.input_ids) for window in ordered]
    total = sum(lengths)
    row = np.concatenate([window.input_ids for window in ordered]).astype(np.int64)
    filled = few_rows(total) if few_lengths else total + -total % ROW_MULTIPLE
    row = np.pad(row, (0, filled - total), mode="edge")
    labels = None
    if all(window.labels is not None for window in ordered):
        labels = np.full((1, len(row)), IGNORED, dtype=np.int64)
        start = 0
        for window, length in zip(ordered, lengths, strict=True):
            assert window.labels is not None
            labels[0, start + window.first_token] = window.labels
            start += length
    return Batch(
        input_ids=row[None],
        attention_mask=None,
        labels=labels,
        num_labelled=0 if labels is None else int((labels != IGNORED).sum()),
        num_tokens=total,
        packed_lengths=tuple(lengths),
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
