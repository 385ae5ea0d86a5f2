"""Blocks of a card's memory, and the pools in which PyTorch's allocator keeps the free ones.

Sizes and orders are those of c10/cuda/CUDACachingAllocator.cpp of torch 2.14.
"""

from bisect import bisect_left, insort

# The constants of c10/cuda/CUDACachingAllocator.cpp, torch 2.14.
BLOCK_BYTES = 512  # kMinBlockSize: every request is rounded up to a multiple
SMALL_REQUEST_BYTES = 1 << 20  # kSmallSize: requests up to this share small segments
SMALL_SEGMENT_BYTES = 2 << 20  # kSmallBuffer
LARGE_SEGMENT_BYTES = 20 << 20  # kLargeBuffer: requests from 1 to 10 MiB share these
OWN_SEGMENT_BYTES = 10 << 20  # kMinLargeAlloc: from here on a request gets its own segment
SEGMENT_ROUNDING_BYTES = 2 << 20  # kRoundLarge

ADDRESS_BITS = 64


def round_size(size_bytes: int) -> int:
    """Round a request up to whole blocks of 512 bytes."""
    return max(BLOCK_BYTES, -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES)


class Block:
    """A run of bytes in a segment. Only the allocator changes it."""

    __slots__ = ("address", "free", "mapped", "next", "origin", "prev", "requested", "size")

    def __init__(self, address: int, size: int, *, origin: int | None = None) -> None:
        self.address = address
        self.size = size
        self.requested = 0
        self.free = True
        self.mapped = True
        self.origin = origin  # where its expandable segment begins
        self.prev: Block | None = None
        self.next: Block | None = None

    def cut(self, size: int) -> "Block":
        """Keep so many bytes and return the rest as a free block of the same segment."""
        rest = Block(self.address + size, self.size - size, origin=self.origin)
        rest.mapped = self.mapped
        rest.prev = self
        rest.next = self.next
        if rest.next is not None:
            rest.next.prev = rest
        self.next = rest
        self.size = size
        return rest

    def growable_size(self) -> int:
        """Return its bytes, and those behind it that the driver can still back with memory."""
        after = self.next
        return self.size + (after.size if after is not None and not after.mapped else 0)


class Pool:
    """The free blocks of one kind, ordered by size and then by address."""

    __slots__ = ("blocks", "keys", "segment_bytes", "small", "unmapped")

    def __init__(self, *, small: bool) -> None:
        self.small = small
        self.segment_bytes = SMALL_SEGMENT_BYTES if small else LARGE_SEGMENT_BYTES
        self.keys: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped: list[Block] = []

    def add(self, block: Block) -> None:
        """Take in a block that has memory behind it."""
        key = block.size << ADDRESS_BITS | block.address
        insort(self.keys, key)
        self.blocks[key] = block

    def remove(self, block: Block) -> None:
        """Take out a block that has memory behind it."""
        key = block.size << ADDRESS_BITS | block.address
        del self.keys[bisect_left(self.keys, key)]
        del self.blocks[key]

    def add_unmapped(self, block: Block) -> None:
        """Take in addresses of an expandable segment that nothing is behind."""
        insort(self.unmapped, block, key=_address)


def _address(block: Block) -> int:
    return block.address
