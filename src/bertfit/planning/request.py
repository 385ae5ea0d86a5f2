"""From what a user asks (a model's name, a card's name, sizes) to an estimate; no weights are "
"read.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertfit.config import AttentionKernel, Precision
from bertfit.engine.precision import suited_precision
from bertfit.errors import ConfigError, ModelError
from bertfit.language import _
from bertfit.memory.device import resolve_device
from bertfit.models.catalogue import known_config
from bertfit.models.encoder import build_classifier
from bertfit.models.model_config import config_fields, fewest_tokens, max_positions
from bertfit.models.transformers_log import log_held_back
from bertfit.planning.estimate import BuildModel, estimate_memory
from bertfit.planning.levers import EmbedSettings, PredictSettings, Settings, TrainSettings
from bertfit.planning.request_config import EstimateConfig
from bertfit.types import DeviceSpec, MemoryEstimate

Say = Callable[[str], None]


def card_precision(device: DeviceSpec) -> Precision:
    """Return the fastest number format of a card that keeps the quality."""
    if device.bf16:
        return "bf16"
    # Compute capability 6.x multiplies fp16 at a small fraction of fp32's rate.
    return "fp16" if device.compute_capability >= (7, 0) else "fp32"


def precision_for(
    asked: Precision | None,
    device: DeviceSpec,
    kind: str = "",
    *,
    training: bool = True,
    say: Say = lambda message: None,
) -> Precision:
    """Return the asked precision, or the card's best that the model runs in.

    Args:
        asked: by the user.
        device: the card.
        kind: `model_type` of the model.
        training: whether there is a backward.
        say: told where the model keeps the card from its best.

    Raises:
        ConfigError: the card cannot compute with it.
        ModelError: the model cannot.
    """
    if asked == "bf16" and not device.bf16:
        raise ConfigError(
            _(
                "--precision bf16: {card} has no bfloat16. Use fp16 or fp32, or leave --precision "
                "out."
            ).format(card=device.name)
        )
    best = asked or card_precision(device)
    return suited_precision(asked, best, kind, training=training, say=say)


def suited(
    asked: EstimateConfig, device: DeviceSpec, say: Say = lambda message: None
) -> EstimateConfig:
    """Return a question whose precision the model runs in: fp32 where autocast would stop it.

    Raises:
        ConfigError, ModelError: the card or the model has not what was asked.
    """
    if asked.pure_16bit:  # nothing is autocast
        return asked
    kind = str(model_fields(asked.model)["model_type"])
    training = asked.mode == "train"
    precision = precision_for(asked.precision, device, kind, training=training, say=say)
    if precision == (asked.precision or card_precision(device)):
        return asked
    return asked.model_copy(update={"precision": precision})


def check_kernel(kernel: AttentionKernel | None, precision: Precision, device: DeviceSpec) -> None:
    """Refuse an attention kernel that a card has not.

    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of PyTorch 2.14.

    Raises:
        ConfigError: flash attention on a card below compute capability 8.0, or in fp32.
    """
    if kernel == "flash" and (device.compute_capability < (8, 0) or precision == "fp32"):
        raise ConfigError(
            _(
                "--attn-kernel flash: it needs a card of compute capability 8.0 and a 16-bit "
                "precision; {card} has {capability}, and the precision is {precision}. Use "
                "efficient, or leave it out."
            ).format(
                card=device.name,
                capability=".".join(map(str, device.compute_capability)),
                precision=precision,
            )
        )


def settings_of(asked: EstimateConfig, device: DeviceSpec) -> Settings:
    """Return the levers of a question, all decided."""
    precision = precision_for(asked.precision, device)
    shapes = [(asked.batch_size, length) for length in asked.lengths or (asked.max_length,)]
    if asked.mode == "train":
        return TrainSettings(
            steps=tuple((shape,) * asked.accumulation for shape in shapes),
            num_tags=asked.num_tags,
            precision=precision,
            pure_16bit=asked.pure_16bit,
            autocast_cache=not asked.no_autocast_cache,
            attn_implementation=asked.attn_implementation,
            optimizer=asked.optimizer,
            padded=not asked.full_windows,
            max_grad_norm=asked.max_grad_norm,
            checkpointed_layers=asked.checkpointed_layers,
            host_state=asked.host_state,
            lora_rank=asked.lora_rank,
            first_layers=asked.first_layers,
            used_rows=asked.used_rows,
            frozen_embeddings=asked.frozen_embeddings,
            frozen_layers=asked.frozen_layers,
            expandable_segments=asked.expandable_segments,
        )
    if asked.mode == "predict":
        return PredictSettings(
            batches=tuple(shapes),
            num_tags=asked.num_tags,
            precision=precision,
            pure_16bit=asked.pure_16bit,
            attn_implementation=asked.attn_implementation,
            padded=not asked.full_windows,
            expandable_segments=asked.expandable_segments,
        )
    return EmbedSettings(
        batches=tuple(shapes),
        precision=precision,
        pure_16bit=asked.pure_16bit,
        attn_implementation=asked.attn_implementation,
        padded=not asked.full_windows,
        every_token=asked.every_token,
        expandable_segments=asked.expandable_segments,
    )


def model_builder(asked: EstimateConfig) -> BuildModel:
    """Return what builds the asked model without weights.

    Raises:
        ModelError: no such model, or a config that lacks fields.
    """
    fields = model_fields(asked.model)
    tags = ("O", *(f"T{number}" for number in range(1, asked.num_tags)))

    def build() -> nn.Module:
        with torch.device("meta"):
            model = build_classifier(fields, tags)
        return model.to("meta")  # torch.FloatTensor does not look at the device

    return build


def positions_of(asked: EstimateConfig) -> int | None:
    """Return the longest window of the asked model in tokens; None where there is no such limit.

    Raises:
        ModelError: no such model, or a config that lacks fields.
    """
    return max_positions(model_builder(asked)().config)


@log_held_back()
def within_positions(asked: EstimateConfig) -> EstimateConfig:
    """Return a question whose lengths the model has: a default shrinks to them.

    Raises:
        ModelError: no such model, a config that lacks fields, or a given length beyond its
            positions, or below what it reads.
    """
    config: Any = model_builder(asked)().config
    flag = "--lengths" if asked.lengths else "--max-length"
    fewest = fewest_tokens(config)
    shortest = min(asked.lengths, default=asked.max_length)
    if shortest < fewest:
        raise ModelError(
            _(
                "{flag} {length}: {model} ({kind}) puts {fewest} tokens together, and reads no "
                "fewer. Ask for {fewest} or more."
            ).format(
                flag=flag, length=shortest, model=asked.model, kind=config.model_type, fewest=fewest
            )
        )
    limit = max_positions(config)
    if limit is None or asked.longest <= limit:
        return asked
    if "max_length" not in asked.model_fields_set and not asked.lengths:
        return asked.model_copy(update={"max_length": limit})
    raise ModelError(
        _(
            "{flag} {length}: the position table of {model} ends at {limit} tokens. Longer texts "
            "are read in windows of at most that."
        ).format(flag=flag, length=asked.longest, model=asked.model, limit=limit)
    )


@log_held_back()
def estimate(
    asked: EstimateConfig, say: Say = lambda message: None
) -> tuple[MemoryEstimate, DeviceSpec, Settings]:
    """Answer a question.

    Args:
        asked: the question.
        say: told where the model keeps the card from its best precision.

    Returns:
        The estimate, the card it is for, and the settings that were decided.

    Raises:
        ModelError: the model is not known, or cannot be used.
        ConfigError: the card is not known, or sizes that make no sense.
    """
    device = resolve_device(asked.gpu)
    asked = suited(within_positions(asked), device, say)
    settings = settings_of(asked, device)
    return estimate_memory(model_builder(asked), settings, device), device, settings


_LONGEST_NAME = 1000  # characters; file systems refuse longer paths with an error of their own


def model_fields(name: str) -> Mapping[str, Any]:
    """Return the fields of the config of a model, by its folder or its name in the catalogue.

    Raises:
        ModelError: it is not known, or its config lacks fields.
    """
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise ModelError(
            _(
                "--model {name}: this is no name of a model. Give a folder, or a name of "
                "docs/models.md."
            ).format(name=ascii(name[:40]))
        )
    folder = Path(name)
    if (folder / "model" / "config.json").is_file():
        folder = folder / "model"
    if (folder / "config.json").is_file():
        return config_fields(folder)
    return known_config(name)
