"""What a card's driver hands out: memory in whole pages, until it is full, and addresses for it."""

# cuMemGetAllocationGranularity of every card since Pascal.
PAGE_BYTES = 2 << 20
# The address space of an expandable segment, of which only a part is ever backed with memory.
ENDLESS_BYTES = 1 << 45


class DriverMemory:
    """The memory of one card, less its context.

    Args:
        capacity_bytes: what can be handed out; None is without end.
    """

    def __init__(self, capacity_bytes: int | None) -> None:
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = self.peak_taken_bytes = 0
        # Addresses decide between free blocks of equal size. They go up, and a gap that a returned
        # segment leaves is used again.
        self._end = PAGE_BYTES
        self._gaps: list[tuple[int, int]] = []

    @property
    def free_bytes(self) -> int | None:
        """What can still be had; None is without end."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.taken_bytes

    def take(self, size: int) -> bool:
        """Hand out memory in whole pages; False where there is not enough."""
        pages = _whole_pages(size)
        if self.capacity_bytes is not None and self.taken_bytes + pages > self.capacity_bytes:
            return False
        self.taken_bytes += pages
        self.peak_taken_bytes = max(self.peak_taken_bytes, self.taken_bytes)
        return True

    def give_back(self, size: int) -> None:
        """Take memory back."""
        self.taken_bytes -= _whole_pages(size)

    def place(self, size: int) -> int:
        """Return an address for a segment: that of the first gap that holds it."""
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

    def unplace(self, address: int, size: int) -> None:
        """Make the addresses of a segment a gap."""
        gaps: list[tuple[int, int]] = []
        for start, end in sorted([*self._gaps, (address, address + size)]):
            if gaps and gaps[-1][1] == start:
                gaps[-1] = (gaps[-1][0], end)
            else:
                gaps.append((start, end))
        if gaps and gaps[-1][1] == self._end:
            self._end = gaps.pop()[0]
        self._gaps = gaps


def _whole_pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
