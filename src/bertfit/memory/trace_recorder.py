"""What a trace writes down: every block of the card, when it came, when it went, and for whom."""

import contextlib
import weakref
from bisect import bisect_right
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bertfit.memory.kernels import SizeRule
from bertfit.memory.trace_values import Values
from bertfit.types import Category, MemoryEvent


class Slot(NamedTuple):
    """Blocks that are there only for some shapes.

    Attributes:
        position: in the stream.
        events: how many there are.
        rule: gives the sizes.
        kind: whether the blocks are taken there, returned, or both.
    """

    position: int
    events: int
    rule: SizeRule
    kind: Literal["take", "return", "both"]


class Recorder:
    """The events of one program, as two flat lists that a replay reads fast.

    `stream` holds one number per event: `block` for an allocation, `~block` for a return. Blocks
    count up from 0; what is known of block b is at position b of the other lists.
    """

    def __init__(self) -> None:
        self.stream: list[int] = []
        self.sizes: list[int] = []
        self.categories: list[Category] = []
        self.places: list[tuple[str, str]] = []
        self.marks: list[tuple[int, str]] = []
        self.ops: list[str] = []
        # What the sizes of some blocks follow from.
        self.rules: dict[int, SizeRule] = {}
        self.slots: list[Slot] = []
        self.phase = "setup"
        self.module = ""
        self.op = ""
        self.live: dict[int, int] = {}
        self.values = Values()
        self.attention_kernels: set[str] = set()
        self.names: dict[int, str] = {}
        self.closed = False
        self.pinned: list[int] = []  # bytes of each block of pinned host memory that was asked for
        self._module_starts: list[int] = []
        self._module_names: list[str] = []

    def alloc(self, size_bytes: int, category: Category = "temporary") -> int:
        """Note an allocation; the caller notes the return with the number it gets."""
        block = len(self.sizes)
        self.sizes.append(size_bytes)
        self.categories.append(category)
        self.places.append((self.phase, self.module))
        self.ops.append(self.op)
        if size_bytes:  # torch asks the allocator for nothing when a tensor is empty
            self.stream.append(block)
        return block

    def free(self, block: int) -> None:
        """Note that a block went back to the allocator."""
        if self.sizes[block] and not self.closed:
            self.stream.append(~block)

    def temporary(self, *sizes_bytes: int) -> None:
        """Note blocks that a kernel takes together and returns in reverse order."""
        blocks = [self.alloc(size, "workspace") for size in sizes_bytes]
        for block in reversed(blocks):
            self.free(block)

    def slot(self, rule: SizeRule) -> None:
        """Note what a kernel takes for some shapes and not for others."""
        position = len(self.stream)
        self.temporary(*rule.sizes())
        self.slots.append(Slot(position, len(self.stream) - position, rule, "both"))

    @contextlib.contextmanager
    def held_slot(self, rule: SizeRule) -> Iterator[None]:
        """Note the same where other blocks are taken before these are returned."""
        position = len(self.stream)
        blocks = [self.alloc(size, "workspace") for size in rule.sizes()]
        self.slots.append(Slot(position, len(self.stream) - position, rule, "take"))
        yield
        position = len(self.stream)
        for block in reversed(blocks):
            self.free(block)
        self.slots.append(Slot(position, len(self.stream) - position, rule, "return"))

    def explain(self, tensor: Tensor, rule: SizeRule) -> None:
        """Say what the size of a tensor's block follows from."""
        block = self.block_of(tensor)
        if block is not None:
            self.rules[block] = rule

    def note(self, tensor: Tensor) -> None:
        """Follow the storage of a tensor from now until nothing refers to it."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.live:
            return
        self.live[key] = block = self.alloc(storage.nbytes())
        weakref.finalize(storage, self._gone, key, block).atexit = False

    def _gone(self, key: int, block: int) -> None:
        if self.live.get(key) == block:
            del self.live[key]
            self.values.forget(key)
            self.free(block)

    def on_card(self, tensor: Tensor) -> bool:
        """Say whether a meta tensor stands for memory of the card (else of the host)."""
        return tensor.untyped_storage()._cdata in self.live

    @property
    def pinned_bytes(self) -> int:
        """What torch pins of the host's memory for all that was asked for.

        Source: CachingHostAllocatorImpl.h, to the next power of two.
        """
        return sum(1 << (size - 1).bit_length() for size in self.pinned)

    def block_of(self, tensor: Tensor) -> int | None:
        """Return the block that holds a tensor."""
        return self.live.get(tensor.untyped_storage()._cdata)

    def categorize(self, tensor: Tensor, category: Category) -> None:
        """Say what the block of a tensor is for."""
        block = self.live.get(tensor.untyped_storage()._cdata)
        if block is not None:
            self.categories[block] = category

    def bytes_of(self, category: Category) -> int:
        """Return the bytes of all blocks of a category, as they were asked for."""
        kinds = zip(self.sizes, self.categories, strict=True)
        return sum(size for size, kind in kinds if kind == category)

    def mark(self, name: str) -> None:
        """Name the place between two events."""
        self.marks.append((len(self.stream), name))

    # --- which module a backward node belongs to

    def enter_module(self, name: str) -> None:
        """Note that from now on the forward of this module runs."""
        self.module = name
        number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        if self._module_starts and self._module_starts[-1] >= number:
            self._module_names[-1] = name
        else:
            self._module_starts.append(number)
            self._module_names.append(name)

    def module_of_node(self, number: int) -> str:
        """Return the module whose forward made the backward node with this sequence number."""
        at = bisect_right(self._module_starts, number)
        return self._module_names[at - 1] if at else ""

    def events(self) -> Iterator[MemoryEvent]:
        """Give the stream as records."""
        for entry in self.stream:
            block = entry if entry >= 0 else ~entry
            phase, module = self.places[block]
            yield MemoryEvent(
                action="alloc" if entry >= 0 else "free",
                block=block,
                size_bytes=self.sizes[block],
                category=self.categories[block],
                phase=phase,
                module=module,
            )

    def final_categories(self) -> list[Category]:
        """Tell activations from what only one operation needed: they wait for the backward."""
        kinds = list(self.categories)
        freed_in: dict[int, bool] = {}
        backward = False
        for entry in self.stream:
            if entry >= 0:
                backward = self.places[entry][0] == "backward"
            else:
                freed_in[~entry] = backward
        for block, (phase, _module) in enumerate(self.places):
            if kinds[block] == "temporary" and phase == "forward" and freed_in.get(block, True):
                kinds[block] = "activation"
        return kinds
