"""The program of a job as the estimator runs it: the real step, forward, decoding and pooling.

Nothing here is a copy: batches of zeros go through the functions that the jobs call (law 1). On
stand-in tensors that shows what the job asks of the card; on a real card it is the job itself.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import nn

from bertfit.config import Precision
from bertfit.data.tags import transitions
from bertfit.engine.backends import torch_encoder, torch_tagger
from bertfit.engine.decode import Decoder, tag_batch
from bertfit.engine.host_state import make_update
from bertfit.engine.optim import Update, parameter_groups
from bertfit.engine.pooling import pool
from bertfit.engine.step import train_step
from bertfit.models.head import head_parameters
from bertfit.planning.levers import (
    EmbedSettings,
    PredictSettings,
    Settings,
    Shape,
    TrainSettings,
    keep_used_rows,
    prepare_inference,
    prepare_model,
)
from bertfit.types import Batch, LabelScheme, Window

Mark = Callable[[str], None]

FP16_SCALE = 65536.0  # engine.precision.LossScale begins with it


def prepare(model: nn.Module, settings: Settings) -> tuple[nn.Module, tuple[int, ...]]:
    """Make a token classifier into what a job moves to its device.

    Returns:
        The model, and the layers whose outputs are summed where vectors are made.

    Raises:
        ConfigError: settings that the model cannot have.
    """
    if not isinstance(settings, TrainSettings):
        return prepare_inference(model, settings)
    keep_used_rows(model, settings.used_rows)
    prepare_model(model, settings)
    return model, ()


def run(
    model: nn.Module,
    layers: tuple[int, ...],
    settings: Settings,
    device: torch.device,
    mark: Mark | None = None,
) -> Iterator[None]:
    """Run a job on zeros, without end; yields after each round of its steps or batches.

    Args:
        model: from `prepare`.
        layers: from `prepare`.
        settings: the levers.
        device: where to run.
        mark: told when a step and a micro-batch begins, and when the last of a step has ended.
    """
    if isinstance(settings, TrainSettings):
        yield from _training(model, settings, device, mark)
    elif isinstance(settings, PredictSettings):
        yield from _prediction(model, settings, device)
    else:
        yield from _embedding(model, layers, settings, device)


def place(model: nn.Module, settings: TrainSettings, device: torch.device) -> Update:
    """Move a model to its device and make its optimizer."""
    return make_update(
        model,
        parameter_groups(
            model,
            [parameter for __, parameter in head_parameters(model)],
            learning_rate=1e-5,
            head_learning_rate=1e-3,
            weight_decay=0.01,
        ),
        device=device,
        precision=_autocast(settings),
        max_grad_norm=settings.max_grad_norm,
        optimizer=settings.optimizer,
        host_state=settings.host_state,
    )


def _autocast(settings: Settings) -> Precision:
    """Return what is autocast to; fp32 is nothing."""
    return "fp32" if settings.pure_16bit else settings.precision


def _training(
    model: nn.Module, settings: TrainSettings, device: torch.device, mark: Mark | None
) -> Iterator[None]:
    model.train()
    update = place(model, settings, device)
    while True:
        for step in settings.steps:
            batches = [blank_batch(shape, settings.padded, labels=True) for shape in step]
            if mark is not None:
                mark("step")
            train_step(
                model,
                update,
                batches if mark is None else MarkedBatches(batches, mark),
                device=device,
                precision=_autocast(settings),
                loss_scale=FP16_SCALE if settings.precision == "fp16" else 1.0,
                autocast_cache=settings.autocast_cache,
            )
        yield


class MarkedBatches(Sequence[Batch]):
    """Batches that say when each of them begins, and when the last has ended.

    A step goes over its batches twice: to count the labels, and to run them.
    """

    def __init__(self, batches: list[Batch], mark: Mark) -> None:
        self._batches, self._mark = batches, mark
        self._passes = 0

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._batches[index]

    def __iter__(self) -> Iterator[Batch]:
        self._passes += 1
        if self._passes == 1:
            yield from self._batches
            return
        for batch in self._batches:
            self._mark("micro-batch")
            yield batch
        self._mark("update")


def _prediction(
    model: nn.Module, settings: PredictSettings, device: torch.device
) -> Iterator[None]:
    model = model.to(device)
    model.eval()
    forward = torch_tagger(model, device, _autocast(settings))
    decoder = Decoder(*transitions(_scheme(settings.num_tags)), device)
    while True:
        for shape in settings.batches:
            batch = blank_batch(shape, settings.padded, labels=False)
            tag_batch(forward, decoder, _windows(shape), batch)
        yield


def _embedding(
    model: nn.Module, layers: tuple[int, ...], settings: EmbedSettings, device: torch.device
) -> Iterator[None]:
    model = model.to(device)
    model.eval()
    forward = torch_encoder(model, device, _autocast(settings), layers)
    while True:
        for windows, tokens in settings.batches:
            rows, places = (a.ravel() for a in np.indices((windows, tokens)))
            groups = np.arange(len(rows)) if settings.every_token else rows
            with torch.inference_mode():
                states = forward(blank_batch((windows, tokens), settings.padded, labels=False))
                pool(states, rows, places, groups, int(groups[-1]) + 1, "mean")
                del states
        yield


def blank_batch(shape: Shape, padded: bool, *, labels: bool) -> Batch:
    """Make a batch of zeros; with a mask where the windows are shorter than the batch.

    Each array is one row that stands for all, so a batch of any size takes no memory.
    """
    tokens = shape[1]
    mask = np.ones(tokens, dtype=np.int64)
    # transformers looks for it, CANINE at the largest of four; a lone token is like other lengths
    mask[tokens // 2 :] = 0
    zeros = as_strided(np.zeros(1, dtype=np.int64), shape, (0, 0))
    return Batch(
        input_ids=zeros,
        attention_mask=as_strided(mask, shape, (0, mask.itemsize)) if padded else None,
        labels=zeros if labels else None,
        num_labelled=zeros.size if labels else 0,
        num_tokens=zeros.size,
    )


def _windows(shape: Shape) -> list[Window]:
    """Make the windows of a batch, each token a unit: the most that is ever decoded."""
    count, tokens = shape
    places = np.arange(tokens, dtype=np.int32)
    units = np.stack([places, places + 1], axis=1)
    return [
        Window(
            index=number,
            input_ids=places,
            units=units,
            first_token=places,
            labels=None,
            owned=(0, tokens),
        )
        for number in range(count)
    ]


def _scheme(num_tags: int) -> LabelScheme:
    """Return a scheme of that many tags with rules, so that decoding checks them."""
    labels = tuple(f"L{number}" for number in range((num_tags + 1) // 2))
    tags = ["O", *(f"{prefix}-{label}" for label in labels for prefix in "BI")][:num_tags]
    return LabelScheme(labels=labels, encoding="bio", tags=tuple(tags))
