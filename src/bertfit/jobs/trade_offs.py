"""The trade-offs of a run: what `--allow` names is made, and said."""

import numpy as np

from bertfit.config import JobConfig, TradeOff
from bertfit.errors import ConfigError, ModelError
from bertfit.jobs.corpus import Corpus, Say
from bertfit.jobs.lessons import Lessons, make_lessons
from bertfit.language import _
from bertfit.models.layers import keep_layers, num_layers
from bertfit.models.tagger import Tagger
from bertfit.models.vocabulary_cut import cut_vocabulary
from bertfit.planning.levers import TrainSettings
from bertfit.planning.tradeoffs import in_words, layers_kept, with_trade_offs
from bertfit.types import Window


def say_trade_offs(job: JobConfig, say: Say) -> None:
    """Say what of a run may cost quality."""
    for line in in_words(job.trade_offs):
        say(line)


def keep_first_layers(job: JobConfig, tagger: Tagger) -> None:
    """Drop the upper layers, where that is allowed.

    Raises:
        ConfigError: the encoder has not so many layers.
        ModelError: its layers cannot be told apart.
    """
    encoder = tagger.model.base_model
    total = num_layers(encoder)  # type: ignore[arg-type]
    kept = layers_kept(job.trade_offs, total)
    if kept is None:
        return
    if kept > total:
        raise ConfigError(
            _("--allow first-layers={kept}: {model} has {total} layers. Name fewer.").format(
                kept=kept, model=job.model, total=total
            )
        )
    keep_layers(encoder, kept)  # type: ignore[arg-type]


def lever_settings(job: JobConfig, tagger: Tagger) -> TrainSettings:
    """Return the levers that the allowed trade-offs mean; shapes stand for nothing.

    Raises:
        ConfigError: more layers are to be frozen, or computed twice, than there are.
    """
    layers = num_layers(tagger.model.base_model)  # type: ignore[arg-type]
    settings = TrainSettings(
        steps=(((1, 1),),),
        num_tags=len(tagger.scheme.tags),
        host_state=bool(job.host_state),
        saves=job.saves,
    )
    # The layers above the first ones are gone already.
    made: dict[TradeOff, int | None] = {
        name: number for name, number in job.trade_offs.items() if name != "first-layers"
    }
    settings = with_trade_offs(settings, made, layers)
    twice = job.activation_checkpointing or 0
    for flag, wanted in (
        (f"--allow frozen-layers={settings.frozen_layers}", settings.frozen_layers),
        (f"--activation-checkpointing {twice}", twice),
    ):
        if wanted > layers:
            raise ConfigError(
                _("{flag}: {model} has {total} layers. Name fewer.").format(
                    flag=flag, model=job.model, total=layers
                )
            )
    return settings


def cut_to_data(
    job: JobConfig, corpus: Corpus, tagger: Tagger, lessons: Lessons, say: Say
) -> tuple[Tagger, Lessons]:
    """Drop the pieces that the data do not hold, where that is allowed.

    Every window is made again with the smaller vocabulary and compared with the one before.

    Raises:
        ModelError: the tokenizer cannot be cut, or reads a text in another way afterwards.
    """
    if "cut-vocabulary" not in job.trade_offs:
        return tagger, lessons
    before = len(tagger.model.get_input_embeddings().weight)  # type: ignore[operator]
    cut, new_ids = cut_vocabulary(tagger, lessons.piece_ids(tagger))
    again = make_lessons(corpus, cut, job.model, lambda message: None)
    table = np.full(before, -1, dtype=np.int32)
    table[list(new_ids)] = list(new_ids.values())
    for old, new in zip(_windows(lessons), _windows(again), strict=True):
        if not np.array_equal(table[old.input_ids], new.input_ids):
            source = (corpus.train + corpus.dev)[old.index].source
            raise ModelError(
                _(
                    "--allow cut-vocabulary: the tokenizer of {model} reads the text of {source} "
                    "in another way once its vocabulary is cut. Leave cut-vocabulary out."
                ).format(model=job.model, source=source)
            )
    say(
        _("The vocabulary is cut from {before} pieces to {after}.").format(
            before=before, after=len(new_ids)
        )
    )
    return cut, again


def _windows(lessons: Lessons) -> list[Window]:
    return [*(window for windows in lessons.train for window in windows), *lessons.dev]
