"""Plan a training job: from what is asked, or from its data, to what the planner needs to know."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import nn

from bertfit.config import JobConfig, Precision, TradeOff
from bertfit.data.tags import label_scheme
from bertfit.engine.fence import check_budget
from bertfit.errors import ConfigError
from bertfit.jobs.corpus import Corpus, Say, read_corpus
from bertfit.jobs.lessons import Lessons, make_lessons
from bertfit.jobs.starting_point import TINY, starting_tagger
from bertfit.jobs.trade_offs import say_trade_offs
from bertfit.language import _
from bertfit.memory.cards import cards
from bertfit.memory.device import catalogue_device, resolve_device
from bertfit.memory.host import available_bytes
from bertfit.models.encoder import build_classifier, load_tokenizer
from bertfit.models.hub import find_model
from bertfit.models.layers import num_layers
from bertfit.models.model_config import max_positions
from bertfit.models.tagger import Tagger, window_size
from bertfit.models.transformers_log import log_held_back
from bertfit.planning.candidates import JobFacts, Pins
from bertfit.planning.choice import choose
from bertfit.planning.estimate import BuildModel
from bertfit.planning.levers import TrainSettings
from bertfit.planning.plan import Plan, make_plan
from bertfit.planning.plan_config import PlanConfig
from bertfit.planning.planner import Planner
from bertfit.planning.request import check_kernel, model_fields, precision_for
from bertfit.planning.tradeoffs import window_limit, with_trade_offs
from bertfit.types import DeviceSpec, LengthProfile

# More than any machine has: the memory of a machine elsewhere is not known.
UNKNOWN_HOST_BYTES = 1 << 60


@log_held_back()
def plan(asked: PlanConfig, say: Say = lambda message: None) -> tuple[Plan, Planner]:
    """Choose how a job would run on a card, which need not be here; reads no weights.

    Args:
        asked: the job.
        say: told what the user should know of the data.

    Returns:
        The plan, and the planner that knows the job.

    Raises:
        BudgetError: nothing fits.
        BertfitError: see `bertfit.errors`.
    """
    planner = Planner(facts_of(asked, resolve_device(asked.gpu), say))
    return make_plan(planner), planner


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A card of the catalogue, and the plan for it; None where nothing fits."""

    card: str
    total_bytes: int
    plan: Plan | None


@log_held_back()
def rank_cards(asked: PlanConfig, on_card: Callable[[Ranked], None], say: Say) -> list[Ranked]:
    """Plan for every card of the catalogue, the fastest first.

    Cards of one compute capability run the same kernels: their needs are those of the one with the
    most multiprocessors, which is never too little.

    Raises:
        BertfitError: the job cannot be planned at all.
    """
    kinds: dict[tuple[int, int], list[DeviceSpec]] = {}
    for card in cards():
        kinds.setdefault(card.compute_capability, []).append(catalogue_device(card))
    newest = kinds[max(kinds)][0]
    first = facts_of(asked, newest, say, check=False)
    kind = _kind(first.build_model())
    found = []
    for devices in kinds.values():
        largest = max(devices, key=lambda device: device.multiprocessors)
        planner = _planner_for(first, asked, largest, kind)
        for device in devices:
            row = Ranked(
                card=device.name,
                total_bytes=device.total_bytes,
                plan=None if planner is None else _plan_on(planner, device, asked.budget),
            )
            on_card(row)
            found.append(row)
    return sorted(
        found, key=lambda r: -r.plan.tokens_per_second if r.plan is not None else r.total_bytes
    )


def _planner_for(
    facts: JobFacts, asked: PlanConfig, device: DeviceSpec, kind: str
) -> Planner | None:
    try:
        precision = precision_for(asked.precision, device, kind)
        check_kernel(asked.attn_kernel, precision, device)
    except ConfigError:  # a card that cannot do what is asked
        return None
    settings = replace(facts.settings, precision=precision)
    return Planner(replace(facts, device=device, settings=settings))


def _plan_on(planner: Planner, device: DeviceSpec, budget_bytes: int | None) -> Plan | None:
    here = planner.on(device, min(budget_bytes or device.total_bytes, device.total_bytes))
    chosen, __ = choose(here, here.facts.budget_bytes, here.facts.host_bytes)
    return None if chosen is None else make_plan(here)


def facts_of(asked: PlanConfig, device: DeviceSpec, say: Say, *, check: bool = True) -> JobFacts:
    """Return what the planner needs to know of a job.

    Raises:
        BertfitError: see `bertfit.errors`.
    """
    if check and asked.budget is not None:
        check_budget(asked.budget, device.total_bytes, device.context_bytes, device.name)
    say_trade_offs(asked, say)
    here = available_bytes() if asked.gpu is None else UNKNOWN_HOST_BYTES
    host = asked.host_memory or here
    if asked.train_file:
        return facts_of_corpus(asked, read_corpus(asked, say), device, host, say)
    labels = tuple(f"L{number}" for number in range(asked.num_labels))
    tags = label_scheme(labels, asked.scheme).tags
    build = _builder(asked, tags, None)
    limit = max_positions(build().config)
    length, __ = window_size(limit, _asked_length(asked), asked.overlap, asked.model)
    return _facts(
        asked,
        device,
        host,
        build=build,
        num_tags=len(tags),
        lengths=LengthProfile(histogram={length: asked.num_texts}),
        windows_per_step=asked.batch_size,
        num_texts=asked.num_texts,
        used_rows=None,
        say=say,
    )


def facts_of_corpus(
    job: JobConfig, corpus: Corpus, device: DeviceSpec, host_bytes: int, say: Say
) -> JobFacts:
    """Return what the planner needs to know of a job with these texts.

    Args:
        job: what is asked.
        corpus: its texts, or some of them.
        device: the card.
        host_bytes: what it may take of the host's memory.
        say: told what the user should know of the texts.

    Raises:
        BertfitError: see `bertfit.errors`.
    """
    tagger, lessons = _cut(job, corpus, say)
    tags = tagger.scheme.tags
    return _facts(
        job,
        device,
        host_bytes,
        build=_builder(job, tags, tagger.model),
        num_tags=len(tags),
        lengths=profile_of(lessons),
        windows_per_step=windows_in_step(lessons, job.batch_size),
        num_texts=len(lessons.train),
        used_rows=len(lessons.piece_ids(tagger)),
        say=say,
    )


def _facts(
    job: JobConfig,
    device: DeviceSpec,
    host_bytes: int,
    *,
    build: BuildModel,
    num_tags: int,
    lengths: LengthProfile,
    windows_per_step: int,
    num_texts: int,
    used_rows: int | None,
    say: Say,
) -> JobFacts:
    precision = precision_for(job.precision, device, _kind(build()), say=say)
    check_kernel(job.attn_kernel, precision, device)
    settings = settings_of_job(job, num_tags, precision, used_rows)
    # A tiny model is built without the layers that are not kept.
    made: dict[TradeOff, int | None] = {
        name: number
        for name, number in job.trade_offs.items()
        if (name, job.model) != ("first-layers", TINY)
    }
    return JobFacts(
        model=job.model,
        build_model=build,
        settings=with_trade_offs(settings, made, num_layers(build().base_model)),  # type: ignore[arg-type]
        lengths=lengths,
        windows_per_step=windows_per_step,
        num_steps=-(-num_texts // job.batch_size) * job.num_train_epochs,
        device=device,
        budget_bytes=job.budget or device.total_bytes,
        host_bytes=host_bytes,
        pins=Pins.of(job),
        is_fenced=job.budget is not None,
    )


def _kind(model: nn.Module) -> str:
    return str(model.config.model_type)  # type: ignore[union-attr]


def settings_of_job(
    job: JobConfig, num_tags: int, precision: Precision, used_rows: int | None
) -> TrainSettings:
    """Return the settings that are the job's own, with a step that stands for none."""
    return TrainSettings(
        steps=(((1, 1),),),
        num_tags=num_tags,
        precision=precision,
        attn_implementation=job.attn_implementation,
        max_grad_norm=job.max_grad_norm,
        used_rows=used_rows,
        saves=job.saves,
    )


def _asked_length(job: JobConfig) -> int | None:
    return job.max_length or window_limit(job.trade_offs)


def profile_of(lessons: Lessons) -> LengthProfile:
    """Count the lengths of the training windows."""
    return LengthProfile(
        histogram=Counter(len(window.input_ids) for window in chain(*lessons.train))
    )


def windows_in_step(lessons: Lessons, batch_size: int) -> int:
    """Return the windows of a usual step, rounded up."""
    windows = sum(map(len, lessons.train))
    texts = max(1, len(lessons.train))
    return max(1, -(-windows * min(batch_size, texts) // texts))


def _builder(job: JobConfig, tags: tuple[str, ...], model: nn.Module | None) -> BuildModel:
    if job.model == TINY:
        if model is None:
            raise ConfigError(_("--model tiny is made from the training data: give --train-file."))
        fields = model.config.to_dict()  # type: ignore[operator, union-attr]
    else:
        fields = model_fields(job.model)

    def build() -> nn.Module:
        with torch.device("meta"):
            return build_classifier(fields, tags, job.dropout)

    return build


def _cut(job: JobConfig, corpus: Corpus, say: Say) -> tuple[Tagger, Lessons]:
    """Cut texts into windows, with the model's tokenizer but no weights."""
    if job.model == TINY:
        tagger = starting_tagger(job, corpus, say)
        return tagger, make_lessons(corpus, tagger, job.model, say)
    folder = find_model(job.model)
    model = _builder(job, corpus.scheme.tags, None)()
    max_length, overlap = window_size(
        max_positions(model.config), _asked_length(job), job.overlap, job.model
    )
    tagger = Tagger(
        model=model,
        tokenizer=load_tokenizer(folder, job.trust_remote_code),
        scheme=corpus.scheme,
        task=corpus.task,
        split=corpus.split,
        max_length=max_length,
        overlap=overlap,
    )
    return tagger, make_lessons(corpus, tagger, job.model, say)
