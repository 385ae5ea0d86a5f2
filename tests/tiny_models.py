"""Small models built in memory, and windows of stated lengths."""

import numpy as np
import torch
from torch import nn

from bertfit.data.tags import label_scheme
from bertfit.models.encoder import build_classifier
from bertfit.types import IGNORED, LabelScheme, Window

SCHEME: LabelScheme = label_scheme(["LOC", "PER"], "bio")
VOCABULARY = 200


def tiny_model(dropout: float = 0.0, seed: int = 0, model_type: str = "bert") -> nn.Module:
    """A two-layer encoder with the tags of `SCHEME`."""
    torch.manual_seed(seed)
    fields: dict[str, object] = {
        "model_type": model_type,
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "pad_token_id": 1 if model_type == "roberta" else 0,
    }
    return build_classifier(fields, SCHEME.tags, dropout)


def random_window(num_tokens: int, seed: int, labelled: bool = True) -> Window:
    """A window of `num_tokens` tokens: [CLS], one unit per token, [SEP]."""
    rng = np.random.default_rng(seed)
    units = num_tokens - 2
    labels = rng.integers(0, len(SCHEME.tags), units).astype(np.int16)
    return Window(
        index=seed,
        input_ids=np.array([2, *rng.integers(5, VOCABULARY, units), 3], dtype=np.int32),
        units=np.array([(i, i + 1) for i in range(units)], dtype=np.int32).reshape(-1, 2),
        first_token=np.arange(1, units + 1, dtype=np.int32),
        labels=labels if labelled else np.full(units, IGNORED, dtype=np.int16),
        owned=(0, units),
    )
