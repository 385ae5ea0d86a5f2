"""Tags and spans: read every tag scheme into labelled spans, and write spans as tags.

A span is `(start, end, label)` over positions of a tag sequence, half-open. Knows nothing of text.

One rule repairs a sequence that its scheme does not allow: *a tag that cannot go on from what
stands before it begins a new span, and a span that is never closed ends where its tags stop.*
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bertfit.errors import DataError
from bertfit.language import _
from bertfit.types import Encoding, LabelScheme

Scheme = Literal["iob1", "iob2", "bio", "bioes", "bilou", "bmes", "bmewo", "none"]
Repair = Literal["orphan-inside", "orphan-end", "label-change", "unclosed", "foreign-prefix"]
Span = tuple[int, int, str]

OUTSIDE = "O"
SCHEMES: tuple[Scheme, ...] = ("iob1", "iob2", "bioes", "bilou", "bmes", "bmewo", "none")

# What a prefix does, whatever its scheme calls it.
_ROLES = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}
# Scheme -> how it writes begin, inside, end and single.
_LETTERS = {
    "iob1": "BIIB",
    "iob2": "BIIB",
    "bio": "BIIB",
    "bioes": "BIES",
    "bilou": "BILU",
    "bmes": "BMES",
    "bmewo": "BMEW",
}
_CLOSING = {"bioes", "bilou", "bmes", "bmewo"}
_KEPT_TAGS = 4096  # a file whose tags are all different must not fill the memory


def split_tag(tag: str, bare_label: str = "W") -> tuple[str, str]:
    """Split a tag at its first hyphen (or underscore) into role and label.

    `B-creative-work` is `("B", "creative-work")`, `B-PER.NOM` is `("B", "PER.NOM")`, and `B-O`
    is an entity whose label is `O`. Only the second character can be the separator.

    Args:
        tag: A tag of any scheme but `none`.
        bare_label: The label of a tag that has none, such as the `B` of word segmentation.

    Returns:
        The role `B`, `I`, `E`, `S`, or `O` with an empty label.

    Raises:
        DataError: the tag has no known prefix.
    """
    prefix, label = _prefix_and_label(tag)
    if prefix == OUTSIDE:
        return OUTSIDE, ""
    return _ROLES[prefix], label or bare_label


class _Readings(dict[str, tuple[str, str, bool]]):
    """Tag -> its role, its label, and whether its prefix is of the scheme; filled when asked."""

    def __init__(self, letters: str, bare_label: str) -> None:
        super().__init__()
        self._letters, self._bare_label = letters, bare_label

    def __missing__(self, tag: str) -> tuple[str, str, bool]:
        prefix, label = _prefix_and_label(tag)
        role = _ROLES.get(prefix, OUTSIDE)
        known = role == OUTSIDE or prefix in self._letters
        reading = role, label or self._bare_label, known
        if len(self) < _KEPT_TAGS:
            self[tag] = reading
        return reading


@lru_cache(64)
def _readings(scheme: Scheme, bare_label: str) -> _Readings:
    return _Readings(_LETTERS[scheme], bare_label)


@lru_cache(_KEPT_TAGS)
def _prefix_and_label(tag: str) -> tuple[str, str]:
    if tag in ("O", "o"):
        return OUTSIDE, ""
    if len(tag) == 1 and tag in _ROLES:
        return tag, ""
    if len(tag) > 2 and tag[1] in "-_" and tag[0].upper() in _ROLES:
        return tag[0].upper(), tag[2:]
    raise DataError(
        _(
            "'{tag}' is not a tag of the schemes {schemes}. Tags are written O or prefix-label, "
            "such as B-PER; name the scheme 'none' if the column holds bare labels."
        ).format(tag=tag, schemes=", ".join(name for name in SCHEMES if name != "none"))
    )


def spans(
    tags: Sequence[str],
    scheme: Scheme,
    on_repair: Callable[[int, Repair], None] | None = None,
    *,
    bare_label: str = "W",
    one_each: bool = False,
) -> list[Span]:
    """Read the labelled spans out of a tag sequence.

    In `iob1`, `B-` is only needed between neighbours of one label and an `I-` may begin a span; in
    all others a first `I-` is illegal. `none` holds bare labels: a maximal run of one label is a
    span, or every position its own (`one_each`, for part-of-speech tags).

    Args:
        tags: One tag per position.
        scheme: How the tags are written.
        on_repair: Told the position and the kind of every repair.
        bare_label: The label of tags that have none (`B`, `M`, `E`, `S` of word segmentation).
        one_each: With `none`: every position is a span of its own.

    Raises:
        DataError: a tag without a known prefix.
    """
    if scheme == "none":
        return _bare_spans(tags, one_each)
    report = on_repair or _no_report
    readings = _readings(scheme, bare_label)
    closing = scheme in _CLOSING
    found: list[Span] = []
    start, current = -1, ""
    for position, tag in enumerate(tags):
        if tag == OUTSIDE and start < 0:
            continue
        role, label, known = readings[tag]
        if not known:
            report(position, "foreign-prefix")
        inside = role in "IE"
        if start >= 0 and not (inside and label == current):
            found.append((start, position, current))
            start = -1
            if inside and scheme != "iob1":
                report(position, "label-change")
            elif closing:
                report(position - 1, "unclosed")
        elif start < 0 and inside and scheme != "iob1":
            report(position, "orphan-inside" if role == "I" else "orphan-end")
        if start < 0 and role != OUTSIDE:
            start, current = position, label
        if role in "ES":
            found.append((start, position + 1, current))
            start = -1
    if start >= 0:
        found.append((start, len(tags), current))
        if closing:
            report(len(tags) - 1, "unclosed")
    return found


def _no_report(position: int, kind: Repair) -> None:
    return None


def _bare_spans(tags: Sequence[str], one_each: bool) -> list[Span]:
    if one_each:
        return [(position, position + 1, tag) for position, tag in enumerate(tags)]
    found: list[Span] = []
    for position, tag in enumerate(tags):
        if tag == OUTSIDE:
            continue
        if found and found[-1][1] == position and found[-1][2] == tag:
            found[-1] = (found[-1][0], position + 1, tag)
        else:
            found.append((position, position + 1, tag))
    return found


def encode(labelled: Iterable[Span], length: int, scheme: Scheme) -> list[str]:
    """Write spans as tags; positions under no span are `O`.

    Args:
        labelled: Spans that do not overlap, in any order.
        length: Number of positions.
        scheme: How to write them. `iob1` writes `B-` only after a neighbour of the same label.

    Raises:
        ValueError: spans that overlap or reach beyond `length`: the caller's mistake.
    """
    tags = [OUTSIDE] * length
    previous_end, previous_label = 0, ""
    for start, end, label in sorted(labelled):
        if not previous_end <= start < end <= length:
            raise ValueError((start, end, label))
        if scheme == "none":
            tags[start:end] = [label] * (end - start)
        else:
            begin, inside, last, single = tuple(_LETTERS[scheme])
            if scheme == "iob1" and not (start == previous_end and label == previous_label):
                begin = single = inside
            if end - start == 1:
                tags[start] = f"{single}-{label}"
            else:
                tags[start] = f"{begin}-{label}"
                tags[start + 1 : end - 1] = [f"{inside}-{label}"] * (end - start - 2)
                tags[end - 1] = f"{last}-{label}"
        previous_end, previous_label = end, label
    return tags


def count_orphans(tags: Iterable[str]) -> int:
    """Count the `I-` tags that begin a span: what tells IOB1 from IOB2.

    Tags that no scheme knows count as outside.
    """
    orphans = 0
    previous = ""
    for tag in tags:
        inside = tag[:2] in ("I-", "I_")
        label = tag[2:] if inside or tag[:2] in ("B-", "B_") else ""
        if inside and label != previous:
            orphans += 1
        previous = label
    return orphans


def detect_scheme(tags: Mapping[str, int], orphans: int | None = None) -> Scheme:
    """Recognise the scheme of a tag column by its prefixes.

    `none` if any tag has no known prefix. `M-` says BMES (`W-`: BMEWO), `L-` or `U-` BILOU, `E-` or
    `S-` BIOES. With only `B-` and `I-` it is IOB1 if more spans begin with `I-` than with `B-`.

    Args:
        tags: How often each tag occurs.
        orphans: `count_orphans` summed over the sequences; without it, IOB1 is taken where some
            label has `I-` and `B-` is under 3% of its tags (IOB2 would need spans of 30 words).
    """
    prefixes: dict[str, int] = {}
    by_label: dict[str, list[int]] = {}
    for tag, count in tags.items():
        try:
            prefix, label = _prefix_and_label(tag)
        except DataError:
            return "none"
        prefixes[prefix] = prefixes.get(prefix, 0) + count
        if prefix in ("B", "I"):
            by_label.setdefault(label, [0, 0])["BI".index(prefix)] += count
    found = set(prefixes)
    if "W" in found:
        return "bmewo"
    if "M" in found:
        return "bmes"
    if found & {"L", "U"}:
        return "bilou"
    if found & {"E", "S"}:
        return "bioes"
    begins, insides = prefixes.get("B", 0), prefixes.get("I", 0)
    if orphans is not None:
        return "iob1" if orphans > begins else "iob2"
    few = any(inside and begin < 0.03 * (begin + inside) for begin, inside in by_label.values())
    return "iob1" if few and begins < insides else "iob2"


def label_scheme(labels: Iterable[str], encoding: Encoding) -> LabelScheme:
    """Make the tags of a model: `O` first, then the prefixed tags of each label in order."""
    ordered = tuple(dict.fromkeys(labels))
    if encoding == "none":
        return LabelScheme(labels=ordered, encoding=encoding, tags=ordered)
    prefixes = "BI" if encoding == "bio" else "BIES"
    tags = (OUTSIDE, *(f"{prefix}-{label}" for label in ordered for prefix in prefixes))
    return LabelScheme(labels=ordered, encoding=encoding, tags=tags)


def transitions(
    scheme: LabelScheme,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Say which tag may follow which.

    The start and end masks hold at the ends of a *text*: a window that begins or ends inside a
    text may cut an entity, so there every tag is allowed.

    Returns:
        allowed (K, K): `allowed[i, j]` if tag j may follow tag i; start (K,); end (K,).
    """
    num_tags = len(scheme.tags)
    allowed = np.ones((num_tags, num_tags), dtype=np.bool_)
    start = np.ones(num_tags, dtype=np.bool_)
    end = np.ones(num_tags, dtype=np.bool_)
    if scheme.encoding == "none":
        return allowed, start, end
    closing = scheme.encoding == "bioes"
    roles = [split_tag(tag) for tag in scheme.tags]
    has_begin = {label for role, label in roles if role == "B"}
    for j, (role, label) in enumerate(roles):
        goes_on = role in ("I", "E") and label in has_begin
        start[j] = not goes_on
        end[j] = not (closing and role in ("B", "I"))
        for i, (before, label_before) in enumerate(roles):
            is_open = before in ("B", "I")
            if goes_on:
                allowed[i, j] = is_open and label_before == label
            elif closing:
                allowed[i, j] = not is_open
    return allowed, start, end
