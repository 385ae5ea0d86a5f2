"""What the tags of somebody else's checkpoint mean: B/I, BIOES, BMES, bare labels, no names."""

import re
from dataclasses import dataclass

from bertfit.data.tags import OUTSIDE, detect_scheme, split_tag
from bertfit.errors import DataError
from bertfit.types import LabelScheme

# transformers' name for a tag that nobody named; and names for "no tag" in old training scripts.
_UNNAMED = re.compile(r"LABEL_[0-9]+")
_SUFFIXED = re.compile(r"(.+)[-_]([BIESMLUW])")


@dataclass(frozen=True, slots=True, kw_only=True)
class TagMeaning:
    """How the tags of a model are read.

    Attributes:
        scheme: tags in the notation that everything else here reads, position by position.
        unmapped: tags of the checkpoint that have no meaning: counted as outside where others have
            one, else each a label of its own.
        constrained: False where a sequence that looks illegal is how the model writes (IOB1).
    """

    scheme: LabelScheme
    unmapped: tuple[str, ...] = ()
    constrained: bool = True


def tag_meaning(scheme: LabelScheme) -> TagMeaning:
    """Say what the tags of a checkpoint mean; bertfit's own are left as they are.

    BMES, BMEWO and BILOU tags are given the roles of BIOES, in place, so that one rule reads all.
    Bare labels beside an `O` are runs: `PER PER` is one entity. Bare labels without an `O` are one
    answer per unit (parts of speech). `[PAD]`, `X`, `LABEL_3` beside tags that have a meaning are
    outside.
    """
    if scheme.labels:
        return TagMeaning(scheme=scheme)
    tags = [_prefix_first(tag) for tag in scheme.tags]
    roles = [_role(tag) for tag in tags]
    if any(role is not None and role[0] != OUTSIDE for role in roles):
        return _prefixed(scheme.tags, tags, roles)
    unnamed = tuple(tag for tag in scheme.tags if _UNNAMED.fullmatch(tag))
    if OUTSIDE in scheme.tags:
        bare = [tag if tag == OUTSIDE else f"I-{tag}" for tag in scheme.tags]
        labels = tuple(tag for tag in scheme.tags if tag != OUTSIDE)
        return TagMeaning(
            scheme=LabelScheme(labels=labels, encoding="bio", tags=tuple(bare)), unmapped=unnamed
        )
    if len(unnamed) == len(scheme.tags):
        # Nothing says which of them is outside; runs at least make them readable.
        runs = tuple(f"I-{tag}" for tag in scheme.tags)
        return TagMeaning(
            scheme=LabelScheme(labels=scheme.tags, encoding="bio", tags=runs), unmapped=unnamed
        )
    return TagMeaning(
        scheme=LabelScheme(labels=scheme.tags, encoding="none", tags=scheme.tags), unmapped=unnamed
    )


def _prefixed(
    names: tuple[str, ...], tags: list[str], roles: list[tuple[str, str] | None]
) -> TagMeaning:
    known = {tag: 1 for tag, role in zip(tags, roles, strict=True) if role is not None}
    found = detect_scheme(known)
    read = [OUTSIDE if role is None or role[0] == OUTSIDE else "-".join(role) for role in roles]
    labels = tuple(dict.fromkeys(role[1] for role in roles if role and role[0] != OUTSIDE))
    begins = {role[1] for role in roles if role and role[0] == "B"}
    bio = found in ("iob1", "iob2", "bio")
    # CoNLL 2003 as it was published: B- only between neighbours, so some labels never have one.
    iob1 = bio and bool(begins) and begins != set(labels)
    return TagMeaning(
        scheme=LabelScheme(labels=labels, encoding="bio" if bio else "bioes", tags=tuple(read)),
        unmapped=tuple(name for name, role in zip(names, roles, strict=True) if role is None),
        constrained=not iob1,
    )


def _prefix_first(tag: str) -> str:
    """Turn `PER-B` into `B-PER`; leave everything else."""
    match = _SUFFIXED.fullmatch(tag)
    if match is None or _role(tag) is not None:
        return tag
    return f"{match.group(2)}-{match.group(1)}"


def _role(tag: str) -> tuple[str, str] | None:
    try:
        return split_tag(tag)
    except DataError:
        return None
