"""From texts to entities: one chain of generators, in the order of the input.

examples -> windows -> batches sorted by length -> forward -> tags -> entities. Only a bounded
read-ahead is in memory (law 7).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from bertfit.config import Precision
from bertfit.data.batches import read_ahead
from bertfit.data.pieces import TextTokenizer, TokenizerParts
from bertfit.data.segments import choose_split
from bertfit.data.tags import transitions
from bertfit.data.windows import TaggedWindow, merge, windows
from bertfit.engine.backends import Forward, torch_tagger
from bertfit.engine.decode import Decoder, Tagged, tag_batch
from bertfit.engine.device import choose_device
from bertfit.engine.inference import Batching, batching_of, make_ready, read_as
from bertfit.errors import BudgetError, ModelError
from bertfit.jobs.backend_choice import Backend, other_backends, tokens_per_second
from bertfit.jobs.chunks import BATCHES_PER_CHUNK, Chunk, chunks, tokens_of_batch
from bertfit.jobs.foreign_tags import tag_meaning
from bertfit.jobs.number_format import format_of_prediction
from bertfit.jobs.work_memory import WorkMemory
from bertfit.language import _
from bertfit.models.encoder import LoadedTokenizer
from bertfit.models.hub import find_model
from bertfit.models.tagger import Tagger, load_tagger
from bertfit.types import Entity, Example, LabelScheme, Problem, Split, Window

if TYPE_CHECKING:
    from bertfit.data.mentions import Mentions
    from bertfit.jobs.embed import Embedder

# Windows that `tag` sorts by length together.
READ_AHEAD_WINDOWS = 1024
# Texts that are looked at to decide how a foreign model's texts are cut.
_SPLIT_SAMPLE = 100

Found = tuple[Example, list[Entity]]


def text_tokenizer(tokenizer: LoadedTokenizer) -> TextTokenizer:
    """Make the tokenizer of units from a model's tokenizer."""
    return TextTokenizer(
        TokenizerParts(
            backend=tokenizer.backend,
            prefix_ids=tokenizer.prefix,
            suffix_ids=tokenizer.suffix,
            unk_id=tokenizer.unk_id,
            pad_id=tokenizer.pad_id,
        )
    )


def resolve_scheme(scheme: LabelScheme) -> LabelScheme:
    """Say what the tags of a foreign checkpoint mean; one of bertfit's own is left as it is."""
    return tag_meaning(scheme).scheme


class Predictor:
    """A tagger that is ready to work; made by `bertfit.load`.

    Args:
        tagger: model, tokenizer and tags. The model is moved to the device.
        device: where to run.
        precision: fp32, or what to autocast to.
        batch_tokens: padded tokens of a batch; None takes a value that suits the device.
        constrained: False takes the best tag of each unit even where the sequence is illegal.
        forward: computes the tag logits in torch's place.
        in_training: the model goes on learning, so its weights stay as they are.
    """

    def __init__(
        self,
        tagger: Tagger,
        *,
        device: torch.device,
        precision: Precision,
        batch_tokens: int | None = None,
        constrained: bool = True,
        forward: Forward | None = None,
        in_training: bool = False,
    ) -> None:
        self.tagger = tagger
        meaning = tag_meaning(tagger.scheme)
        self.scheme = meaning.scheme
        self.unmapped_tags = meaning.unmapped
        self.device = device
        self.precision: Precision = precision
        self.number_format: str = precision  # or int8, which no model is stored in
        self.constrained = constrained
        self.batch_tokens = tokens_of_batch(batch_tokens, device)
        self.tokenizer = text_tokenizer(tagger.tokenizer)
        self.model = tagger.model
        if in_training:
            self.compute_with(torch_tagger(self.model.eval(), device, precision))
        else:
            left = make_ready(self.model, device, precision)
            self.forward = torch_tagger(self.model, device, left)
            self.batching = batching_of(self.model, device, tagger.tokenizer.pad_id)
        if forward is not None:
            self.compute_with(forward)
        allowed, start, end = transitions(self.scheme)
        self._decoder = Decoder(allowed, start, end, device, constrained and meaning.constrained)
        self._memory = WorkMemory(device)

    def compute_with(self, forward: Forward) -> None:
        """Let something compute the tag logits (B, T, K) of padded batches in torch's place."""
        self.forward, self.batching = forward, Batching(pad_id=self.tagger.tokenizer.pad_id)

    def use_fastest(
        self,
        others: Mapping[Backend, Forward],
        sample: Iterable[Example],
        say: Callable[[str], None],
    ) -> None:
        """Measure others beside torch on some texts, and go on with the fastest.

        Args:
            others: what may compute the tag logits in torch's place.
            sample: texts; without any nothing changes.
            say: told the rates.
        """
        windows = [window for chunk in self.chunks(sample) for window in chunk.windows]
        if not windows:
            return
        rates: dict[Backend, float] = {"torch": self._tokens_per_second(windows)}
        before = self.forward, self.batching
        for name, forward in others.items():
            self.compute_with(forward)
            rates[name] = self._tokens_per_second(windows)
        best = max(rates, key=rates.__getitem__)
        if best == "torch":
            self.forward, self.batching = before
        else:
            self.compute_with(others[best])
        measured = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
        say(
            _("--backend auto: {backend}. Tokens per second: {measured}.").format(
                backend=best, measured=measured
            )
        )

    def _tokens_per_second(self, windows: Sequence[Window]) -> float:
        parts = self.batching.cut(windows, self.batch_tokens)
        return tokens_per_second(self.forward, list(map(self.batching.batch, parts)))

    def entities(self, texts: Iterable[str]) -> Iterator[list[Entity]]:
        """Yield the entities of every text, in order; `text[e.start:e.end]` is the surface."""
        if isinstance(texts, str):
            raise TypeError("entities() takes several texts: wrap a single one, entities([text])")
        examples = (Example(id=str(i), text=text) for i, text in enumerate(texts))
        for __, found in self.annotate(examples):
            yield found

    def annotate(
        self,
        examples: Iterable[Example],
        on_chunk: Callable[[Chunk], None] = lambda chunk: None,
    ) -> Iterator[Found]:
        """Yield every example with the entities that were found in it, in order.

        Args:
            examples: read as they are needed.
            on_chunk: shown what is worked on together, before it is.

        Raises:
            BudgetError: a window does not fit the memory alone.
        """
        for chunk in self.chunks(examples):
            on_chunk(chunk)
            yield from self.annotate_chunk(chunk, _refuse)

    def embedder(self) -> "Embedder":
        """Return what makes vectors with this model, without its head."""
        from bertfit.jobs.embed import Embedder
        from bertfit.jobs.encoders import Encoder

        return Embedder(
            Encoder(
                model=self.model.base_model,  # type: ignore[arg-type]
                tokenizer=self.tagger.tokenizer,
                max_length=self.tagger.max_length,
                overlap=self.tagger.overlap,
                pooling="mean",
                normalize=False,
            ),
            device=self.device,
            precision=self.precision,
            batch_tokens=self.batch_tokens,
        )

    def embeddings(self, texts: Iterable[str]) -> Iterator[NDArray[np.float32]]:
        """Yield the vector (H,) of every text, in order: the mean of its tokens."""
        yield from self.embedder().embeddings(texts)

    def entity_embeddings(self, texts: "Iterable[str | Mentions]") -> Iterator[NDArray[np.float32]]:
        """Yield the vectors (2, H) of the two entities of every text; see `Embedder`."""
        yield from self.embedder().entity_embeddings(texts)

    def split_for(self, examples: Iterable[Example]) -> tuple[Split, Iterator[Example]]:
        """Return how texts are cut into units, and the examples with none of them lost.

        A checkpoint of bertfit says it itself; for another the first texts decide.
        """
        stream = iter(examples)
        if self.tagger.split is not None:
            return self.tagger.split, stream
        sample = list(islice(stream, _SPLIT_SAMPLE))
        return choose_split(sample, self.tagger.task), chain(sample, stream)

    def chunks(self, examples: Iterable[Example], split: Split | None = None) -> Iterator[Chunk]:
        """Cut a stream of examples into chunks that are worked on one after the other."""
        stream = iter(examples)
        if split is None:
            split, stream = self.split_for(stream)
        chosen = split

        def cut_examples(some: Iterable[Example]) -> Iterator[Window]:
            return windows(
                some,
                self.tokenizer,
                scheme=None,
                max_length=self.tagger.max_length,
                overlap=self.tagger.overlap,
                split=chosen,
            )

        return chunks(stream, cut_examples, BATCHES_PER_CHUNK * self.batch_tokens)

    def annotate_chunk(
        self,
        chunk: Chunk,
        on_problem: Callable[[Problem], None],
        between: Callable[[], None] | None = None,
    ) -> list[Found]:
        """Return the examples of a chunk with their entities.

        Args:
            chunk: from `chunks`.
            on_problem: told of a window that does not fit alone; its example is left out.
            between: called after every batch; may raise to stop there.
        """
        tagged, unfit = self._tag(chunk.windows, between)
        for window in unfit:
            on_problem(too_large(chunk.examples[window.index], window))
        left_out = {window.index for window in unfit}
        entities = merge(
            (result for result in tagged if result.window.index not in left_out),
            self.scheme,
            num_examples=len(chunk.examples),
        )
        return [
            (example, found)
            for index, (example, found) in enumerate(zip(chunk.examples, entities, strict=True))
            if index not in left_out
        ]

    def tag(self, stream: Iterator[Window]) -> Iterator[TaggedWindow]:
        """Yield the windows with their tags, in the order they came.

        Raises:
            BudgetError: a window does not fit the memory alone.
        """
        for group in read_ahead(stream, READ_AHEAD_WINDOWS):
            tagged, unfit = self._tag(group, None)
            if unfit:
                raise BudgetError(_does_not_fit(len(unfit[0].input_ids)))
            yield from tagged

    def _tag(
        self, group: Sequence[Window], between: Callable[[], None] | None
    ) -> tuple[list[TaggedWindow], list[Window]]:
        place = {id(window): position for position, window in enumerate(group)}
        done: list[TaggedWindow | None] = [None] * len(group)
        unfit: list[Window] = []
        for part, results in self._memory.run_all(
            self.batching.cut(group, self.batch_tokens), self._tag_part, unfit.append
        ):
            for window, (ids, scores) in zip(part, results, strict=True):
                done[place[id(window)]] = TaggedWindow(window=window, tag_ids=ids, scores=scores)
            if between is not None:
                between()
        return [result for result in done if result is not None], unfit

    def _tag_part(self, part: Sequence[Window]) -> list[Tagged]:
        return tag_batch(self.forward, self._decoder, part, self.batching.batch(part))


def _refuse(problem: Problem) -> None:
    raise BudgetError(str(problem))


def _does_not_fit(num_tokens: int) -> str:
    return _(
        "a window of {tokens} tokens does not fit the memory even alone. Use a shorter "
        "--max-length, or another --device."
    ).format(tokens=num_tokens)


def too_large(example: Example, window: Window) -> Problem:
    """Say that a window of an example does not fit the memory even alone."""
    source = example.source
    return Problem(
        path=source.path if source else example.id,
        line=source.line if source else 0,
        kind="window-too-large",
        message=_does_not_fit(len(window.input_ids)),
    )


def load(
    model: str,
    *,
    device: str | None = None,
    precision: Precision | None = None,
    batch_tokens: int | None = None,
    constrained: bool = True,
    trust_remote_code: bool = False,
    backend: Backend = "torch",
    sample: Sequence[Example] = (),
    say: Callable[[str], None] = lambda message: None,
) -> Predictor:
    """Load a tagger: a run folder, a model folder or a hub id.

    Args:
        model: which.
        device: where to run; None takes the fastest device here.
        precision: None takes the fastest that keeps the quality.
        batch_tokens: padded tokens of a batch; None takes a value that suits the device.
        constrained: False allows tag sequences that the scheme forbids.
        trust_remote_code: run the Python code that a model brings.
        backend: what computes; `auto` measures what is installed for a second each.
        sample: the texts that `auto` measures on; without any it is torch.
        say: told what `auto` measured.

    Raises:
        ModelError: it cannot be found or used.
        ConfigError: the device, precision or backend is not to be had here.
    """
    chosen = choose_device(device)
    folder = find_model(model)
    number_format = format_of_prediction(precision, chosen, folder, trust_remote_code, say)
    others = other_backends(backend, chosen, precision, number_format)
    tagger = load_tagger(
        folder,
        trust_remote_code=trust_remote_code,
        dtype=torch.float32 if others else read_as(chosen, number_format),
    )
    forwards: dict[Backend, Forward] = {}
    for name, make in others.items():
        try:
            forwards[name] = make(tagger.model)
        except ModelError:
            if backend != "auto":
                raise
            say(_("--backend auto: {name} cannot compute this model.").format(name=name))
    predictor = Predictor(
        tagger,
        device=chosen,
        precision=number_format,
        batch_tokens=batch_tokens,
        constrained=constrained,
        forward=forwards.get(backend),
    )
    if backend == "auto" and forwards:
        predictor.use_fastest(forwards, sample, say)
    return predictor
