"""One step of each lever: what a job would need with one thing changed at a time."""

from collections.abc import Callable, Iterable

from pydantic import ValidationError

from bertfit.errors import ConfigError, ModelError
from bertfit.language import _
from bertfit.memory.device import resolve_device
from bertfit.models.layers import num_layers
from bertfit.models.transformers_log import log_held_back
from bertfit.planning.levers import Settings
from bertfit.planning.request import (
    estimate,
    model_builder,
    settings_of,
    suited,
    within_positions,
)
from bertfit.planning.request_config import EstimateConfig
from bertfit.types import MemoryEstimate

Change = tuple[str, dict[str, object]]  # as it is to be shown, and the fields that it sets
Watch = Callable[[list[Change]], Iterable[Change]]

_LORA_RANK = 8


@log_held_back()
def lever_steps(
    asked: EstimateConfig, watch: Watch = lambda changes: changes
) -> dict[str, MemoryEstimate]:
    """Estimate one step of each lever alone: what is changed -> the estimate with that change.

    Levers that the model, the card or the other settings do not have are left out, and so is what
    changes nothing.

    Args:
        asked: the question.
        watch: goes over the changes, to show how far it is.

    Raises:
        ModelError, ConfigError: the question itself has no answer.
    """
    device = resolve_device(asked.gpu)
    asked = suited(within_positions(asked), device)
    same = asked.model_dump()
    before = settings_of(asked, device)
    found = {}
    for text, change in watch(_changes(asked, has_autocast=_has_autocast(before))):
        try:
            changed = EstimateConfig(**{**same, **change})
            if settings_of(changed, device) != before:
                found[text] = estimate(changed)[0]
        except (ConfigError, ModelError, ValidationError):
            continue
    return found


def _has_autocast(settings: Settings) -> bool:
    return settings.precision != "fp32" and not settings.pure_16bit


def _changes(asked: EstimateConfig, *, has_autocast: bool) -> list[Change]:
    changes: list[Change] = []
    if asked.batch_size > 1:
        half = asked.batch_size // 2
        if asked.mode == "train":
            text = _("--batch-size {half}, with more micro-batches in a step").format(half=half)
            change: dict[str, object] = {"accumulation": 2 * asked.accumulation}
        else:
            text, change = f"--batch-size {half}", {}
        changes.append((text, {"batch_size": half, **change}))
    if asked.max_length >= 64 and not asked.lengths:
        shorter = asked.max_length // 2
        changes.append((f"--max-length {shorter}", {"max_length": shorter}))
    if asked.mode == "train":
        changes += _of_training(asked)
        if has_autocast:
            changes.append(("--no-autocast-cache", {"no_autocast_cache": True}))
    changes += [
        ("--expandable-segments", {"expandable_segments": True}),
        ("--full-windows", {"full_windows": True}),
        ("--pure-16bit", {"pure_16bit": True}),
    ]
    other = "sdpa" if asked.attn_implementation == "eager" else "eager"
    changes.append((f"--attn-implementation {other}", {"attn_implementation": other}))
    if has_autocast:
        changes.append(("--precision fp32", {"precision": "fp32", "no_autocast_cache": False}))
    return changes


def _of_training(asked: EstimateConfig) -> list[Change]:
    layers = asked.first_layers or num_layers(model_builder(asked)())
    twice, frozen = asked.checkpointed_layers + 1, asked.frozen_layers + 1
    changes: list[Change] = [
        (
            _("--checkpointed-layers {count}: one more is computed twice").format(count=twice),
            {"checkpointed_layers": twice},
        ),
        (
            _("--frozen-layers {count}: one more is not trained").format(count=frozen),
            {"frozen_layers": frozen},
        ),
        ("--frozen-embeddings", {"frozen_embeddings": True}),
        ("--host-state", {"host_state": True}),
        (f"--lora-rank {_LORA_RANK}", {"lora_rank": _LORA_RANK}),
        (f"--first-layers {layers - 1}", {"first_layers": layers - 1}),
    ]
    for optimizer in ("adamw", "adamw-foreach", "adamw-bf16", "adamw-8bit", "adafactor", "sgd"):
        changes.append((f"--optimizer {optimizer}", {"optimizer": optimizer}))
    return changes
