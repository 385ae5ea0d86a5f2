"""The model that training begins with: loaded, continued, or built from the training text."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bertfit.config import JobConfig
from bertfit.jobs.corpus import Corpus, Say
from bertfit.jobs.trade_offs import keep_first_layers
from bertfit.language import _
from bertfit.models.encoder import build_classifier, check_pieces, load_classifier, load_tokenizer
from bertfit.models.hub import find_model
from bertfit.models.model_config import max_positions
from bertfit.models.tagger import Tagger, window_size
from bertfit.planning.tradeoffs import window_limit

TINY = "tiny"


def starting_tagger(job: JobConfig, corpus: Corpus, say: Say) -> Tagger:
    """Return the tagger to train, with the tags of the corpus.

    Raises:
        ModelError: the model cannot be found or used, or is too short for `max_length`.
    """
    tags = corpus.scheme.tags
    if job.model == TINY:
        tagger = _tiny(job, corpus)
    else:
        folder = find_model(job.model)
        model, taken = load_classifier(
            folder,
            tags,
            attn_implementation=job.attn_implementation,
            dropout=job.dropout,
            trust_remote_code=job.trust_remote_code,
        )
        if taken:
            new = [tag for tag in tags if tag not in taken]
            say(
                _("The head of {model} is continued for {kept} of {all} tags; new: {new}.").format(
                    model=job.model,
                    kept=len(taken),
                    all=len(tags),
                    new=", ".join(new) or _("none"),
                )
            )
        tokenizer = load_tokenizer(folder, job.trust_remote_code)
        check_pieces(folder, model, tokenizer)
        tagger = Tagger(
            model=model,
            tokenizer=tokenizer,
            scheme=corpus.scheme,
            task=corpus.task,
            split=corpus.split,
            max_length=0,
            overlap=0,
        )
    keep_first_layers(job, tagger)
    limit = max_positions(tagger.model.config)
    asked = job.max_length or window_limit(job.trade_offs)
    max_length, overlap = window_size(limit, asked, job.overlap, job.model)
    return replace(
        tagger, max_length=max_length, overlap=overlap, trade_offs=tuple(sorted(job.allow))
    )


def _tiny(job: JobConfig, corpus: Corpus) -> Tagger:
    from bertfit.models.tiny import save_tokenizer, tiny_encoder

    tiny = tiny_encoder(example.text for example in corpus.train)
    with TemporaryDirectory() as folder:
        save_tokenizer(tiny, Path(folder))
        tokenizer = load_tokenizer(Path(folder))
    return Tagger(
        model=build_classifier(
            {"model_type": "bert", **tiny.config}, corpus.scheme.tags, job.dropout
        ),
        tokenizer=tokenizer,
        scheme=corpus.scheme,
        task=corpus.task,
        split=corpus.split,
        max_length=0,
        overlap=0,
    )
