"""What a run learns from and is measured on, as windows; and which pieces occur in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from bertfit.data.formats import ProblemLog
from bertfit.data.pieces import TextTokenizer, unknown_share
from bertfit.data.windows import windows
from bertfit.errors import ModelError
from bertfit.jobs.corpus import Corpus, Say, report_problems
from bertfit.jobs.predict import text_tokenizer
from bertfit.language import _
from bertfit.models.tagger import Tagger
from bertfit.types import Example, Window

UNKNOWN_WARN = 0.01
UNKNOWN_REFUSE = 0.30


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """Windows of the training texts, text by text, and of the dev texts in one list."""

    train: list[list[Window]]
    dev: list[Window]

    def of(self, examples: Sequence[int]) -> list[Window]:
        """Return the windows of some training texts."""
        return [window for i in examples for window in self.train[i]]

    def longest(self, num_examples: int) -> list[Window]:
        """Return as many of the longest training windows as `num_examples` texts can have."""
        most = sum(sorted(map(len, self.train), reverse=True)[:num_examples])
        return sorted(chain(*self.train), key=lambda w: -len(w.input_ids))[:most]

    def piece_ids(self, tagger: Tagger) -> set[int]:
        """Return the ids of all pieces that can reach the model."""
        tokenizer = tagger.tokenizer
        ids = {tokenizer.pad_id, tokenizer.unk_id, *tokenizer.prefix, *tokenizer.suffix}
        for window in chain(*self.train, self.dev):
            ids.update(window.input_ids.tolist())
        return ids


def make_lessons(corpus: Corpus, tagger: Tagger, model: str, say: Say) -> Lessons:
    """Cut the corpus into windows.

    Raises:
        ModelError: too much of the text is unknown to the tokenizer of `model`.
    """
    tokenizer = text_tokenizer(tagger.tokenizer)
    log = ProblemLog()
    train: list[list[Window]] = [[] for __ in corpus.train]
    for window in _windows(corpus.train, corpus, tagger, tokenizer, log):
        train[window.index].append(window)
    report_problems(log, say)
    dev = list(_windows(corpus.dev, corpus, tagger, tokenizer, None))
    if corpus.dev and not dev:
        say(_("The dev texts are empty: the model of the last step is kept, unmeasured."))
    _check_unknown(unknown_share(chain(*train), tokenizer), model, say)
    warn_of_unknown(unknown_share(dev, tokenizer), say)
    return Lessons(train=train, dev=dev)


def _windows(
    examples: list[Example],
    corpus: Corpus,
    tagger: Tagger,
    tokenizer: TextTokenizer,
    log: ProblemLog | None,
) -> Iterator[Window]:
    return windows(
        examples,
        tokenizer,
        scheme=tagger.scheme if log is not None else None,
        max_length=tagger.max_length,
        overlap=tagger.overlap,
        split=corpus.split,
        on_problem=None if log is None else log.add,
    )


def warn_of_unknown(share: float, say: Say) -> None:
    """Say where too much of the text to measure on is unknown: its scores mean little then."""
    if share > UNKNOWN_WARN:
        say(
            _(
                "Warning: {share:.1%} of the text to measure on is unknown to the model's "
                "tokenizer and looks the same to the model ([UNK]). It may be of another language "
                "or script than the model's."
            ).format(share=share)
        )


def _check_unknown(share: float, model: str, say: Say) -> None:
    if share > UNKNOWN_REFUSE:
        raise ModelError(
            _(
                "{share:.0%} of the training text is unknown to the tokenizer of {model}: it "
                "was made for another language or script. Choose another model."
            ).format(share=share, model=model)
        )
    if share > UNKNOWN_WARN:
        say(
            _(
                "Warning: {share:.1%} of the training text is unknown to the tokenizer of "
                "{model} and looks the same to the model ([UNK])."
            ).format(share=share, model=model)
        )
