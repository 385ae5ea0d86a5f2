"""From units to token ids: a tokenizer's own parts, asked so that every unit has tokens of its own.

A stretch of text without white space and ideographs is tokenised as the model's tokenizer would.
Only where one of its tokens would lie across the edge of a unit, those units are tokenised one
by one. So ordinary text gives the ids the model was pretrained on, and no unit shares a token.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from bertfit.data.segments import chunk_units, chunks, classes
from bertfit.types import Example, Split, Window

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

# A unit is tagged at its first token; later pieces are context, and this much of it is enough.
MAX_PIECES = 32
# WordPiece gives up on words of over 100 letters; so does this, but keeps their beginning.
MAX_UNIT_CHARACTERS = 100
# Longer stretches than this are not worth remembering (and rarely come twice).
_MAX_CHUNK_CHARACTERS = 64
# Bounds the memory of a stream that never repeats itself: about 120 MB measured.
_MAX_CACHED = 100_000

_SURROGATE = re.compile("[\ud800-\udfff]")
_META = "\u2581"  # SentencePiece's mark of a word's beginning

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """What of a tokenizer windows need.

    Attributes:
        backend: The `tokenizers.Tokenizer` of a fast tokenizer.
        prefix_ids: Ids before every window, such as `[CLS]`.
        suffix_ids: Ids after every window, such as `[SEP]`.
        unk_id: Stands for a unit that the tokenizer drops.
        pad_id: Fills up shorter windows of a batch.
    """

    backend: "Tokenizer"
    prefix_ids: Ids
    suffix_ids: Ids
    unk_id: int
    pad_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPieces:
    """The U units of a text: where each begins and ends, and its token ids (at least one)."""

    starts: list[int]
    ends: list[int]
    pieces: list[Ids]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A remembered stretch: its units relative to its beginning, and their ids."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    pieces: tuple[Ids, ...]


class _Characters(dict[str, Ids]):
    """Character without white space before it -> ids; white space has none."""

    def __init__(self, owner: "TextTokenizer") -> None:
        super().__init__()
        self._owner = owner

    def __missing__(self, character: str) -> Ids:
        ids = () if character.isspace() else self._owner.pieces(character, False)
        self[character] = ids
        return ids


class TextTokenizer:
    """Turns units into token ids and remembers what it has seen.

    Special tokens are not looked for: the text `[SEP]` is three units, never a separator.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        from tokenizers import PreTokenizedString

        self.parts = parts
        self._new_string = PreTokenizedString
        self._model = parts.backend.model
        self._normalizer, prepends = _without_prepend(parts.backend.normalizer)
        self._spaced, self._unspaced, marks_start = _prefix_variants(parts.backend.pre_tokenizer)
        # How the tokenizer itself treats the first word of a text.
        self._space_at_start = prepends or marks_start
        self._units: dict[tuple[str, bool], Ids] = {}
        self._chunks: dict[tuple[str, bool], _Chunk] = {}
        self._characters = _Characters(self)

    def cut(self, example: Example, split: Split) -> UnitPieces:
        """Return the units of an example with their token ids."""
        if split == "characters":
            return self._cut_characters(example.text)
        if example.words is not None:
            return self._cut_words(example.text, example.words)
        return self._cut_text(example.text)

    def pieces(self, unit: str, space_before: bool) -> Ids:
        """Return the ids of one unit on its own: at least one, at most `MAX_PIECES`."""
        key = (unit, space_before)
        ids = self._units.get(key)
        if ids is None:
            ids = self._tokenize_unit(unit, space_before)
            if len(self._units) >= _MAX_CACHED:
                self._units.clear()
            if len(unit) <= _MAX_CHUNK_CHARACTERS:
                self._units[key] = ids
        return ids

    def _cut_characters(self, text: str) -> UnitPieces:
        if len(self._characters) >= _MAX_CACHED:
            self._characters.clear()
        pieces = list(map(self._characters.__getitem__, text))
        size = len(text)
        if all(pieces):
            starts, first = list(range(size)), 0
        else:
            starts = [i for i, ids in enumerate(pieces) if ids]
            pieces = [pieces[i] for i in starts]
            first = -1  # no character stands before the first one
            for position, start in enumerate(starts):
                if start != first + 1 and start:
                    pieces[position] = self.pieces(text[start], True)
                first = start
        if starts and starts[0] == 0 and self._space_at_start:
            pieces[0] = self.pieces(text[0], True)
        return UnitPieces(starts=starts, ends=[start + 1 for start in starts], pieces=pieces)

    def _cut_words(self, text: str, words: Iterable[tuple[int, int]]) -> UnitPieces:
        starts, ends, pieces = [], [], []
        for start, end in words:
            starts.append(start)
            ends.append(end)
            pieces.append(self.pieces(text[start:end], self._space_before(text, start)))
        return UnitPieces(starts=starts, ends=ends, pieces=pieces)

    def _cut_text(self, text: str) -> UnitPieces:
        starts: list[int] = []
        ends: list[int] = []
        pieces: list[Ids] = []
        characters = self._characters
        for start, end in chunks(classes(text)):
            spaced = self._space_before(text, start)
            if end - start == 1 and not spaced:
                starts.append(start)
                ends.append(end)
                pieces.append(characters[text[start]])
                continue
            chunk = self._chunk(text[start:end], spaced)
            starts += [start + position for position in chunk.starts]
            ends += [start + position for position in chunk.ends]
            pieces += chunk.pieces
        return UnitPieces(starts=starts, ends=ends, pieces=pieces)

    def _space_before(self, text: str, start: int) -> bool:
        return text[start - 1].isspace() if start else self._space_at_start

    def _chunk(self, chunk: str, space_before: bool) -> _Chunk:
        key = (chunk, space_before)
        known = self._chunks.get(key)
        if known is None:
            units = chunk_units(chunk)
            known = _Chunk(
                tuple(start for start, _end in units),
                tuple(end for _start, end in units),
                self._tokenize_chunk(chunk, units, space_before),
            )
            if len(self._chunks) >= _MAX_CACHED:
                self._chunks.clear()
            if len(chunk) <= _MAX_CHUNK_CHARACTERS:
                self._chunks[key] = known
        return known

    def _tokenize_chunk(
        self, chunk: str, units: list[tuple[int, int]], space_before: bool
    ) -> tuple[Ids, ...]:
        alone = len(units) < 2 or len(chunk) > _MAX_CHUNK_CHARACTERS
        shared = (
            [()] * len(units) if alone else _share_out(self._tokenize(chunk, space_before), units)
        )
        return tuple(
            ids[:MAX_PIECES] or self.pieces(chunk[start:end], space_before and position == 0)
            for position, (ids, (start, end)) in enumerate(zip(shared, units, strict=True))
        )

    def _tokenize_unit(self, unit: str, space_before: bool) -> Ids:
        # An ideograph is never written with a mark of a word's beginning in pretraining text.
        if space_before and len(unit) == 1 and classes(unit) == "I":
            space_before = False
        tokens = self._tokenize(unit[:MAX_UNIT_CHARACTERS], space_before)
        return tuple(token for token, _start, _end in tokens[:MAX_PIECES]) or (self.parts.unk_id,)

    def _tokenize(self, text: str, space_before: bool) -> list[tuple[int, int, int]]:
        """Return (id, start, end) of the tokens of a text, without a lone mark of a space."""
        shift = 1 if space_before else 0
        string = self._new_string(_SURROGATE.sub("\ufffd", " " * shift + text))
        if self._normalizer is not None:
            string.normalize(self._normalizer.normalize)
        pre_tokenizer = self._spaced if space_before else self._unspaced
        if pre_tokenizer is not None:
            pre_tokenizer.pre_tokenize(string)
        string.tokenize(self._model.tokenize)
        encoding = string.to_encoding()
        tokens = [
            (token, max(start - shift, 0), end - shift)
            for token, piece, (start, end) in zip(
                encoding.ids, encoding.tokens, encoding.offsets, strict=True
            )
            if end > shift and piece != _META
        ]
        return tokens


def _share_out(tokens: list[tuple[int, int, int]], units: list[tuple[int, int]]) -> list[Ids]:
    """Give every unit the tokens inside it.

    Units that a token lies across get none, nor do their other tokens count: `ab|cd` cut after
    `b` is tokenised anew, as two units, not completed.
    """
    shared: list[list[int]] = [[] for _unit in units]
    torn: set[int] = set()
    current = 0
    for token, start, end in tokens:
        while current + 1 < len(units) and start >= units[current][1]:
            current += 1
        shared[current].append(token)
        reached = current
        while end > units[reached][1] and reached + 1 < len(units):
            reached += 1
        if reached > current:
            torn.update(range(current, reached + 1))
    return [() if position in torn else tuple(ids) for position, ids in enumerate(shared)]


def _without_prepend(normalizer: "Normalizer | None") -> tuple["Normalizer | None", bool]:
    """Take the step that writes a space mark before every text out of a normalizer."""
    if normalizer is None:
        return None, False
    from tokenizers import normalizers

    state = json.loads(normalizer.__getstate__())
    steps = state["normalizers"] if state["type"] == "Sequence" else [state]
    kept = [step for step in steps if step["type"] != "Prepend"]
    if len(kept) == len(steps):
        return normalizer, False
    changed = normalizers.Sequence([])
    changed.__setstate__(json.dumps({"type": "Sequence", "normalizers": kept}).encode())
    return changed, True


def _prefix_variants(
    pre_tokenizer: "PreTokenizer | None",
) -> tuple["PreTokenizer | None", "PreTokenizer | None", bool]:
    """Return a pre-tokenizer for text after a space, one for text after none, and the third fact.

    Returns:
        The two, and whether the tokenizer treats the beginning of a text as after a space.
    """
    if pre_tokenizer is None:
        return None, None, True
    from tokenizers import pre_tokenizers

    state = json.loads(pre_tokenizer.__getstate__())
    steps = state["pretokenizers"] if state["type"] == "Sequence" else [state]
    at_start = True
    variants = []
    for scheme in ("always", "never"):
        changed_steps = []
        for step in steps:
            changed = dict(step)
            if step["type"] == "Metaspace":
                at_start = step.get("prepend_scheme", "always") != "never"
                changed["prepend_scheme"] = scheme
                changed.pop("add_prefix_space", None)
            elif step["type"] == "ByteLevel":
                at_start = bool(step.get("add_prefix_space", False))
                changed["add_prefix_space"] = False
            changed_steps.append(changed)
        variant = pre_tokenizers.Sequence([])
        variant.__setstate__(
            json.dumps({"type": "Sequence", "pretokenizers": changed_steps}).encode()
        )
        variants.append(variant)
    return variants[0], variants[1], at_start


def unknown_share(windows: Iterable[Window], tokenizer: TextTokenizer) -> float:
    """Return the share of `[UNK]` among the tokens of the windows, special tokens not counted."""
    unknown, total = count_unknown(windows, tokenizer)
    return unknown / total if total else 0.0


def count_unknown(windows: Iterable[Window], tokenizer: TextTokenizer) -> tuple[int, int]:
    """Return how many tokens are `[UNK]`, and how many there are; special tokens not counted."""
    unknown = total = 0
    num_special = len(tokenizer.parts.prefix_ids) + len(tokenizer.parts.suffix_ids)
    for window in windows:
        unknown += int(np.count_nonzero(window.input_ids == tokenizer.parts.unk_id))
        total += len(window.input_ids) - num_special
    return unknown, total


def flatten(pieces: Iterable[Ids]) -> list[int]:
    """Join the ids of units."""
    return list(chain.from_iterable(pieces))
