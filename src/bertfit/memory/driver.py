"""What a card's driver hands out: memory in whole pages, until it is full, and addresses for it."""

# cuMemGetAllocationGranularity of every card since Pascal.
PAGE_BYTES = 2 << 20
# The address space of an expandable segment where the card has no end.
ENDLESS_BYTES = 1 << 45
_TOP = 1 << 47  # of a program's addresses


class DriverMemory:
    """The memory of one card, less its context.

    Args:
        capacity_bytes: what can be handed out; None is without end.
    """

    def __init__(self, capacity_bytes: int | None) -> None:
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = self.peak_taken_bytes = 0
        self._end = PAGE_BYTES
        self._spaces: list[tuple[int, int]] = []  # from the top down

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
        """Return an address for a segment, above all earlier ones.

        Of free blocks of equal size PyTorch takes the one whose segment is the oldest, wherever it
        lies (`BlockComparatorSizeCounterAddress`), so an address is never used again.
        """
        start = self._end
        self._end += size
        return start

    def reserve(self, size: int) -> int:
        """Return where an address space begins: at the highest place that has room, as by mmap."""
        end = _TOP
        for at, (low, high) in enumerate(self._spaces):
            if end - high >= size:
                self._spaces.insert(at, (end - size, end))
                return end - size
            end = low
        self._spaces.append((end - size, end))
        return end - size

    def unreserve(self, address: int, size: int) -> None:
        """Take an address space back."""
        self._spaces.remove((address, address + size))


def _whole_pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
