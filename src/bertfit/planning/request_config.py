"""What a user asks of the estimator: the source of the flags and of the Python arguments."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from bertfit.config import Precision
from bertfit.language import N_


class EstimateConfig(BaseModel):
    """One question: what will this need, on that card?"""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: str = Field(
        min_length=1, description=N_("model folder, or a name of the catalogue (docs/models.md)")
    )
    gpu: str | None = Field(
        default=None,
        description=N_("card of the catalogue (docs/cards.md) or a size such as 4GiB [this one's]"),
    )
    mode: Literal["train", "predict"] = Field(default="train", description=N_("what is done"))
    batch_size: int = Field(default=16, ge=1, description=N_("windows in one micro-batch"))
    max_length: int = Field(default=128, ge=2, description=N_("tokens in each of them"))
    accumulation: int = Field(default=1, ge=1, description=N_("micro-batches in one step"))
    num_tags: int = Field(default=21, ge=1, description=N_("tags of the head"))
    precision: Precision | None = Field(default=None, description=N_("[what the card does best]"))
    attn_implementation: Literal["sdpa", "eager"] = Field(
        default="sdpa", description=N_("attention code of transformers")
    )
    checkpointed_layers: int = Field(
        default=0, ge=0, description=N_("layers whose activations are computed twice")
    )
    frozen_layers: int = Field(default=0, ge=0, description=N_("first layers that are not trained"))
    frozen_embeddings: bool = Field(default=False, description=N_("do not train the embeddings"))
    full_windows: bool = Field(
        default=False, description=N_("all windows are of one length, so no mask is given")
    )
    expandable_segments: bool = Field(
        default=False, description=N_("as in PYTORCH_ALLOC_CONF=expandable_segments:True")
    )
    max_grad_norm: float = Field(default=1.0, ge=0, description=N_("clipping; 0: none"))
