"""Every lever of a job that changes its memory, decided; and how a model is prepared for them."""

from dataclasses import dataclass

from torch import nn

from bertfit.config import Precision
from bertfit.errors import ConfigError
from bertfit.language import _

Shape = tuple[int, int]  # windows in a micro-batch, tokens in each


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """How a training job runs.

    Attributes:
        steps: the micro-batches of each optimizer step, as (windows, tokens). The steps repeat.
        num_tags: K.
        precision: fp32, or what is autocast to.
        padded: some window is shorter than its batch, so an attention mask is given.
        max_grad_norm: 0 does not clip.
        checkpointed_layers: so many of the encoder's first layers are computed twice.
        frozen_embeddings: the embeddings are not trained.
        frozen_layers: so many of the encoder's first layers are not trained.
        expandable_segments: as in `PYTORCH_ALLOC_CONF`.
    """

    steps: tuple[tuple[Shape, ...], ...]
    num_tags: int
    precision: Precision = "fp32"
    padded: bool = True
    max_grad_norm: float = 1.0
    checkpointed_layers: int = 0
    frozen_embeddings: bool = False
    frozen_layers: int = 0
    expandable_segments: bool = False

    def __post_init__(self) -> None:
        if not self.steps or not all(self.steps):
            raise ConfigError(_("A training job needs at least one micro-batch in every step."))
        check_shapes([shape for step in self.steps for shape in step])


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictSettings:
    """How prediction runs.

    Attributes:
        batches: (windows, tokens) of each batch. They repeat.
        num_tags: K.
        precision: fp32, or what is autocast to.
        padded: some window is shorter than its batch, so an attention mask is given.
        expandable_segments: as in `PYTORCH_ALLOC_CONF`.
    """

    batches: tuple[Shape, ...]
    num_tags: int
    precision: Precision = "fp32"
    padded: bool = True
    expandable_segments: bool = False

    def __post_init__(self) -> None:
        check_shapes(self.batches)


Settings = TrainSettings | PredictSettings


def check_shapes(shapes: "list[Shape] | tuple[Shape, ...]") -> None:
    """Refuse sizes that no batch has.

    Raises:
        ConfigError: no batch, or one without windows or tokens.
    """
    if not shapes:
        raise ConfigError(_("A job needs at least one batch."))
    for windows, tokens in shapes:
        if windows < 1 or tokens < 1:
            raise ConfigError(
                _(
                    "A batch of {windows} windows with {tokens} tokens each is none. Both must be "
                    "1 or more."
                ).format(windows=windows, tokens=tokens)
            )


def prepare_model(model: nn.Module, settings: TrainSettings) -> None:
    """Freeze and checkpoint what the settings say, before the model is moved.

    Raises:
        ConfigError: more layers than the encoder has, or a model without checkpointing.
    """
    base = _encoder(model)
    if settings.frozen_embeddings:
        base.get_submodule("embeddings").requires_grad_(False)
    if settings.frozen_layers or settings.checkpointed_layers:
        layers = encoder_layers(model)
        for wanted in (settings.frozen_layers, settings.checkpointed_layers):
            if wanted > len(layers):
                raise ConfigError(
                    _("{wanted} layers were asked for, but the encoder has {count}.").format(
                        wanted=wanted, count=len(layers)
                    )
                )
        for layer in layers[: settings.frozen_layers]:
            layer.requires_grad_(False)
        _checkpoint(model, layers, settings.checkpointed_layers)


def encoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of the encoder, first to last: its longest list of equal modules."""
    lists = [list(part) for part in model.modules() if isinstance(part, nn.ModuleList)]
    return max(lists, key=len, default=[])


def _encoder(model: nn.Module) -> nn.Module:
    base = getattr(model, "base_model", model)
    assert isinstance(base, nn.Module)
    return base


def _checkpoint(model: nn.Module, layers: list[nn.Module], count: int) -> None:
    if not count:
        return
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise ConfigError(
            _("{model} has no activation checkpointing.").format(model=type(model).__name__)
        )
    # transformers 5.24 renamed it and warns of the old name.
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})  # type: ignore[operator]
    for layer in layers[count:]:
        layer.gradient_checkpointing = False  # type: ignore[assignment]
