"""PyTorch's caching allocator for CUDA, one stream of it, replayed without a card.

It knows sizes and their order, not what is in the blocks. Faithful to
c10/cuda/CUDACachingAllocator.cpp of torch 2.14: the same rounding, pools, best fit, split rules,
merging, expandable segments, and the same giving back of cached blocks when the card is full.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from bertfit.memory.blocks import (
    ADDRESS_BITS,
    BLOCK_BYTES,
    LARGE_SEGMENT_BYTES,
    OWN_SEGMENT_BYTES,
    SEGMENT_ROUNDING_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    Block,
    Pool,
    round_size,
)
from bertfit.memory.driver import ENDLESS_BYTES, DriverMemory
from bertfit.memory.kernels import round_up
from bertfit.types import MemoryEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationFailure:
    """Why a request could not be met, in the numbers that PyTorch's message has.

    Attributes:
        requested_bytes: The segment that the driver was asked for.
        free_bytes: What the card still had.
        allocated_bytes: In use by tensors.
        cached_bytes: Reserved by the allocator, in use by nobody.
        largest_free_bytes: The largest cached block that was left.
        limit: `card` if the driver refused, `cap` if the allocator's own limit was met.
    """

    requested_bytes: int
    free_bytes: int
    allocated_bytes: int
    cached_bytes: int
    largest_free_bytes: int
    limit: str


class CachingAllocator:
    """The allocator of one card and one stream; its state outlives every call.

    Args:
        capacity_bytes: What the driver can hand out: the card's memory less the context. None is
            without end.
        card_bytes: The card's whole memory, by which expandable segments are laid out; the capacity
            where it is not given.
        reserved_limit_bytes: `torch.cuda.set_per_process_memory_fraction` in bytes.
        expandable_segments: As in `PYTORCH_ALLOC_CONF`.
        max_split_size_bytes: As `max_split_size_mb` in `PYTORCH_ALLOC_CONF`, in bytes.
    """

    def __init__(
        self,
        capacity_bytes: int | None = None,
        *,
        card_bytes: int | None = None,
        reserved_limit_bytes: int | None = None,
        expandable_segments: bool = False,
        max_split_size_bytes: int | None = None,
    ) -> None:
        self.driver = DriverMemory(capacity_bytes)
        self.card_bytes = card_bytes or capacity_bytes
        self.reserved_limit_bytes = reserved_limit_bytes
        self.expandable_segments = expandable_segments
        self.max_split_size_bytes = max_split_size_bytes or 1 << 62
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.requested_bytes = self.peak_requested_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.num_alloc_retries = 0
        self.num_segments = 0
        self.failure: AllocationFailure | None = None
        self._small = Pool(small=True)
        self._large = Pool(small=False)

    @property
    def largest_free_bytes(self) -> int:
        """The largest cached block that nobody uses."""
        keys = [pool.keys[-1] for pool in (self._small, self._large) if pool.keys]
        return max(keys) >> ADDRESS_BITS if keys else 0

    def reset_peaks(self) -> None:
        """Start the peaks anew from what is held now, as `reset_peak_memory_stats` does."""
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_requested_bytes = self.requested_bytes
        self.peak_reserved_bytes = self.reserved_bytes
        self.driver.peak_taken_bytes = self.driver.taken_bytes

    def malloc(self, size_bytes: int) -> Block | None:
        """Give a block for a request, or None where even an empty cache leaves no room.

        After None, `failure` says why.
        """
        size = -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES or BLOCK_BYTES
        pool = self._small if size <= SMALL_REQUEST_BYTES else self._large
        block = self._find_free(pool, size) or self._new_block(pool, size)
        if block is None:
            return None
        remaining = block.size - size
        if remaining and self._should_split(pool, size, remaining):
            pool.add(block.cut(size))
        block.free = False
        block.requested = size_bytes
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        self.requested_bytes += size_bytes
        if self.requested_bytes > self.peak_requested_bytes:
            self.peak_requested_bytes = self.requested_bytes
        return block

    def free(self, block: Block) -> None:
        """Take a block back into the cache and merge it with its free neighbours."""
        assert not block.free, "a block is freed once"
        # The request decided the pool; the block may be larger than it asked for.
        pool = self._small if round_size(block.requested) <= SMALL_REQUEST_BYTES else self._large
        self.allocated_bytes -= block.size
        self.requested_bytes -= block.requested
        block.free = True
        self._merge(pool, block)
        pool.add(block)

    def empty_cache(self) -> None:
        """Give every whole cached segment back to the driver, as `torch.cuda.empty_cache`."""
        self._release_cached(self._large)
        self._release_cached(self._small)

    def replay(self, events: Iterable[MemoryEvent]) -> bool:
        """Run a recorded stream; False where it stopped because a request failed."""
        held: dict[int, Block] = {}
        for event in events:
            if event.action == "free":
                self.free(held.pop(event.block))
            else:
                block = self.malloc(event.size_bytes)
                if block is None:
                    return False
                held[event.block] = block
        return True

    # --- finding room in the cache

    def _find_free(self, pool: Pool, size: int) -> Block | None:
        keys = pool.keys
        at = bisect_left(keys, size << ADDRESS_BITS)
        if at == len(keys):
            return None
        block = pool.blocks[keys[at]]
        if self.expandable_segments:
            # The size that counts for the best fit is the one that a block can still grow to.
            while at + 1 < len(keys):
                after = pool.blocks[keys[at + 1]]
                if after.growable_size() >= block.growable_size():
                    break
                block = after
                at += 1
        if size < self.max_split_size_bytes <= block.size:
            return None
        if size >= self.max_split_size_bytes and block.size >= size + LARGE_SEGMENT_BYTES:
            return None  # kMaxNonSplitRoundingSize
        pool.remove(block)
        return block

    def _should_split(self, pool: Pool, size: int, remaining: int) -> bool:
        if pool.small or self.expandable_segments:
            return remaining >= BLOCK_BYTES
        return size < self.max_split_size_bytes and remaining > SMALL_REQUEST_BYTES

    def _merge(self, pool: Pool, block: Block) -> None:
        """Join a block that is in no list with neighbours of the same state."""
        before, after = block.prev, block.next
        if before is not None and before.free and before.mapped == block.mapped:
            self._forget(pool, before)
            block.address = before.address
            block.size += before.size
            block.prev = before.prev
            if block.prev is not None:
                block.prev.next = block
        if after is not None and after.free and after.mapped == block.mapped:
            self._forget(pool, after)
            block.size += after.size
            block.next = after.next
            if block.next is not None:
                block.next.prev = block

    @staticmethod
    def _forget(pool: Pool, block: Block) -> None:
        if block.mapped:
            pool.remove(block)
        else:
            pool.unmapped.remove(block)

    # --- asking the driver

    def _new_block(self, pool: Pool, size: int) -> Block | None:
        if pool.small:
            segment = SMALL_SEGMENT_BYTES
        elif size < OWN_SEGMENT_BYTES:
            segment = LARGE_SEGMENT_BYTES
        else:
            segment = -(-size // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES
        block = self._allocate(pool, size, segment)
        if block is None and self._release_oversized(pool, size):
            block = self._allocate(pool, size, segment)
        if block is None:
            self._release_cached(self._large)
            self._release_cached(self._small)
            self.num_alloc_retries += 1
            block = self._allocate(pool, size, segment)
        if block is None:
            self.failure = self._explain(segment)
        return block

    def _explain(self, requested: int) -> AllocationFailure:
        capped = self._capped(requested)
        return AllocationFailure(
            requested_bytes=requested,
            free_bytes=self.driver.free_bytes or 0,
            allocated_bytes=self.allocated_bytes,
            cached_bytes=self.reserved_bytes - self.allocated_bytes,
            largest_free_bytes=self.largest_free_bytes,
            limit="cap" if capped else "card",
        )

    def _capped(self, size: int) -> bool:
        limit = self.reserved_limit_bytes
        return limit is not None and self.reserved_bytes + size > limit

    def _allocate(self, pool: Pool, size: int, segment: int) -> Block | None:
        if self._capped(segment):
            return None
        if self.expandable_segments:
            return self._expand(pool, size)
        if not self.driver.take(segment):
            return None
        self._reserve(segment)
        self.num_segments += 1
        return Block(self.driver.place(segment), segment)

    def _reserve(self, size: int) -> None:
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    # --- giving back to the driver

    def _release(self, pool: Pool, block: Block) -> None:
        pool.remove(block)
        self.driver.give_back(block.size)
        self.reserved_bytes -= block.size
        self.num_segments -= 1

    def _release_oversized(self, pool: Pool, size: int) -> bool:
        """With `max_split_size`: give back the segment that fits, or the largest until enough."""
        if self.max_split_size_bytes >= 1 << 62 or self.expandable_segments:
            return False
        wanted = max(size, self.max_split_size_bytes)
        at = bisect_left(pool.keys, wanted << ADDRESS_BITS)
        if at < len(pool.keys):
            self._release(pool, pool.blocks[pool.keys[at]])
            return True
        released = 0
        while released < wanted and pool.keys:
            block = pool.blocks[pool.keys[-1]]
            if block.size < self.max_split_size_bytes:
                break
            released += block.size
            self._release(pool, block)
        return released >= wanted

    def _release_cached(self, pool: Pool) -> None:
        """Give back every segment, or every page of an expandable one, that is wholly free."""
        for block in [pool.blocks[key] for key in pool.keys]:
            if block.origin is not None:
                self._unmap(pool, block)
            elif block.prev is None and block.next is None:
                self._release(pool, block)

    # --- expandable segments

    def _expand(self, pool: Pool, size: int) -> Block | None:
        """Grow the segment at its lowest place that has room, page by page of the pool."""
        block = self._growth_place(pool, size)
        if not block.mapped and not self._map(pool, block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.next
            if after is None or not self._map(pool, after, min(size - block.size, after.size)):
                return None
            block = after
        pool.remove(block)
        return block

    def _growth_place(self, pool: Pool, size: int) -> Block:
        for unmapped in pool.unmapped:
            start = unmapped
            if start.prev is not None and start.prev.free:
                start = start.prev
            room = 0
            block: Block | None = start
            while room < size and block is not None and block.free:
                room += block.size
                block = block.next
            if room >= size:
                return start
        space = ENDLESS_BYTES
        if self.card_bytes:  # `ExpandableSegment`: 1 1/8 of the card
            space = round_up(self.card_bytes + self.card_bytes // 8, pool.segment_bytes)
        address = self.driver.reserve(space)
        fresh = Block(address, space, origin=address)
        fresh.mapped = False
        pool.add_unmapped(fresh)
        self.num_segments += 1
        return fresh

    def _map(self, pool: Pool, block: Block, size: int) -> bool:
        """Back the head of an unmapped block with memory and join it to its free neighbours."""
        step = pool.segment_bytes
        mapped = min(-(-size // step) * step, block.size)
        for done in range(0, mapped, step):
            if not self.driver.take(step):
                self.driver.give_back(done)
                return False
        self._reserve(mapped)
        pool.unmapped.remove(block)
        if mapped < block.size:
            pool.add_unmapped(block.cut(mapped))
        block.mapped = True
        self._merge(pool, block)
        pool.add(block)
        return True

    def _unmap(self, pool: Pool, block: Block) -> None:
        step, origin = pool.segment_bytes, block.origin
        assert origin is not None, "only expandable segments are unmapped"
        start = origin + round_up(block.address - origin, step)
        end = origin + (block.address + block.size - origin) // step * step
        if end <= start:
            return
        pool.remove(block)
        if start > block.address:
            front, block = block, block.cut(start - block.address)
            pool.add(front)
        if block.address + block.size > end:
            pool.add(block.cut(end - block.address))
        block.mapped = False
        self.driver.give_back(block.size)
        self.reserved_bytes -= block.size
        self._merge(pool, block)
        if block.prev is None and block.next is None:
            self.driver.unreserve(block.address, block.size)
            self.num_segments -= 1
        else:
            pool.add_unmapped(block)
