"""Every lever of a job that changes its memory, decided; and how a model is prepared for them."""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from bertfit.config import Attention, OptimizerName, Precision
from bertfit.engine.layer_inputs import keep_inputs_on_host, leave_inputs_on_card
from bertfit.engine.weights import store_all, store_as_multiplied
from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.models.fourier import replace_fourier
from bertfit.models.layers import keep_layers, num_layers
from bertfit.models.lora import add_lora
from bertfit.models.rows import keep_rows

Shape = tuple[int, int]  # windows in a micro-batch, tokens in each

_OF_FP32_WEIGHTS: tuple[OptimizerName, ...] = ("adamw-bf16", "adamw-8bit", "adafactor")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """How a training job runs.

    Attributes:
        steps: the micro-batches of each optimizer step, as (windows, tokens). The steps repeat.
        num_tags: K.
        precision: fp32, or what is autocast to.
        pure_16bit: weights, gradients and the optimizer's state are numbers of `precision` too, and
            nothing is autocast.
        autocast_cache: weights are cast once in a forward, and the casts live as long as it.
        attn_implementation: attention code of transformers; None leaves the model as it was built.
        optimizer: what makes the update; see `engine.optim`.
        padded: some window is shorter than its batch, so an attention mask is given.
        max_grad_norm: 0 does not clip.
        checkpointed_layers: so many of the encoder's first layers are computed twice.
        used_rows: so many pieces of the vocabulary occur in the data; only their rows of the
            embedding are on the card. None counts all of them, which is never too little.
        frozen_embeddings: the embeddings are not trained.
        frozen_layers: so many of the encoder's first layers are not trained.
        lora_rank: of adapters, which are trained in place of the encoder; 0 is without.
        first_layers: so many of the encoder's layers are kept; None keeps all.
        host_state: fp32 weights, gradients and optimizer state lie on the host, and so do the
            inputs of layers that are computed twice, until the backward needs them.
        expandable_segments: as in `PYTORCH_ALLOC_CONF`.
        saves: checkpoints are written, from a copy in the host's memory.
    """

    steps: tuple[tuple[Shape, ...], ...]
    num_tags: int
    precision: Precision = "fp32"
    pure_16bit: bool = False
    autocast_cache: bool = True
    attn_implementation: Attention | None = None
    optimizer: OptimizerName = "adamw"
    padded: bool = True
    max_grad_norm: float = 1.0
    checkpointed_layers: int = 0
    used_rows: int | None = None
    frozen_embeddings: bool = False
    frozen_layers: int = 0
    lora_rank: int = 0
    first_layers: int | None = None
    host_state: bool = False
    expandable_segments: bool = False
    saves: bool = True

    def __post_init__(self) -> None:
        if not self.steps or not all(self.steps):
            raise ConfigError(_("A training job needs at least one micro-batch in every step."))
        check_shapes([shape for step in self.steps for shape in step])
        _check_pure(self.pure_16bit, self.precision)
        if self.pure_16bit and self.optimizer in _OF_FP32_WEIGHTS:
            raise ConfigError(
                _(
                    "--optimizer {optimizer} keeps its own numbers of float32 weights, so it does "
                    "not go with pure 16-bit weights. Use adamw, adamw-foreach or sgd."
                ).format(optimizer=self.optimizer)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictSettings:
    """How prediction runs.

    Attributes:
        batches: (windows, tokens) of each batch. They repeat.
        num_tags: K.
        precision: fp32, or what is autocast to.
        pure_16bit: all weights are numbers of `precision`, and nothing is autocast.
        attn_implementation: attention code of transformers; None leaves the model as it was built.
        padded: some window is shorter than its batch, so an attention mask is given.
        expandable_segments: as in `PYTORCH_ALLOC_CONF`.
    """

    batches: tuple[Shape, ...]
    num_tags: int
    precision: Precision = "fp32"
    pure_16bit: bool = False
    attn_implementation: Attention | None = None
    padded: bool = True
    expandable_segments: bool = False

    def __post_init__(self) -> None:
        check_shapes(self.batches)
        _check_pure(self.pure_16bit, self.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedSettings:
    """How vectors are made.

    Attributes:
        batches: (windows, tokens) of each batch. They repeat.
        precision: fp32, or what is autocast to.
        pure_16bit: all weights are numbers of `precision`, and nothing is autocast.
        attn_implementation: attention code of transformers; None leaves the model as it was built.
        padded: some window is shorter than its batch, so an attention mask is given.
        layers: whose outputs are summed; empty is the model's own output. The layers above the
            last of them are not built.
        every_token: one vector for each token, not one for each window.
        expandable_segments: as in `PYTORCH_ALLOC_CONF`.
    """

    batches: tuple[Shape, ...]
    precision: Precision = "fp32"
    pure_16bit: bool = False
    attn_implementation: Attention | None = None
    padded: bool = True
    layers: tuple[int, ...] = ()
    every_token: bool = False
    expandable_segments: bool = False

    def __post_init__(self) -> None:
        check_shapes(self.batches)
        _check_pure(self.pure_16bit, self.precision)


Settings = TrainSettings | PredictSettings | EmbedSettings


def check_shapes(shapes: Sequence[Shape]) -> None:
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


def _refuse_more_layers(wanted: int, count: int) -> None:
    if wanted > count:
        raise ConfigError(
            _("{wanted} layers were asked for, but the encoder has {count}.").format(
                wanted=wanted, count=count
            )
        )


def _check_pure(pure_16bit: bool, precision: Precision) -> None:
    if pure_16bit and precision == "fp32":
        raise ConfigError(
            _("Pure 16-bit weights need a 16-bit precision: use --precision bf16 or fp16.")
        )


def prepare_model(model: nn.Module, settings: TrainSettings) -> None:
    """Cut, freeze, checkpoint and store as the settings say, before the model is moved.

    Raises:
        ConfigError: more layers than the encoder has, or a model without what is asked.
    """
    replace_fourier(model)
    set_attention(model, settings.attn_implementation)
    if settings.first_layers is not None:
        encoder = _encoder(model)
        _refuse_more_layers(settings.first_layers, num_layers(encoder))
        keep_layers(encoder, settings.first_layers)
    if settings.lora_rank:
        add_lora(model, settings.lora_rank)
    if settings.frozen_embeddings:
        _embeddings(model).requires_grad_(False)
    if settings.frozen_layers or settings.checkpointed_layers:
        layers = encoder_layers(model)
        for wanted in (settings.frozen_layers, settings.checkpointed_layers):
            _refuse_more_layers(wanted, len(layers))
        for layer in layers[: settings.frozen_layers]:
            layer.requires_grad_(False)
        _checkpoint(model, layers, settings.checkpointed_layers, settings.host_state)
    if settings.pure_16bit:
        store_all(model, settings.precision)


def prepare_inference(
    model: nn.Module, settings: PredictSettings | EmbedSettings
) -> tuple[nn.Module, tuple[int, ...]]:
    """Store and cut a token classifier as the settings say, before it is moved.

    Returns:
        What computes (the classifier, or its encoder), and the layers whose outputs are summed.

    Raises:
        ConfigError: the model has not so many layers, or not that attention.
    """
    replace_fourier(model)
    set_attention(model, settings.attn_implementation)
    if settings.pure_16bit:
        store_all(model, settings.precision)
    else:
        store_as_multiplied(model, settings.precision)
    if isinstance(settings, PredictSettings):
        return model, ()
    encoder, layers = _encoder(model), settings.layers
    if layers:
        count = num_layers(encoder)
        if not all(0 <= layer <= count for layer in layers):
            raise ConfigError(
                _("{wanted} layers were asked for, but the encoder has {count}.").format(
                    wanted=max(layers, key=abs), count=count
                )
            )
        keep_layers(encoder, max(layers))
    return encoder, () if layers == (num_layers(encoder),) else layers


def keep_used_rows(model: nn.Module, used_rows: int | None) -> None:
    """Keep so many rows of the input embedding for the card, as every training job does.

    Which rows they are does not matter to memory. A model without such a table is left as it is.

    Raises:
        ConfigError: the table has fewer rows, or there is none.
    """
    table = _input_table(model)
    rows = table.num_embeddings if isinstance(table, nn.Embedding) else 0
    if used_rows is not None and not rows:
        raise ConfigError(
            _("{model} has no embedding whose rows are pieces. Leave --used-rows out.").format(
                model=type(model).__name__
            )
        )
    if used_rows is not None and used_rows > rows:
        raise ConfigError(
            _("{wanted} pieces are said to occur, but the model's vocabulary has {rows}.").format(
                wanted=used_rows, rows=rows
            )
        )
    if rows:
        keep_rows(model, range(used_rows or rows))


def set_attention(model: nn.Module, attention: Attention | None) -> None:
    """Choose the attention code of a model that is built.

    Raises:
        ConfigError: the model does not have it.
    """
    config = getattr(model, "config", None)
    if attention is None or config is None or config._attn_implementation == attention:
        return
    with contextlib.suppress(ValueError):  # where a model has no such code; some only warn
        model.set_attn_implementation(attention)  # type: ignore[operator]
    if config._attn_implementation != attention:
        raise ConfigError(
            _("{model} has no '{attention}' attention; it has '{present}'.").format(
                model=type(model).__name__,
                attention=attention,
                present=config._attn_implementation,
            )
        )


def encoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of the encoder, first to last: its longest list of equal modules."""
    lists = [list(part) for part in model.modules() if isinstance(part, nn.ModuleList)]
    return max(lists, key=len, default=[])


def _encoder(model: nn.Module) -> nn.Module:
    base = getattr(model, "base_model", model)
    assert isinstance(base, nn.Module)
    return base


def _embeddings(model: nn.Module) -> nn.Module:
    """Return all tables of a model's embeddings, or the input table where they have no module.

    Raises:
        ConfigError: it has none by a name that is known.
    """
    encoder = _encoder(model)
    for name in ("embeddings", "char_embeddings"):  # the second is CANINE's
        found = getattr(encoder, name, None)
        if isinstance(found, nn.Module):
            return found
    table = _input_table(model)
    if table is None:
        raise ConfigError(
            _("{model} has no table of embeddings that can be frozen.").format(
                model=type(model).__name__
            )
        )
    return table


def _input_table(model: nn.Module) -> nn.Module | None:
    """Return the embedding of token ids; None where there is none, as CANINE hashes characters."""
    try:
        table = model.get_input_embeddings()  # type: ignore[operator]
    except NotImplementedError:
        return None
    return table if isinstance(table, nn.Module) else None


def set_checkpointed(model: nn.Module, count: int, *, host_state: bool = False) -> None:
    """Have so many of the first layers computed twice from now on, of a model that is prepared.

    Args:
        model: a token classifier.
        count: of layers.
        host_state: what can lie on the host does, their inputs too.

    Raises:
        ConfigError: a model without checkpointing.
    """
    layers = encoder_layers(model)
    leave_inputs_on_card(layers)  # rows of another number of layers are not kept
    _checkpoint(model, layers, count, host_state)
    if not count:
        for module in model.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = False  # type: ignore[assignment]


def _checkpoint(model: nn.Module, layers: list[nn.Module], count: int, host_state: bool) -> None:
    if not count:
        return
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise ConfigError(
            _("{model} has no activation checkpointing.").format(model=type(model).__name__)
        )
    # What the model says in its first step of a cache of keys, which tagging does not use.
    logging.getLogger("transformers.utils.generic").setLevel(logging.ERROR)
    # transformers 5.24 renamed it and warns of the old name.
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})  # type: ignore[operator]
    for layer in layers[count:]:
        layer.gradient_checkpointing = False  # type: ignore[assignment]
    if host_state:
        keep_inputs_on_host(layers[:count])
