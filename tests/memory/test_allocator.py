import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertfit.memory.allocator import CachingAllocator
from bertfit.memory.blocks import Block
from bertfit.types import MemoryEvent
from bertfit.units import KIB, MIB

RECORDED = Path(__file__).parent / "recorded"


def must(block: Block | None) -> Block:
    assert block is not None
    return block


def test_requests_are_rounded_to_512_bytes_and_small_ones_share_a_segment_of_2_mib() -> None:
    allocator = CachingAllocator()
    first, second = must(allocator.malloc(1)), must(allocator.malloc(513))
    assert (first.size, second.size) == (512, 1024)
    assert second.address == first.address + 512
    assert allocator.reserved_bytes == 2 * MIB
    assert (allocator.allocated_bytes, allocator.requested_bytes) == (1536, 514)


def test_a_request_of_1_mib_is_small_and_one_byte_more_takes_a_segment_of_20_mib() -> None:
    allocator = CachingAllocator()
    must(allocator.malloc(MIB))
    assert allocator.reserved_bytes == 2 * MIB
    must(allocator.malloc(MIB + 1))
    assert allocator.reserved_bytes == 22 * MIB


def test_from_10_mib_on_a_request_has_its_own_segment_in_steps_of_2_mib() -> None:
    allocator = CachingAllocator()
    must(allocator.malloc(10 * MIB - 512))
    assert allocator.reserved_bytes == 20 * MIB
    must(allocator.malloc(13 * MIB))
    assert allocator.reserved_bytes == 34 * MIB


def test_a_large_block_keeps_a_rest_of_up_to_1_mib() -> None:
    allocator = CachingAllocator()
    assert must(allocator.malloc(11 * MIB)).size == 12 * MIB  # a rest of 1 MiB is not split off
    assert must(allocator.malloc(11 * MIB - 512)).size == 11 * MIB - 512  # one of more is
    assert allocator.largest_free_bytes == MIB + 512


def test_the_best_fit_is_the_smallest_block_and_then_the_lowest_address() -> None:
    allocator = CachingAllocator()
    blocks = [must(allocator.malloc(size * MIB)) for size in (16, 12, 12, 30)]
    for block in blocks:
        allocator.free(block)
    assert must(allocator.malloc(12 * MIB)).address == blocks[1].address
    assert must(allocator.malloc(11 * MIB + 512 * KIB)).address == blocks[2].address
    assert must(allocator.malloc(12 * MIB)).address == blocks[0].address


def test_free_neighbours_become_one_block() -> None:
    allocator = CachingAllocator()
    a, b, c = (must(allocator.malloc(4 * MIB)) for _ in range(3))
    allocator.free(a)
    allocator.free(c)
    assert allocator.largest_free_bytes == 12 * MIB  # c and the rest of 8 MiB behind it
    allocator.free(b)
    assert allocator.largest_free_bytes == 20 * MIB


def test_a_full_card_gives_the_cache_back_and_tries_again() -> None:
    allocator = CachingAllocator(40 * MIB)
    first = must(allocator.malloc(20 * MIB))
    must(allocator.malloc(20 * MIB))
    allocator.free(first)
    must(allocator.malloc(12 * MIB))  # split from the free 20 MiB
    assert allocator.num_alloc_retries == 0
    assert allocator.malloc(10 * MIB) is None
    assert allocator.num_alloc_retries == 1
    failure = allocator.failure
    assert failure is not None
    assert (failure.requested_bytes, failure.free_bytes, failure.limit) == (10 * MIB, 0, "card")
    assert (failure.cached_bytes, failure.largest_free_bytes) == (8 * MIB, 8 * MIB)


def test_a_whole_cached_segment_makes_room_for_another_size() -> None:
    allocator = CachingAllocator(40 * MIB)
    allocator.free(must(allocator.malloc(30 * MIB)))
    assert must(allocator.malloc(36 * MIB)).size == 36 * MIB
    assert allocator.num_alloc_retries == 1
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes) == (36 * MIB, 36 * MIB)


def test_a_cap_below_the_card_fails_as_a_cap() -> None:
    allocator = CachingAllocator(100 * MIB, reserved_limit_bytes=30 * MIB)
    must(allocator.malloc(20 * MIB))
    assert allocator.malloc(12 * MIB) is None
    assert allocator.failure is not None and allocator.failure.limit == "cap"


def test_blocks_from_max_split_size_on_are_not_split_for_smaller_requests() -> None:
    allocator = CachingAllocator(max_split_size_bytes=32 * MIB)
    allocator.free(must(allocator.malloc(60 * MIB)))
    must(allocator.malloc(12 * MIB))
    assert allocator.reserved_bytes == 72 * MIB
    must(allocator.malloc(50 * MIB))  # within 20 MiB of the cached 60: taken whole
    assert allocator.reserved_bytes == 72 * MIB


def test_an_expandable_segment_grows_by_20_mib_and_leaves_no_gaps() -> None:
    allocator = CachingAllocator(expandable_segments=True)
    blocks = [must(allocator.malloc(13 * MIB)) for _ in range(3)]
    assert allocator.reserved_bytes == 40 * MIB
    for block in blocks:
        allocator.free(block)
    assert must(allocator.malloc(39 * MIB)).address == blocks[0].address
    assert allocator.reserved_bytes == 40 * MIB


def test_an_expandable_segment_returns_pages_that_are_wholly_free() -> None:
    allocator = CachingAllocator(60 * MIB, expandable_segments=True)
    head = must(allocator.malloc(30 * MIB))
    must(allocator.malloc(2 * MIB))
    allocator.free(head)
    assert allocator.malloc(35 * MIB) is not None  # the first 20 MiB moved behind the block
    assert allocator.num_alloc_retries == 1


def test_of_equal_free_blocks_the_one_in_the_oldest_segment_is_taken() -> None:
    allocator = CachingAllocator(60 * MIB)
    first, old = must(allocator.malloc(20 * MIB)), must(allocator.malloc(12 * MIB))
    allocator.free(first)
    must(allocator.malloc(30 * MIB))  # the first segment goes back to the driver
    assert allocator.num_alloc_retries == 1
    new = must(allocator.malloc(12 * MIB))  # the driver may well put it where the first one lay
    allocator.free(new)
    allocator.free(old)
    assert allocator.malloc(12 * MIB) is old


def test_an_expandable_segment_ends_at_9_8_of_the_card_and_another_begins() -> None:
    allocator = CachingAllocator(80 * MIB, expandable_segments=True)  # addresses for 100 MiB
    blocks = [must(allocator.malloc(20 * MIB)) for _ in range(4)]
    for block in blocks[::2]:
        allocator.free(block)
    wide = must(allocator.malloc(40 * MIB))  # 20 MiB of addresses are left behind the blocks
    assert wide.prev is None
    assert allocator.num_segments == 2
    for block in (wide, *blocks[1::2]):
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.num_segments == 0


def test_a_card_with_a_context_has_more_addresses_than_memory_for_pytorch() -> None:
    allocator = CachingAllocator(80 * MIB, card_bytes=110 * MIB, expandable_segments=True)
    blocks = [must(allocator.malloc(20 * MIB)) for _ in range(4)]
    for block in blocks[::2]:
        allocator.free(block)
    assert must(allocator.malloc(40 * MIB)).prev is blocks[3]


def test_empty_cache_keeps_what_is_in_use() -> None:
    allocator = CachingAllocator()
    must(allocator.malloc(100))
    allocator.free(must(allocator.malloc(30 * MIB)))
    allocator.empty_cache()
    assert allocator.reserved_bytes == 2 * MIB


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.json")), ids=lambda path: path.stem)
def test_a_recorded_stream_gives_what_pytorch_gave(path: Path) -> None:
    record = json.loads(path.read_text())
    allocator = CachingAllocator(record["capacity"], expandable_segments=record["expandable"])
    held: dict[int, Block] = {}
    for event in record["events"]:
        if event[0] == -1:  # PyTorch ran out of memory here
            assert allocator.malloc(event[1]) is None
        elif len(event) == 2:
            held[event[0]] = must(allocator.malloc(event[1]))
        else:
            allocator.free(held.pop(event[0]))
    assert allocator.peak_allocated_bytes == record["max_allocated"]
    assert allocator.peak_reserved_bytes == record["max_reserved"]
    assert allocator.peak_requested_bytes == record["max_requested"]
    assert allocator.num_alloc_retries == record["retries"]


sizes = st.one_of(st.integers(1, 4 * KIB), st.integers(1, 3 * MIB), st.integers(9 * MIB, 40 * MIB))
steps = st.lists(st.tuples(st.booleans(), sizes, st.integers(0, 1 << 30)), max_size=80)


@settings(max_examples=60, deadline=None)
@given(steps, st.booleans(), st.sampled_from([None, 64 * MIB, 200 * MIB]))
def test_blocks_never_overlap_and_free_neighbours_are_one(
    plan: list[tuple[bool, int, int]], expandable: bool, capacity: int | None
) -> None:
    allocator = CachingAllocator(capacity, expandable_segments=expandable)
    held: list[Block] = []
    for drop, size, choice in plan:
        if drop and held:
            allocator.free(held.pop(choice % len(held)))
        elif (block := allocator.malloc(size)) is not None:
            held.append(block)
        ends = sorted((block.address, block.address + block.size) for block in held)
        assert all(a[1] <= b[0] for a, b in pairwise(ends))
        assert allocator.allocated_bytes == sum(block.size for block in held)
        assert allocator.reserved_bytes >= allocator.allocated_bytes
        assert capacity is None or allocator.driver.taken_bytes <= capacity
        for block in held:
            after = block.next
            while after is not None and after.next is not None:
                twins = after.free and after.next.free and after.mapped == after.next.mapped
                assert not twins
                after = after.next
    for block in held:
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.reserved_bytes == allocator.allocated_bytes == 0


def test_replay_reads_memory_events() -> None:
    events = [
        MemoryEvent(action="alloc", block=0, size_bytes=30 * MIB),
        MemoryEvent(action="free", block=0, size_bytes=30 * MIB),
        MemoryEvent(action="alloc", block=1, size_bytes=31 * MIB),
    ]
    assert CachingAllocator(64 * MIB).replay(events)
    assert not CachingAllocator(30 * MIB).replay(events)


@pytest.mark.slow
def test_a_million_events_take_less_than_5_seconds() -> None:
    allocator = CachingAllocator()
    begun = time.perf_counter()
    for number in range(500):
        blocks = [must(allocator.malloc(512 * (1 + k * 7 % 9000 + number))) for k in range(1000)]
        for block in blocks:
            allocator.free(block)
    assert time.perf_counter() - begun < 5
