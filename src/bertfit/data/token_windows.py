"""Windows in which every token of the model's own tokenizer is a unit: what embedding needs.

A tagger cuts texts into units by bertfit's rule; a vector of a sentence should be the one that
other programs compute with the same model, so here the tokenizer alone decides.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from bertfit.data.pieces import TokenizerParts
from bertfit.data.windows import room
from bertfit.types import Window

# Texts that are tokenised in one call: the library spreads them over the processor's cores.
_TEXTS_PER_CALL = 256
# And no more than so many characters: what it returns takes some hundred bytes a token.
_CHARACTERS_PER_CALL = 1 << 17


class NativeTokenizer:
    """Tokenises as the model's tokenizer does, without its cuts and fillings.

    Args:
        parts: the tokenizer and what stands around every window.
        special: True reads the names of special tokens in a text as these tokens (markers); else
            the text `[SEP]` is text.
    """

    def __init__(self, parts: TokenizerParts, *, special: bool = False) -> None:
        from tokenizers import Tokenizer

        self.parts = parts
        # A copy: length limits and padding of the original are somebody else's.
        self._backend: Tokenizer = Tokenizer.from_str(parts.backend.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = not special

    def tokens(self, texts: Sequence[str]) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Yield the ids (T,) of every text, and (T, 2) where each token is, in code points."""
        safe = [text.encode("utf-8", "replace").decode() for text in texts]
        for encoding in self._backend.encode_batch(safe, add_special_tokens=False):
            ids = np.array(encoding.ids, dtype=np.int32)
            yield ids, np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)


def token_windows(
    texts: Iterable[str], tokenizer: NativeTokenizer, *, max_length: int, overlap: int
) -> Iterator[Window]:
    """Cut texts into windows of tokens, one text at a time and in order.

    Every text has a window, also an empty one. Of a long text every token is answered by the one
    window in which the nearer end is furthest away.

    Args:
        texts: read as the windows are asked for.
        tokenizer: makes the tokens.
        max_length: tokens of a window, special tokens included.
        overlap: tokens that neighbouring windows share, up to half a window.

    Raises:
        ConfigError: a window holds nothing but special tokens.
    """
    parts = tokenizer.parts
    capacity = room(max_length, len(parts.prefix_ids) + len(parts.suffix_ids))
    prefix = np.array(parts.prefix_ids, dtype=np.int32)
    suffix = np.array(parts.suffix_ids, dtype=np.int32)
    index = 0
    for group in _grouped(texts):
        for ids, offsets in tokenizer.tokens(group):
            for first, last, owned in _ranges(len(ids), capacity, min(overlap, capacity // 2)):
                yield Window(
                    index=index,
                    input_ids=np.concatenate([prefix, ids[first:last], suffix]),
                    units=offsets[first:last],
                    first_token=np.arange(len(prefix), len(prefix) + last - first, dtype=np.int32),
                    labels=None,
                    owned=(owned[0] - first, owned[1] - first),
                )
            index += 1


def _grouped(texts: Iterable[str]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for text in texts:
        group.append(text)
        size += len(text)
        if len(group) == _TEXTS_PER_CALL or size >= _CHARACTERS_PER_CALL:
            yield group
            group, size = [], 0
    if group:
        yield group


def _ranges(
    num_tokens: int, capacity: int, overlap: int
) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yield windows over tokens and the half-open part that each answers for."""
    first = owned_from = 0
    while first + capacity < num_tokens:
        # The last window is moved back to be full: context costs nothing there.
        following = min(first + capacity - overlap, num_tokens - capacity)
        border = (following + first + capacity + 1) // 2
        yield first, first + capacity, (owned_from, border)
        first, owned_from = following, border
    yield first, num_tokens, (owned_from, num_tokens)
