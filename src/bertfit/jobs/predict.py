"""From texts to entities: one chain of generators, in the order of the input.

examples -> windows -> batches sorted by length -> forward -> tags -> entities. Only a bounded
read-ahead is in memory (law 7).
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice

import torch

from bertfit.config import Precision
from bertfit.data.batches import cut, pad, read_ahead
from bertfit.data.pieces import TextTokenizer, TokenizerParts
from bertfit.data.segments import choose_split
from bertfit.data.tags import detect_scheme, split_tag, transitions
from bertfit.data.windows import TaggedWindow, merge, windows
from bertfit.engine.decode import Decoder, tag_windows
from bertfit.engine.device import choose_device
from bertfit.engine.precision import choose_precision
from bertfit.models.encoder import LoadedTokenizer, find_model
from bertfit.models.tagger import Tagger, load_tagger
from bertfit.types import Entity, Example, LabelScheme, Split, Window

# Windows that are sorted by length together: enough that padding is rare, little enough to hold.
READ_AHEAD_WINDOWS = 1024
# Padded tokens of a batch. More than this gains nothing on a CPU, whose caches it overflows.
CPU_BATCH_TOKENS = 2048
CARD_BATCH_TOKENS = 16384


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
    """Say what the tags of a foreign checkpoint mean; one of bertfit's own is left as it is.

    BMES, BMEWO and BILOU tags are given the roles of BIOES, in place, so that one rule reads all.
    """
    if scheme.labels:
        return scheme
    found = detect_scheme(dict.fromkeys(scheme.tags, 1))
    if found == "none":
        return LabelScheme(labels=scheme.tags, encoding="none", tags=scheme.tags)
    tags, labels = [], []
    for tag in scheme.tags:
        role, label = split_tag(tag)
        tags.append("O" if role == "O" else f"{role}-{label}")
        if role != "O":
            labels.append(label)
    encoding = "bio" if found in ("iob1", "iob2") else "bioes"
    return LabelScheme(
        labels=tuple(dict.fromkeys(labels)),
        encoding="bio" if encoding == "bio" else "bioes",
        tags=tuple(tags),
    )


class Predictor:
    """A tagger that is ready to work; made by `bertfit.load`.

    Args:
        tagger: model, tokenizer and tags. The model is moved to the device.
        device: where to run.
        precision: fp32, or what to autocast to.
        batch_tokens: padded tokens of a batch; None takes a value that suits the device.
        constrained: False takes the best tag of each unit even where the sequence is illegal.
    """

    def __init__(
        self,
        tagger: Tagger,
        *,
        device: torch.device,
        precision: Precision,
        batch_tokens: int | None = None,
        constrained: bool = True,
    ) -> None:
        self.tagger = tagger
        self.scheme = resolve_scheme(tagger.scheme)
        self.device = device
        self.precision = precision
        self.batch_tokens = batch_tokens or (
            CPU_BATCH_TOKENS if device.type == "cpu" else CARD_BATCH_TOKENS
        )
        self.tokenizer = text_tokenizer(tagger.tokenizer)
        self.model = tagger.model.to(device).eval()
        allowed, start, end = transitions(self.scheme)
        self._decoder = Decoder(allowed, start, end, device, constrained)

    def entities(self, texts: Iterable[str]) -> Iterator[list[Entity]]:
        """Yield the entities of every text, in order; `text[e.start:e.end]` is the surface."""
        if isinstance(texts, str):
            raise TypeError("entities() takes several texts: wrap a single one, entities([text])")
        examples = (Example(id=str(i), text=text) for i, text in enumerate(texts))
        for __, found in self.annotate(examples):
            yield found

    def annotate(self, examples: Iterable[Example]) -> Iterator[tuple[Example, list[Entity]]]:
        """Yield every example with the entities that were found in it, in order."""
        stream = iter(examples)
        split: Split | None = self.tagger.split
        if split is None:
            sample = list(islice(stream, 100))
            split = choose_split(sample, self.tagger.task)
            stream = chain(sample, stream)
        waiting: deque[Example] = deque()

        def kept() -> Iterator[Example]:
            for example in stream:
                waiting.append(example)
                yield example

        cut_windows = windows(
            kept(),
            self.tokenizer,
            scheme=None,
            max_length=self.tagger.max_length,
            overlap=self.tagger.overlap,
            split=split,
        )
        for found in merge(self.tag(cut_windows), self.scheme):
            yield waiting.popleft(), found
        while waiting:  # texts without a unit at the end
            yield waiting.popleft(), []

    def tag(self, stream: Iterator[Window]) -> Iterator[TaggedWindow]:
        """Yield the windows with their tags, in the order they came."""
        pad_id = self.tagger.tokenizer.pad_id
        for group in read_ahead(stream, READ_AHEAD_WINDOWS):
            place = {id(window): position for position, window in enumerate(group)}
            done: list[TaggedWindow | None] = [None] * len(group)
            batches = ((part, pad(part, pad_id)) for part in cut(group, self.batch_tokens))
            for window, ids, scores in tag_windows(
                self.model, self._decoder, batches, device=self.device, precision=self.precision
            ):
                done[place[id(window)]] = TaggedWindow(
                    window=window, tag_ids=ids.astype("int16"), scores=scores
                )
            yield from (result for result in done if result is not None)


def load(
    model: str,
    *,
    device: str | None = None,
    precision: Precision | None = None,
    batch_tokens: int | None = None,
    constrained: bool = True,
    trust_remote_code: bool = False,
) -> Predictor:
    """Load a tagger: a run folder, a model folder or a hub id.

    Raises:
        ModelError: it cannot be found or used.
        ConfigError: the device or precision is not to be had here.
    """
    chosen = choose_device(device)
    tagger = load_tagger(find_model(model), trust_remote_code=trust_remote_code)
    return Predictor(
        tagger,
        device=chosen,
        precision=choose_precision(precision, chosen),
        batch_tokens=batch_tokens,
        constrained=constrained,
    )
