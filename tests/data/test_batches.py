from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertfit.data.batches import (
    MICRO_BATCH_COST_TOKENS,
    cut,
    few_rows,
    pack,
    pad,
    read_ahead,
    steps_of_epoch,
)
from bertfit.types import IGNORED
from tiny_models import random_window

lengths = st.lists(st.integers(2, 40), min_size=1, max_size=30)


@given(st.integers(0, 200), st.integers(1, 33), st.integers(0, 2**32 - 1), st.integers(0, 9))
def test_every_example_is_in_one_step_of_an_epoch(n: int, size: int, seed: int, epoch: int) -> None:
    steps = steps_of_epoch(n, size, seed, epoch)
    assert sorted(i for step in steps for i in step) == list(range(n))
    assert all(len(step) == size for step in steps[:-1])
    assert steps == steps_of_epoch(n, size, seed, epoch)


def test_the_order_changes_with_seed_and_epoch() -> None:
    orders = [steps_of_epoch(50, 50, seed, epoch)[0] for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


@given(lengths, st.integers(1, 200))
def test_a_cut_keeps_all_windows_and_its_budget(sizes: list[int], budget: int) -> None:
    windows = [random_window(size, i) for i, size in enumerate(sizes)]
    cuts = cut(windows, budget)
    assert sorted(w.index for part in cuts for w in part) == list(range(len(sizes)))
    for part in cuts:
        widest = max(len(w.input_ids) for w in part)
        assert len(part) == 1 or len(part) * widest <= budget
    widths = [len(part[0].input_ids) for part in cuts]
    assert widths == sorted(widths, reverse=True)


def test_a_padded_batch_worked_by_hand() -> None:
    long, short = random_window(5, 1), random_window(3, 2)
    batch = pad([long, short], pad_id=0)
    assert batch.input_ids.tolist() == [long.input_ids.tolist(), [*short.input_ids, 0, 0]]
    assert batch.attention_mask is not None and batch.labels is not None
    assert batch.attention_mask.tolist() == [[1] * 5, [1, 1, 1, 0, 0]]
    assert batch.labels[1].tolist() == [IGNORED, short.labels[0], IGNORED, IGNORED, IGNORED]
    assert (batch.num_labelled, batch.num_tokens) == (4, 8)


def test_windows_of_one_length_need_no_mask() -> None:
    batch = pad([random_window(7, 1), random_window(7, 2)], pad_id=0)
    assert batch.attention_mask is None
    assert batch.input_ids.dtype == np.int64


@given(st.integers(0, 20), st.integers(1, 7))
def test_reading_ahead_keeps_order_and_bound(n: int, ahead: int) -> None:
    windows = [random_window(3, i) for i in range(n)]
    groups = list(read_ahead(iter(windows), ahead))
    assert [w.index for group in groups for w in group] == list(range(n))
    assert all(len(group) <= ahead for group in groups)


def test_a_long_window_does_not_pad_short_ones() -> None:
    windows = [random_window(100, 0), *(random_window(10, i) for i in range(1, 4))]
    assert [len(part) for part in cut(windows, 1000)] == [1, 3]
    equal = [random_window(40, i) for i in range(4)]
    assert [len(part) for part in cut(equal, 1000)] == [4]


@given(st.lists(st.integers(2, 300), min_size=1, max_size=7), st.integers(1, 700))
def test_a_cut_is_the_cheapest_of_all(sizes: list[int], budget: int) -> None:
    def cost(parts: list[list[int]]) -> int:
        return sum(len(part) * max(part) + MICRO_BATCH_COST_TOKENS for part in parts)

    ordered = sorted(sizes, reverse=True)
    every = [split(ordered, b) for b in product((False, True), repeat=len(ordered) - 1)]
    allowed = [
        parts
        for parts in every
        if all(len(part) == 1 or len(part) * part[0] <= budget for part in parts)
    ]
    best = min(map(cost, allowed))
    windows = [random_window(size, i) for i, size in enumerate(sizes)]
    assert cost([[len(w.input_ids) for w in part] for part in cut(windows, budget)]) == best


def split(ordered: list[int], borders: tuple[bool, ...]) -> list[list[int]]:
    parts = [[ordered[0]]]
    for size, border in zip(ordered[1:], borders, strict=True):
        if border:
            parts.append([])
        parts[-1].append(size)
    return parts


def test_many_windows_are_cut_as_full_as_they_get() -> None:
    windows = [random_window(10, i) for i in range(300)]
    assert [len(part) for part in cut(windows, 1000)] == [100, 100, 100]


def test_rows_of_batches_without_end_are_of_few_lengths() -> None:
    rows = [few_rows(size) for size in range(1, 2049)]
    assert sorted(set(rows)) == [*range(32, 257, 32), *range(384, 2049, 128)]
    assert all(found >= size and few_rows(found) == found for size, found in enumerate(rows, 1))
    row = pack([random_window(40, 0), random_window(230, 1)], few_lengths=True).input_ids[0]
    assert len(row) == 384 and set(row[270:].tolist()) == {row[269]}
