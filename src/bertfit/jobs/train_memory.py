"""What a run holds in memory from start to end: checked, made, rehearsed, and relieved."""

import torch
from torch import nn

from bertfit.config import JobConfig, Precision
from bertfit.engine.fence import (
    check_floor,
    check_host,
    floor_bytes,
    snapshot_bytes,
    take,
)
from bertfit.engine.host_state import held_bytes, make_update
from bertfit.engine.optim import Update, parameter_groups
from bertfit.engine.packing import can_pack, draw_fast, prepare_packing
from bertfit.engine.recovery import Steps
from bertfit.engine.workplace import Workplace
from bertfit.errors import ConfigError
from bertfit.jobs.corpus import Say
from bertfit.jobs.lessons import Lessons
from bertfit.jobs.survival import StopRequests
from bertfit.jobs.train_plan import Settled
from bertfit.language import _
from bertfit.models.head import head_parameters
from bertfit.models.tagger import Tagger
from bertfit.planning.levers import (
    TrainSettings,
    encoder_layers,
    prepare_model,
    set_checkpointed,
)


def make_steps(
    job: JobConfig,
    tagger: Tagger,
    place: Workplace,
    stops: StopRequests,
    say: Say,
    *,
    settled: Settled,
) -> Steps:
    """Move the model to the device, make its optimizer with its state, and what runs the steps.

    Args:
        job: what is asked.
        tagger: on the host, with the rows it trains.
        place: where it trains.
        stops: asked before every micro-batch.
        say: told when a step had to be relieved.
        settled: the levers.

    Raises:
        BudgetError: the model and its optimizer do not fit.
    """
    settings = settled.settings
    prepare_model(tagger.model, settings)

    def update_of(model: nn.Module, device: torch.device, precision: Precision) -> Update:
        return _make_update(job, model, settings, device, precision)

    def model_and_update() -> tuple[nn.Module, Update]:
        model = tagger.model
        update = update_of(model, place.device, place.precision)
        place.load(model, update_of, tagger.max_length)
        return model, update

    model, update = take(model_and_update, place.gauge, _check_memory(job, tagger, place, settings))
    packed = False
    if place.device.type == "cpu":
        draw_fast(model)
        packed = job.attn_implementation is None and can_pack(model)
        if packed:
            prepare_packing(model)
    return Steps(
        model,
        update,
        device=place.device,
        precision=place.precision,
        pad_id=tagger.tokenizer.pad_id,
        seed=job.seed,
        card=place.gauge,
        micro_batch_tokens=settled.micro_batch_tokens,
        relieve=lambda: _checkpoint_layers(tagger, say, host_state=settings.host_state),
        step=stops.between_micro_batches(place.step),
        gradients=place.gradients,
        packed=packed,
        counts_padding=place.is_card,
    )


def rehearse(steps: Steps, lessons: Lessons, batch_size: int, say: Say) -> None:
    """Take the largest micro-batch's memory before step 1, and say where it had to shrink.

    Raises:
        BudgetError: one window alone does not fit.
    """
    asked = steps.micro_batch_tokens
    if steps.rehearse(lessons.longest(batch_size)):
        say(
            _("Micro-batches hold {tokens} tokens, not {asked}: the largest would not fit.").format(
                tokens=steps.micro_batch_tokens, asked=asked
            )
        )


def _check_memory(job: JobConfig, tagger: Tagger, place: Workplace, settings: TrainSettings) -> int:
    """Refuse what cannot fit, before anything is made on the device; return the floor."""
    needed = floor_bytes(
        tagger.model, place.precision, settings.optimizer, host_state=settings.host_state
    )
    if job.budget is not None:
        check_floor(job.budget, needed, place.context_bytes)
    held = sum(p.numel() * p.element_size() for p in tagger.model.parameters())
    copied = snapshot_bytes(tagger.model) if job.saves else 0
    # On a card the host holds the model once more while it is saved.
    more = held if place.device.type == "cuda" else needed - held
    if settings.host_state:
        more = held_bytes(tagger.model, settings.optimizer) - held  # saved from where it lies
    check_host(copied + more)
    return needed


def _make_update(
    job: JobConfig,
    model: nn.Module,
    settings: TrainSettings,
    device: torch.device,
    precision: Precision,
) -> Update:
    rate = job.learning_rate or default_learning_rate(model, settings.lora_rank)
    groups = parameter_groups(
        model,
        [parameter for __, parameter in head_parameters(model)],
        learning_rate=rate,
        head_learning_rate=job.head_learning_rate
        or job.learning_rate
        or default_learning_rate(model),
        weight_decay=job.weight_decay,
    )
    return make_update(
        model,
        groups,
        device=device,
        precision=precision,
        max_grad_norm=job.max_grad_norm,
        optimizer=settings.optimizer,
        host_state=settings.host_state,
    )


def default_learning_rate(model: nn.Module, lora_rank: int = 0) -> float:
    """Return 5e-5 for a width of 768, four times that for half the width, up to 1e-3.

    BERT's paper tunes 2e-5 to 5e-5 for width 768. An encoder of width 384 learned CLUENER at 5e-4
    and Weibo at 2e-4, but nothing of Weibo at 3e-4 and above (`docs/log.md`), and a rate that fails
    costs more than one that is slow. Other widths were not tried. Adapters (`lora_rank`) take ten
    times as much, up to 2e-3: LoRA's paper has 4e-4 to 5e-4 for RoBERTa-base,
    https://arxiv.org/abs/2106.09685.
    """
    width = int(model.config.hidden_size)  # type: ignore[union-attr, arg-type]
    rate = min(1e-3, 5e-5 * (768 / width) ** 2)
    return float(min(2e-3, 10 * rate) if lora_rank else rate)


def _checkpoint_layers(tagger: Tagger, say: Say, *, host_state: bool) -> bool:
    """Compute every layer's activations twice, so that one window needs a fraction of them."""
    layers = len(encoder_layers(tagger.model))
    try:
        set_checkpointed(tagger.model, layers, host_state=host_state)
    except ConfigError:  # a model without it
        return False
    say(
        _(
            "One window alone did not fit: the activations of all {layers} layers are computed "
            "twice from now on. The result is the same; a step takes about a third longer."
        ).format(layers=layers)
    )
    return True
