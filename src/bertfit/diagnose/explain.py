"""A memory estimate in words that a student understands, and what each lever would change.

Works on finished estimates and computes none; the parts always add up to what is required.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bertfit.language import N_, _
from bertfit.types import MemoryEstimate

# Category of the trace -> its name, and what it is.
_CATEGORIES = {
    "parameter": (N_("weights"), N_("the numbers that are learned")),
    "gradient": (N_("gradients"), N_("how each weight should move, one number per weight")),
    "optimizer_state": (
        N_("optimizer"),
        N_("what the optimizer remembers of earlier steps; AdamW two numbers per weight"),
    ),
    "activation": (
        N_("activations"),
        N_("results of the forward pass, kept for the backward pass; grow with batch and length"),
    ),
    "input": (N_("inputs"), N_("token ids, masks and labels of the batch")),
    "temporary": (N_("temporaries"), N_("results that live for a moment")),
    "workspace": (N_("workspaces"), N_("scratch space of the kernels, mostly cuBLAS")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of what a job needs; `share` is of all that is required."""

    kind: str
    name: str
    meaning: str
    size_bytes: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one change would do to the memory that is required; negative saves."""

    change: str
    required_bytes: int
    difference_bytes: int


def explain(estimate: MemoryEstimate) -> list[Part]:
    """Take an estimate apart, largest tensors first, then fragmentation, context and margin.

    The categories are those alive at the peak of what is allocated. What the allocator holds
    beyond them is fragmentation: gaps between blocks, and blocks kept for the next step.
    """
    sizes = {
        kind: size for kind, size in estimate.by_category.items() if kind in _CATEGORIES and size
    }
    parts = [
        (kind, _(_CATEGORIES[kind][0]), _(_CATEGORIES[kind][1]), size)
        for kind, size in sorted(sizes.items(), key=lambda item: -item[1])
    ]
    gaps = estimate.peak_reserved_bytes - sum(sizes.values())
    parts += [
        (
            "fragmentation",
            _("fragmentation"),
            _("gaps between the blocks of the allocator, and blocks it keeps"),
            gaps,
        ),
        (
            "context",
            _("CUDA context"),
            _("the driver's structures and the code of the kernels"),
            estimate.context_bytes,
        ),
        (
            "margin",
            _("margin"),
            _("kept free, since no estimate is perfect"),
            estimate.margin_bytes,
        ),
    ]
    total = estimate.required_bytes
    return [
        Part(kind=kind, name=name, meaning=meaning, size_bytes=size, share=size / total)
        for kind, name, meaning, size in parts
    ]


def compare(base: MemoryEstimate, changed: Mapping[str, MemoryEstimate]) -> list[Effect]:
    """Say what each single change does to the required memory, the largest saving first.

    Args:
        base: the settings as they are.
        changed: the change, as it is to be shown -> the estimate with that change alone.
    """
    effects = [
        Effect(
            change=change,
            required_bytes=estimate.required_bytes,
            difference_bytes=estimate.required_bytes - base.required_bytes,
        )
        for change, estimate in changed.items()
    ]
    return sorted(effects, key=lambda effect: effect.difference_bytes)
