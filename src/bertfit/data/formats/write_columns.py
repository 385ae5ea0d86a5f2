"""Column files, written so that reading them gives the same text and entities back.

One word and its tag a line, a tab between. Where joining the words by the rule of `words` would
not give the text again, a comment `# text = ...` says it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import TextIO

from bertfit.data.formats.losses import Losses
from bertfit.data.formats.words import Joining, join_words, survey_joining
from bertfit.data.gold import flat
from bertfit.data.segments import word_units
from bertfit.data.tags import Scheme, Span, encode, spans
from bertfit.language import _
from bertfit.types import Entity, Example

_SURVEYED_CHARACTERS = 1 << 20
_BREAKS = re.compile(r"[\t\n\r\0]")
WORD_LABEL = "W"
_CLOSING = ("bioes", "bilou", "bmes", "bmewo")


def write_columns(examples: Iterable[Example], file: TextIO, scheme: Scheme, losses: Losses) -> int:
    """Write examples as columns and return how many.

    Args:
        examples: What to write.
        file: Where to.
        scheme: The scheme of the tags.
        losses: Told of what columns cannot hold.
    """
    count = 0
    rest = iter(examples)
    first = _survey(rest)
    joining = survey_joining(
        [[example.text[a:b] for a, b in _units(example, [])] for example in first]
    )
    for example in chain(first, rest):
        count += _write_example(example, file, scheme, joining, losses)
    return count


def _survey(examples: Iterator[Example]) -> list[Example]:
    first = []
    size = 0
    for example in examples:
        first.append(example)
        size += len(example.text)
        if size >= _SURVEYED_CHARACTERS:
            break
    return first


def _write_example(
    example: Example, file: TextIO, scheme: Scheme, joining: Joining, losses: Losses
) -> int:
    if "\0" in example.text:
        losses.record(example, _("a text with a NUL character"))
        return 0
    kept = _held(example, losses)
    units = _units(example, kept)
    if not units:
        losses.record(example, _("a text without words"))
        return 0
    if example.entities is None:
        losses.note(example, _("that a text is not annotated: its words are written as O"))
    words = [example.text[start:end] for start, end in units]
    tags = _tags(example, kept, units, scheme, losses)
    # U+FEFF at the beginning of a file would pass for a byte order mark and be taken off.
    if join_words(words, joining)[0] != example.text or words[0].startswith("\ufeff"):
        file.write(f"# text = {_comment(example.text)}\n")
    file.writelines(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True))
    file.write("\n")
    return 1


def _comment(text: str) -> str:
    """Write a text on one line; as a JSON string where it would not survive as it is."""
    plain = text == text.strip() and not text.startswith('"') and not re.search(r"[\t\n\r]", text)
    return text if plain else json.dumps(text, ensure_ascii=False)


def _held(example: Example, losses: Losses) -> list[Entity]:
    """Return the entities that tags can hold: flat, and without white space at their edges."""
    trimmed = []
    for entity in example.entities or ():
        surface = example.text[entity.start : entity.end]
        inner = surface.strip()
        if not inner:
            losses.entity(example, entity, _("holds nothing but white space; left out"))
            continue
        if inner != surface:
            losses.entity(example, entity, _("has white space at its edge; written without"))
            start = entity.start + len(surface) - len(surface.lstrip())
            entity = Entity(start=start, end=start + len(inner), label=entity.label)
        trimmed.append(entity)
    kept, dropped = flat(trimmed)
    for entity in dropped:
        losses.entity(example, entity, _("lies under a longer one or on the same span; left out"))
    return kept


def _units(example: Example, entities: Iterable[Entity]) -> list[tuple[int, int]]:
    """Return the words to write, cut where an entity begins or ends and at line breaks."""
    edges = {edge for entity in entities for edge in (entity.start, entity.end)}
    edges.update(
        edge for match in _BREAKS.finditer(example.text) for edge in (match.start(), match.end())
    )
    units: list[tuple[int, int]] = []
    for start, end in _words(example):
        cuts = [start, *sorted(edge for edge in edges if start < edge < end), end]
        for a, b in pairwise(cuts):
            if a < b and not _BREAKS.fullmatch(example.text[a:b]):
                units.append((a, b))
    return units


def _words(example: Example) -> Sequence[tuple[int, int]]:
    """Return the words of the file, unless a part of the text is in none of them."""
    if example.words is None:
        return word_units(example.text)
    edges = [0, *(edge for word in example.words for edge in word), len(example.text)]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    if any(example.text[start:end].strip() for start, end in gaps):
        return word_units(example.text)
    return example.words


def _tags(
    example: Example,
    kept: list[Entity],
    units: list[tuple[int, int]],
    scheme: Scheme,
    losses: Losses,
) -> list[str]:
    starts = {start: index for index, (start, _end) in enumerate(units)}
    ends = {end: index for index, (_start, end) in enumerate(units)}
    wanted: list[Span] = []
    for entity in kept:
        if entity.start in starts and entity.end in ends and entity.label == entity.label.strip():
            wanted.append((starts[entity.start], ends[entity.end] + 1, entity.label))
        else:
            losses.entity(example, entity, _("does not begin and end with a word; left out"))
    tags = encode(wanted, len(units), scheme)
    pos = scheme == "none" and len(wanted) == len(units)
    if sorted(spans(tags, scheme, one_each=pos)) != sorted(wanted):
        found = set(spans(tags, scheme))
        for entity, span in zip(kept, wanted, strict=False):
            if span not in found:
                losses.entity(
                    example,
                    entity,
                    _("touches another of its label, which {scheme} merges").format(scheme=scheme),
                )
    if scheme in _CLOSING and "O" not in tags and all(span[2] == WORD_LABEL for span in wanted):
        return [tag.removesuffix(f"-{WORD_LABEL}") for tag in tags]
    return tags
