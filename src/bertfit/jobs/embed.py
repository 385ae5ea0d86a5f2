"""From texts to vectors: of sentences, of tokens, of the two entities of a relation.

examples -> windows of the model's own tokens -> batches sorted by length -> states -> pooled where
they are made -> rows in the order of the input. The chain of `predict`, with pooling in place of
decoding.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bertfit.config import Precision
from bertfit.data.mentions import MARKERS, Mentions, Span, inner_spans, mentions_of, put_markers
from bertfit.data.token_windows import NativeTokenizer, token_windows
from bertfit.engine.backends import Forward, torch_encoder
from bertfit.engine.device import choose_device
from bertfit.engine.inference import batching_of, first_rows, make_ready, read_as
from bertfit.engine.pooling import Reduction, pool
from bertfit.errors import BudgetError, ConfigError, DataError
from bertfit.jobs.chunks import BATCHES_PER_CHUNK, Chunk, chunks, tokens_of_batch
from bertfit.jobs.encoders import Encoder, Pooling, read_encoder
from bertfit.jobs.number_format import format_of_prediction
from bertfit.jobs.predict import text_tokenizer, too_large
from bertfit.jobs.vector_groups import VectorGroups, Vectors
from bertfit.jobs.work_memory import WorkMemory
from bertfit.language import _
from bertfit.models.hub import find_model
from bertfit.models.layers import keep_layers, num_layers
from bertfit.types import Example, Problem, Window

What = Literal["sentence", "tokens", "entities"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextVectors:
    """The vectors of one text.

    Attributes:
        vectors: (1, H) of a sentence, (2, H) of its entities, (T, H) of its tokens.
        offsets: (T, 2) where the tokens are in the text, in code points; None for other vectors.
    """

    vectors: Vectors
    offsets: NDArray[np.int32] | None = None


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
        self.batch_tokens = tokens_of_batch(batch_tokens, device)
        self.layers = _checked_layers(layers, num_layers(encoder.model))
        if self.layers:
            keep_layers(encoder.model, max(self.layers))
        # The one layer that is left on top is the model's own output.
        summed = () if self.layers == (num_layers(encoder.model),) else self.layers
        self.model = encoder.model
        left = make_ready(self.model, device, precision)
        self.forward: Forward = torch_encoder(self.model, device, left, summed)
        self.batching = batching_of(self.model, device, encoder.tokenizer.pad_id)
        self.hidden_size = int(self.model.config.hidden_size)  # type: ignore[union-attr,arg-type]
        parts = text_tokenizer(encoder.tokenizer).parts
        self.knows_markers = encoder.knows_markers
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

        return chunks(examples, cut_examples, BATCHES_PER_CHUNK * self.batch_tokens)

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
        wanted = VectorGroups(chunk, self.hidden_size, self._reduction(what))
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
        batches = self.batching.cut(needed, self.batch_tokens)
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

    def _pool(self, part: Sequence[Window], wanted: VectorGroups) -> Vectors:
        rows, tokens, groups = wanted.tokens_of(part)
        present, local = np.unique(groups, return_inverse=True)
        batch = self.batching.batch(part)
        if batch.packed_lengths:
            rows, tokens = np.zeros_like(rows), first_rows(batch)[rows] + tokens
        with torch.inference_mode():
            states = self.forward(batch)
            return pool(states, rows, tokens, local, len(present), wanted.reduction)


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
    say: Callable[[str], None] = lambda message: None,
) -> Embedder:
    """Load an encoder for vectors: any model folder, a run folder, a hub id; heads are left out.

    `say` is told where the model keeps the device from its best precision.

    Raises:
        ModelError: it cannot be found or used.
        ConfigError: the device, precision or layers are not to be had.
    """
    chosen = choose_device(device)
    folder = find_model(model)
    number_format = format_of_prediction(precision, chosen, folder, trust_remote_code, say)
    dtype = read_as(chosen, number_format)
    return Embedder(
        read_encoder(folder, max_length, trust_remote_code, dtype),
        device=chosen,
        precision=number_format,
        layers=layers,
        pooling=pooling,
        normalize=normalize,
        batch_tokens=batch_tokens,
    )
