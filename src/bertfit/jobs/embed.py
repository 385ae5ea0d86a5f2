"""From texts to vectors: of sentences, of tokens, of the two entities of a relation.

examples -> windows of the model's own tokens -> batches sorted by length -> states -> pooled where
they are made -> rows in the order of the input. The chain of `predict`, with pooling in place of
decoding.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertfit.config import Precision
from bertfit.data.batches import pad
from bertfit.data.mentions import MARKERS, Mentions, Span, inner_spans, mentions_of, put_markers
from bertfit.data.token_windows import NativeTokenizer, token_windows
from bertfit.engine.backends import Forward, torch_encoder
from bertfit.engine.device import choose_device
from bertfit.engine.pooling import Reduction, pool
from bertfit.engine.precision import choose_precision
from bertfit.engine.weights import store_as_multiplied
from bertfit.errors import BudgetError, ConfigError, DataError
from bertfit.jobs.chunks import Chunk, chunks, even_batches
from bertfit.jobs.predict import CARD_BATCH_TOKENS, CPU_BATCH_TOKENS, text_tokenizer, too_large
from bertfit.jobs.work_memory import WorkMemory
from bertfit.language import _
from bertfit.models.encoder import (
    LoadedTokenizer,
    find_model,
    load_classifier,
    load_tokenizer,
    max_positions,
    read_config,
)
from bertfit.models.layers import keep_layers, num_layers
from bertfit.models.tagger import window_size
from bertfit.types import Example, Problem, Window

What = Literal["sentence", "tokens", "entities"]
Pooling = Literal["mean", "max", "cls", "marker"]
Vectors = NDArray[np.float32]

# Fewer than for tagging: the states of a chunk's tokens are all in memory where they are asked for.
_BATCHES_PER_CHUNK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TextVectors:
    """The vectors of one text.

    Attributes:
        vectors: (1, H) of a sentence, (2, H) of its entities, (T, H) of its tokens.
        offsets: (T, 2) where the tokens are in the text, in code points; None for other vectors.
    """

    vectors: Vectors
    offsets: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A model without its head, and how it is meant to be used.

    Attributes:
        model: an encoder of transformers.
        tokenizer: its fast tokenizer.
        max_length: longest window in tokens, special tokens counted.
        overlap: tokens shared by neighbouring windows.
        pooling: how sentence vectors are made, as the folder says, else `mean`.
        normalize: whether they get length 1, as the folder says.
    """

    model: nn.Module
    tokenizer: LoadedTokenizer
    max_length: int
    overlap: int
    pooling: Pooling
    normalize: bool


class Embedder:
    """An encoder that is ready to work; made by `bertfit.load_encoder`.

    Args:
        encoder: model and tokenizer. The model is moved to the device, and loses the layers above
            the last one wanted.
        device: where to run.
        precision: fp32, or what to autocast to.
        layers: whose outputs are summed: 0 are the embeddings, negative counts from the end; None
            is the model's own output.
        pooling: how tokens become one vector; None is what the model's folder says, else the mean.
        normalize: whether vectors get length 1; None is what the folder says, else no.
        batch_tokens: padded tokens of a batch; None takes a value that suits the device.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        device: torch.device,
        precision: Precision,
        layers: Sequence[int] | None = None,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self.encoder = encoder
        self.device = device
        self.precision: Precision = precision
        self.pooling: Pooling = pooling or encoder.pooling
        self.normalize = encoder.normalize if normalize is None else normalize
        self.batch_tokens = batch_tokens or (
            CPU_BATCH_TOKENS if device.type == "cpu" else CARD_BATCH_TOKENS
        )
        self.layers = _checked_layers(layers, num_layers(encoder.model))
        if self.layers:
            keep_layers(encoder.model, max(self.layers))
        # The one layer that is left on top is the model's own output.
        summed = () if self.layers == (num_layers(encoder.model),) else self.layers
        self.model = encoder.model.to(device).eval()
        self.forward: Forward = torch_encoder(self.model, device, precision, summed)
        self.hidden_size = int(self.model.config.hidden_size)  # type: ignore[union-attr,arg-type]
        parts = text_tokenizer(encoder.tokenizer).parts
        self.knows_markers = _knows_markers(encoder.tokenizer)
        self._plain = NativeTokenizer(parts)
        self._marking = NativeTokenizer(parts, special=True) if self.knows_markers else self._plain
        self._memory = WorkMemory(device)

    def embeddings(self, texts: Iterable[str]) -> Iterator[Vectors]:
        """Yield the vector (H,) of every text, in order."""
        for found in self._all(_examples(texts), "sentence"):
            yield found.vectors[0]

    def token_embeddings(self, texts: Iterable[str]) -> Iterator[TextVectors]:
        """Yield the vectors (T, H) of the tokens of every text and where they are, in order."""
        yield from self._all(_examples(texts), "tokens")

    def entity_embeddings(self, texts: Iterable[str | Mentions]) -> Iterator[Vectors]:
        """Yield the vectors (2, H) of the two entities of every text, in order.

        Args:
            texts: with markers, `[E1]Rome[/E1] lies in [E2]Italy[/E2]`, or with their spans.

        Raises:
            DataError: a text without a pair of entities.
        """
        if isinstance(texts, str):
            raise TypeError("entity_embeddings() takes several texts: wrap a single one in a list")
        examples = (
            Example(id=str(i), text=each)
            if isinstance(each, str)
            else Example(
                id=str(i), text=each.text, extra={"e1": each.spans[0], "e2": each.spans[1]}
            )
            for i, each in enumerate(texts)
        )
        for found in self._all(examples, "entities"):
            yield found.vectors

    def _all(self, examples: Iterable[Example], what: What) -> Iterator[TextVectors]:
        for chunk in self.chunks(examples, what):
            for __, found in self.embed_chunk(chunk, what, _refuse):
                yield found

    def chunks(self, examples: Iterable[Example], what: What) -> Iterator[Chunk]:
        """Cut a stream of examples into chunks that are worked on one after the other."""

        def cut_examples(some: Iterable[Example]) -> Iterator[Window]:
            marked = what == "entities" and self.knows_markers
            return token_windows(
                (self._text_of(example, what) for example in some),
                self._marking if marked else self._plain,
                max_length=self.encoder.max_length,
                overlap=self.encoder.overlap,
            )

        return chunks(examples, cut_examples, _BATCHES_PER_CHUNK * self.batch_tokens)

    def _text_of(self, example: Example, what: What) -> str:
        if what != "entities":
            return example.text
        try:
            mentions = mentions_of(example)
        except DataError:
            return ""  # told of when its vectors are asked for
        return put_markers(mentions)[0] if self.knows_markers else mentions.text

    def embed_chunk(
        self,
        chunk: Chunk,
        what: What,
        on_problem: Callable[[Problem], None],
        between: Callable[[], None] | None = None,
    ) -> list[tuple[Example, TextVectors]]:
        """Return the examples of a chunk with their vectors.

        Args:
            chunk: from `chunks`.
            what: which vectors.
            on_problem: told of examples that have no entities, or do not fit the memory alone;
                they are left out.
            between: called after every batch; may raise to stop there.
        """
        wanted = _Wanted(chunk, self.hidden_size, self._reduction(what))
        if what == "entities":
            for index, example in enumerate(chunk.examples):
                try:
                    wanted.add_spans(index, self._spans(example), self.pooling == "marker")
                except DataError as error:
                    on_problem(_problem(example, "no-entities", str(error)))
        elif what == "tokens":
            wanted.add_tokens()
        else:
            wanted.add_sentences(self.pooling == "cls")
        unfit: list[Window] = []
        needed = [window for window in chunk.windows if wanted.needs(window)]
        batches = even_batches(needed, self.batch_tokens)
        for part, pooled in self._memory.run_all(
            batches, lambda part: self._pool(part, wanted), unfit.append
        ):
            wanted.take(part, pooled)
            if between is not None:
                between()
        left_out = set()
        for window in unfit:
            left_out.add(window.index)
            on_problem(too_large(chunk.examples[window.index], window))
        found = []
        for index, example in enumerate(chunk.examples):
            vectors = None if index in left_out else wanted.vectors(index)
            if vectors is not None:
                offsets = wanted.offsets(index) if what == "tokens" else None
                if self.normalize:
                    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
                    vectors = vectors / np.maximum(norms, 1e-12)
                found.append((example, TextVectors(vectors=vectors, offsets=offsets)))
        return found

    def _reduction(self, what: What) -> Reduction:
        return "max" if self.pooling == "max" and what != "tokens" else "mean"

    def _spans(self, example: Example) -> list[Span]:
        mentions = mentions_of(example)
        if self.pooling == "marker":
            if not self.knows_markers:
                raise ConfigError(
                    _(
                        "--pooling marker: the model's tokenizer does not know {markers}. Use "
                        "--pooling mean, which needs no markers."
                    ).format(markers=" ".join(MARKERS))
                )
            return put_markers(mentions)[1]
        if self.knows_markers:
            return inner_spans(mentions, put_markers(mentions)[0])
        return list(mentions.spans)

    def _pool(self, part: Sequence[Window], wanted: "_Wanted") -> Vectors:
        rows, tokens, groups = wanted.tokens_of(part)
        present, local = np.unique(groups, return_inverse=True)
        with torch.inference_mode():
            states = self.forward(pad(part, self.encoder.tokenizer.pad_id))
            return pool(states, rows, tokens, local, len(present), wanted.reduction)


class _Wanted:
    """Which tokens of a chunk go into which vector, and the vectors as they come.

    A group is one vector; the groups of an example are neighbours.
    """

    def __init__(self, chunk: Chunk, hidden_size: int, reduction: Reduction) -> None:
        self.reduction: Reduction = reduction
        self._windows: dict[int, list[Window]] = {}
        for window in chunk.windows:
            self._windows.setdefault(window.index, []).append(window)
        self._hidden_size = hidden_size
        self._tokens: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._groups: dict[int, tuple[int, int]] = {}
        self._num_groups = 0
        self._sums: Vectors | None = None
        self._counts: NDArray[np.int64] | None = None

    def add_sentences(self, only_first: bool) -> None:
        """Want one vector of each example: of all its tokens, or of the first (`[CLS]`)."""
        for index, windows in self._windows.items():
            begin = self._new_groups(index, 1)
            for window in windows:
                first, last = window.owned
                # Special tokens belong to the text's ends, as where it is read whole.
                left = 0 if first == 0 else _position(window, first)
                right = (
                    len(window.input_ids) if last == len(window.units) else _position(window, last)
                )
                if only_first:
                    left, right = 0, int(window is windows[0])
                self._want(window, np.arange(left, right), np.full(max(right - left, 0), begin))

    def add_tokens(self) -> None:
        """Want the vector of every token."""
        for index, windows in self._windows.items():
            counts = [window.owned[1] - window.owned[0] for window in windows]
            begin = self._new_groups(index, sum(counts))
            for window, count in zip(windows, counts, strict=True):
                tokens = window.first_token[window.owned[0] : window.owned[1]].astype(np.int64)
                self._want(window, tokens, np.arange(begin, begin + count))
                begin += count

    def add_spans(self, index: int, spans: Sequence[Span], only_first: bool) -> None:
        """Want the vectors of spans of an example: of their tokens, or of the first of each.

        Raises:
            DataError: a span has no token.
        """
        begin = self._new_groups(index, len(spans))
        chosen: list[tuple[Window, list[int], list[int]]] = []
        covered = set()
        for window in self._windows[index]:
            positions: list[int] = []
            groups: list[int] = []
            own = np.arange(window.owned[0], window.owned[1])
            units = window.units[window.owned[0] : window.owned[1]]
            for number, (start, end) in enumerate(spans):
                inside = own[
                    (units[:, 0] < end) & (units[:, 1] > start) & (units[:, 0] < units[:, 1])
                ]
                if only_first:
                    inside = inside[:1] if number not in covered else inside[:0]
                if len(inside):
                    covered.add(number)
                positions += window.first_token[inside].tolist()
                groups += [begin + number] * len(inside)
            chosen.append((window, positions, groups))
        if len(covered) < len(spans):
            del self._groups[index]
            raise DataError(_("the model's tokenizer gives an entity no token."))
        for window, positions, groups in chosen:
            self._want(window, np.array(positions, np.int64), np.array(groups, np.int64))

    def _new_groups(self, index: int, count: int) -> int:
        begin = self._num_groups
        self._groups[index] = (begin, begin + count)
        self._num_groups += count
        return begin

    def _want(self, window: Window, tokens: NDArray[np.int64], groups: NDArray[np.int64]) -> None:
        if len(tokens):
            self._tokens[id(window)] = (tokens, groups)

    def needs(self, window: Window) -> bool:
        """Say whether a window has a token that is wanted."""
        return id(window) in self._tokens

    def tokens_of(
        self, part: Sequence[Window]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return row, position and group of every wanted token of a batch."""
        found = [self._tokens[id(window)] for window in part]
        rows = np.repeat(np.arange(len(part)), [len(tokens) for tokens, __ in found])
        return (
            rows,
            np.concatenate([tokens for tokens, __ in found]),
            np.concatenate([groups for __, groups in found]),
        )

    def take(self, part: Sequence[Window], pooled: Vectors) -> None:
        """Add what a batch gave to what the windows before gave."""
        if self._sums is None or self._counts is None:
            start = 0.0 if self.reduction == "mean" else -np.inf
            self._sums = np.full((self._num_groups, self._hidden_size), start, dtype=np.float32)
            self._counts = np.zeros(self._num_groups, dtype=np.int64)
        __, __, groups = self.tokens_of(part)
        present, counts = np.unique(groups, return_counts=True)
        self._counts[present] += counts
        if self.reduction == "mean":
            self._sums[present] += pooled
        else:
            self._sums[present] = np.maximum(self._sums[present], pooled)

    def vectors(self, index: int) -> Vectors | None:
        """Return the vectors (G, H) of an example; None where none were wanted."""
        if index not in self._groups:
            return None
        first, last = self._groups[index]
        if self._sums is None or self._counts is None:
            return np.zeros((last - first, self._hidden_size), dtype=np.float32)
        found = self._sums[first:last].copy()
        if self.reduction == "mean":
            found /= np.maximum(self._counts[first:last, None], 1)
        return found

    def offsets(self, index: int) -> NDArray[np.int32]:
        """Return where the tokens of an example are: (T, 2)."""
        return np.concatenate(
            [window.units[window.owned[0] : window.owned[1]] for window in self._windows[index]]
        )


def _position(window: Window, unit: int) -> int:
    return int(window.first_token[unit])


def _examples(texts: Iterable[str]) -> Iterator[Example]:
    if isinstance(texts, str):
        raise TypeError("several texts are taken: wrap a single one in a list, [text]")
    return (Example(id=str(i), text=text) for i, text in enumerate(texts))


def _refuse(problem: Problem) -> None:
    if problem.kind == "window-too-large":
        raise BudgetError(str(problem))
    raise DataError(str(problem))


def _problem(example: Example, kind: str, message: str) -> Problem:
    source = example.source
    return Problem(
        path=source.path if source else example.id,
        line=source.line if source else 0,
        kind=kind,
        message=message,
    )


def _knows_markers(tokenizer: LoadedTokenizer) -> bool:
    ids = [tokenizer.backend.token_to_id(marker) for marker in MARKERS]
    return all(found is not None for found in ids)


def _checked_layers(layers: Sequence[int] | None, total: int) -> tuple[int, ...]:
    if layers is None:
        return ()
    counted = tuple(layer if layer >= 0 else total + 1 + layer for layer in layers)
    wrong = [layer for layer, real in zip(layers, counted, strict=True) if not 0 <= real <= total]
    if wrong or not counted:
        raise ConfigError(
            _(
                "--layers {layer}: the model has {total} layers. Say 0 (the embeddings) to "
                "{total}, or -1 to {last}; join several with + for their sum."
            ).format(layer=wrong[0] if wrong else "", total=total, last=-total - 1)
        )
    return counted


def load_encoder(
    model: str,
    *,
    device: str | None = None,
    precision: Precision | None = None,
    layers: Sequence[int] | None = None,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    trust_remote_code: bool = False,
) -> Embedder:
    """Load an encoder for vectors: any model folder, a run folder, a hub id; heads are left out.

    Raises:
        ModelError: it cannot be found or used.
        ConfigError: the device, precision or layers are not to be had.
    """
    chosen = choose_device(device)
    folder = find_model(model)
    config = read_config(folder, trust_remote_code)
    length, overlap = window_size(max_positions(config), max_length, None, str(folder))
    # The head is one row that is never run; the encoder inside is what every model has.
    whole, __ = load_classifier(folder, ("O",), trust_remote_code=trust_remote_code)
    said, normalized = _sentence_transformer(folder)
    number_format = choose_precision(precision, chosen)
    store_as_multiplied(whole, number_format)
    return Embedder(
        Encoder(
            model=whole.base_model,  # type: ignore[arg-type]
            tokenizer=load_tokenizer(folder, trust_remote_code),
            max_length=length,
            overlap=overlap,
            pooling=said,
            normalize=normalized,
        ),
        device=chosen,
        precision=number_format,
        layers=layers,
        pooling=pooling,
        normalize=normalize,
        batch_tokens=batch_tokens,
    )


def _sentence_transformer(folder: Path) -> tuple[Pooling, bool]:
    """Read how a folder of sentence-transformers pools, and whether it normalises."""
    pooling: Pooling = "mean"
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        kinds = [str(module.get("type", "")) for module in modules]
    except (OSError, ValueError, AttributeError):
        return pooling, False
    try:
        path = folder / "1_Pooling" / "config.json"
        said = json.loads(path.read_text(encoding="utf-8"))
        if said.get("pooling_mode_cls_token"):
            pooling = "cls"
        elif said.get("pooling_mode_max_tokens"):
            pooling = "max"
    except (OSError, ValueError, AttributeError):
        pass
    return pooling, any(kind.endswith("Normalize") for kind in kinds)
