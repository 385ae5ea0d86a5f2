"""PyTorch's caching allocator for CUDA, one stream of it, replayed without a card.

It knows sizes and their order, not what is in the blocks. Faithful to
c10/cuda/CUDACachingAllocator.cpp of torch 2.14: the same rounding, pools, best fit, split rules,
merging, expandable segments, and the same giving back of cached blocks when the card is full.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

from bertfit.types import MemoryEvent

# The constants of c10/cuda/CUDACachingAllocator.cpp, torch 2.14.
BLOCK_BYTES = 512  # kMinBlockSize: every request is rounded up to a multiple
SMALL_REQUEST_BYTES = 1 << 20  # kSmallSize: requests up to this share small segments
SMALL_SEGMENT_BYTES = 2 << 20  # kSmallBuffer
LARGE_SEGMENT_BYTES = 20 << 20  # kLargeBuffer: requests from 1 to 10 MiB share these
OWN_SEGMENT_BYTES = 10 << 20  # kMinLargeAlloc: from here on a request gets its own segment
SEGMENT_ROUNDING_BYTES = 2 << 20  # kRoundLarge

# The driver hands out whole pages: cuMemGetAllocationGranularity of every card since Pascal.
PAGE_BYTES = 2 << 20

_ADDRESS_BITS = 48
_ADDRESS_MASK = (1 << _ADDRESS_BITS) - 1
_ENDLESS = 1 << 45


def round_size(size_bytes: int) -> int:
    """Round a request up to whole blocks of 512 bytes."""
    return max(BLOCK_BYTES, -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES)


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


class Block:
    """A run of bytes in a segment. Only the allocator changes it."""

    __slots__ = ("address", "expandable", "free", "mapped", "next", "prev", "requested", "size")

    def __init__(self, address: int, size: int, *, expandable: bool = False) -> None:
        self.address = address
        self.size = size
        self.requested = 0
        self.free = True
        self.mapped = True
        self.expandable = expandable
        self.prev: Block | None = None
        self.next: Block | None = None


class _Pool:
    """The free blocks of one kind, ordered by size and then by address."""

    __slots__ = ("blocks", "keys", "segment_bytes", "small", "unmapped")

    def __init__(self, *, small: bool) -> None:
        self.small = small
        self.segment_bytes = SMALL_SEGMENT_BYTES if small else LARGE_SEGMENT_BYTES
        self.keys: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped: list[Block] = []

    def add(self, block: Block) -> None:
        key = block.size << _ADDRESS_BITS | block.address
        insort(self.keys, key)
        self.blocks[key] = block

    def remove(self, block: Block) -> None:
        key = block.size << _ADDRESS_BITS | block.address
        del self.keys[bisect_left(self.keys, key)]
        del self.blocks[key]

    def add_unmapped(self, block: Block) -> None:
        insort(self.unmapped, block, key=_address)


def _address(block: Block) -> int:
    return block.address


class CachingAllocator:
    """The allocator of one card and one stream; its state outlives every call.

    Args:
        capacity_bytes: What the driver can hand out: the card's memory less the context. None is
            without end.
        reserved_limit_bytes: `torch.cuda.set_per_process_memory_fraction` in bytes.
        expandable_segments: As in `PYTORCH_ALLOC_CONF`.
        max_split_size_bytes: As `max_split_size_mb` in `PYTORCH_ALLOC_CONF`, in bytes.
    """

    def __init__(
        self,
        capacity_bytes: int | None = None,
        *,
        reserved_limit_bytes: int | None = None,
        expandable_segments: bool = False,
        max_split_size_bytes: int | None = None,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_limit_bytes = reserved_limit_bytes
        self.expandable_segments = expandable_segments
        self.max_split_size_bytes = max_split_size_bytes or 1 << 62
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.requested_bytes = self.peak_requested_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.device_bytes = self.peak_device_bytes = 0
        self.num_alloc_retries = 0
        self.num_segments = 0
        self.failure: AllocationFailure | None = None
        self._small = _Pool(small=True)
        self._large = _Pool(small=False)
        # Addresses decide between free blocks of equal size. They go up, and a gap that a returned
        # segment leaves is used again.
        self._end = PAGE_BYTES
        self._gaps: list[tuple[int, int]] = []

    @property
    def largest_free_bytes(self) -> int:
        """The largest cached block that nobody uses."""
        keys = [pool.keys[-1] for pool in (self._small, self._large) if pool.keys]
        return max(keys) >> _ADDRESS_BITS if keys else 0

    def reset_peaks(self) -> None:
        """Start the peaks anew from what is held now, as `reset_peak_memory_stats` does."""
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_requested_bytes = self.requested_bytes
        self.peak_reserved_bytes = self.reserved_bytes
        self.peak_device_bytes = self.device_bytes

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
        if remaining and self._should_split(pool, block, size, remaining):
            rest = Block(block.address + size, remaining, expandable=block.expandable)
            rest.prev = block
            rest.next = block.next
            if rest.next is not None:
                rest.next.prev = rest
            block.next = rest
            block.size = size
            pool.add(rest)
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

    def _find_free(self, pool: _Pool, size: int) -> Block | None:
        keys = pool.keys
        at = bisect_left(keys, size << _ADDRESS_BITS)
        if at == len(keys):
            return None
        block = pool.blocks[keys[at]]
        if self.expandable_segments:
            # The size that counts for the best fit is the one that a block can still grow to.
            while at + 1 < len(keys):
                after = pool.blocks[keys[at + 1]]
                if _growable(after) >= _growable(block):
                    break
                block = after
                at += 1
        if size < self.max_split_size_bytes <= block.size:
            return None
        if size >= self.max_split_size_bytes and block.size >= size + LARGE_SEGMENT_BYTES:
            return None  # kMaxNonSplitRoundingSize
        pool.remove(block)
        return block

    def _should_split(self, pool: _Pool, block: Block, size: int, remaining: int) -> bool:
        if pool.small or self.expandable_segments:
            return remaining >= BLOCK_BYTES
        return size < self.max_split_size_bytes and remaining > SMALL_REQUEST_BYTES

    def _merge(self, pool: _Pool, block: Block) -> None:
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
    def _forget(pool: _Pool, block: Block) -> None:
        if block.mapped:
            pool.remove(block)
        else:
            pool.unmapped.remove(block)

    # --- asking the driver

    def _new_block(self, pool: _Pool, size: int) -> Block | None:
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
        free = self.capacity_bytes - self.device_bytes if self.capacity_bytes is not None else 0
        return AllocationFailure(
            requested_bytes=requested,
            free_bytes=free,
            allocated_bytes=self.allocated_bytes,
            cached_bytes=self.reserved_bytes - self.allocated_bytes,
            largest_free_bytes=self.largest_free_bytes,
            limit="cap" if capped else "card",
        )

    def _capped(self, size: int) -> bool:
        limit = self.reserved_limit_bytes
        return limit is not None and self.reserved_bytes + size > limit

    def _allocate(self, pool: _Pool, size: int, segment: int) -> Block | None:
        if self._capped(segment):
            return None
        if self.expandable_segments:
            return self._expand(pool, size)
        if not self._charge(segment):
            return None
        self._reserve(segment)
        self.num_segments += 1
        return Block(self._place(segment), segment)

    def _charge(self, size: int) -> bool:
        pages = -(-size // PAGE_BYTES) * PAGE_BYTES
        if self.capacity_bytes is not None and self.device_bytes + pages > self.capacity_bytes:
            return False
        self.device_bytes += pages
        self.peak_device_bytes = max(self.peak_device_bytes, self.device_bytes)
        return True

    def _discharge(self, size: int) -> None:
        self.device_bytes -= -(-size // PAGE_BYTES) * PAGE_BYTES

    def _reserve(self, size: int) -> None:
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _place(self, size: int) -> int:
        for at, (start, end) in enumerate(self._gaps):
            if end - start >= size:
                if end - start == size:
                    del self._gaps[at]
                else:
                    self._gaps[at] = (start + size, end)
                return start
        start = self._end
        self._end += size
        return start

    def _unplace(self, address: int, size: int) -> None:
        gaps: list[tuple[int, int]] = []
        for start, end in sorted([*self._gaps, (address, address + size)]):
            if gaps and gaps[-1][1] == start:
                gaps[-1] = (gaps[-1][0], end)
            else:
                gaps.append((start, end))
        if gaps and gaps[-1][1] == self._end:
            self._end = gaps.pop()[0]
        self._gaps = gaps

    # --- giving back to the driver

    def _release(self, pool: _Pool, block: Block) -> None:
        pool.remove(block)
        self._discharge(block.size)
        self.reserved_bytes -= block.size
        self._unplace(block.address, block.size)
        self.num_segments -= 1

    def _release_oversized(self, pool: _Pool, size: int) -> bool:
        """With `max_split_size`: give back the segment that fits, or the largest until enough."""
        if self.max_split_size_bytes >= 1 << 62 or self.expandable_segments:
            return False
        wanted = max(size, self.max_split_size_bytes)
        at = bisect_left(pool.keys, wanted << _ADDRESS_BITS)
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

    def _release_cached(self, pool: _Pool) -> None:
        """Give back every segment, or every page of an expandable one, that is wholly free."""
        for block in [pool.blocks[key] for key in pool.keys]:
            if block.expandable:
                self._unmap(pool, block)
            elif block.prev is None and block.next is None:
                self._release(pool, block)

    # --- expandable segments

    def _expand(self, pool: _Pool, size: int) -> Block | None:
        """Grow the segment at its lowest place that has room, page by page of the pool."""
        block = self._growth_place(pool, size)
        if not block.mapped and not self._map(pool, block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.next
            assert after is not None, "the address space of a segment does not end"
            if not self._map(pool, after, min(size - block.size, after.size)):
                return None
            block = after
        pool.remove(block)
        return block

    def _growth_place(self, pool: _Pool, size: int) -> Block:
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
        # One segment for each pool, in an address space of its own.
        address = _ENDLESS * (1 if pool.small else 2)
        fresh = Block(address, _ENDLESS, expandable=True)
        fresh.mapped = False
        pool.add_unmapped(fresh)
        self.num_segments += 1
        return fresh

    def _map(self, pool: _Pool, block: Block, size: int) -> bool:
        """Back the head of an unmapped block with memory and join it to its free neighbours."""
        step = pool.segment_bytes
        mapped = min(-(-size // step) * step, block.size)
        for done in range(0, mapped, step):
            if not self._charge(step):
                self._discharge(done)
                return False
        self._reserve(mapped)
        pool.unmapped.remove(block)
        if mapped < block.size:
            rest = Block(block.address + mapped, block.size - mapped, expandable=True)
            rest.mapped = False
            rest.prev = block
            rest.next = block.next
            if rest.next is not None:
                rest.next.prev = rest
            block.next = rest
            block.size = mapped
            pool.add_unmapped(rest)
        block.mapped = True
        self._merge(pool, block)
        pool.add(block)
        return True

    def _unmap(self, pool: _Pool, block: Block) -> None:
        step = pool.segment_bytes
        origin = block.address & ~(_ENDLESS - 1)
        start = origin + -(-(block.address - origin) // step) * step
        end = origin + (block.address + block.size - origin) // step * step
        if end <= start:
            return
        pool.remove(block)
        before = start - block.address
        if before:
            rest = Block(block.address, before, expandable=True)
            rest.prev, rest.next = block.prev, block
            if rest.prev is not None:
                rest.prev.next = rest
            block.prev = rest
            pool.add(rest)
        behind = block.address + block.size - end
        if behind:
            rest = Block(end, behind, expandable=True)
            rest.prev, rest.next = block, block.next
            if rest.next is not None:
                rest.next.prev = rest
            block.next = rest
            pool.add(rest)
        block.address, block.size, block.mapped = start, end - start, False
        self._discharge(block.size)
        self.reserved_bytes -= block.size
        self._merge(pool, block)
        pool.add_unmapped(block)


def _growable(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and not after.mapped else 0)
