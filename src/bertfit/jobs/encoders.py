"""An encoder from a folder: without its head, and with what the folder says of its use."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from bertfit.data.mentions import MARKERS
from bertfit.data.windows import room
from bertfit.models.encoder import LoadedTokenizer, load_classifier, load_tokenizer
from bertfit.models.model_config import max_positions, read_config
from bertfit.models.tagger import window_size

Pooling = Literal["mean", "max", "cls", "marker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A model without its head, and how it is meant to be used.

    Attributes:
        model: an encoder of transformers.
        tokenizer: its fast tokenizer.
        max_length: longest window in tokens, special tokens counted.
        overlap: tokens shared by neighbouring windows.
        pooling: how sentence vectors are made, as the folder says, else `mean`.
        normalize: whether they get length 1, as the folder says.
    """

    model: nn.Module
    tokenizer: LoadedTokenizer
    max_length: int
    overlap: int
    pooling: Pooling
    normalize: bool

    @property
    def knows_markers(self) -> bool:
        """Whether its tokenizer has the tokens that stand around the entities of a relation."""
        ids = [self.tokenizer.backend.token_to_id(marker) for marker in MARKERS]
        return all(found is not None for found in ids)


def read_encoder(
    folder: Path, max_length: int | None, trust_remote_code: bool, dtype: torch.dtype
) -> Encoder:
    """Read any model folder as an encoder.

    Args:
        folder: of transformers or sentence-transformers.
        max_length: longest window in tokens; None is what the model allows, up to 512.
        trust_remote_code: run the Python code that a model brings.
        dtype: of its weights.

    Raises:
        ConfigError: no token of a text has room in windows of `max_length`.
        ModelError: it cannot be used.
    """
    config = read_config(folder, trust_remote_code)
    length, overlap = window_size(max_positions(config), max_length, None, str(folder))
    tokenizer = load_tokenizer(folder, trust_remote_code)
    room(length, len(tokenizer.prefix) + len(tokenizer.suffix))  # said before weights are read
    # The head is one row that is never run; the encoder inside is what every model has.
    whole, __ = load_classifier(folder, ("O",), trust_remote_code=trust_remote_code, dtype=dtype)
    pooling, normalize = _sentence_transformer(folder)
    return Encoder(
        model=whole.base_model,  # type: ignore[arg-type]
        tokenizer=tokenizer,
        max_length=length,
        overlap=overlap,
        pooling=pooling,
        normalize=normalize,
    )


def _sentence_transformer(folder: Path) -> tuple[Pooling, bool]:
    """Read how a folder of sentence-transformers pools, and whether it normalises."""
    pooling: Pooling = "mean"
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        kinds = [str(module.get("type", "")) for module in modules]
    except (OSError, ValueError, AttributeError):
        return pooling, False
    try:
        path = folder / "1_Pooling" / "config.json"
        said = json.loads(path.read_text(encoding="utf-8"))
        if said.get("pooling_mode_cls_token"):
            pooling = "cls"
        elif said.get("pooling_mode_max_tokens"):
            pooling = "max"
    except (OSError, ValueError, AttributeError):
        pass
    return pooling, any(kind.endswith("Normalize") for kind in kinds)
