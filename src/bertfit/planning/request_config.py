"""What a user asks of the estimator: the source of the flags and of the Python arguments."""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from bertfit.config import Attention, OptimizerName, Precision
from bertfit.language import N_, _

# What only a step with a backward has.
_OF_TRAINING = (
    "accumulation",
    "no_autocast_cache",
    "optimizer",
    "checkpointed_layers",
    "host_state",
    "lora_rank",
    "first_layers",
    "used_rows",
    "frozen_layers",
    "frozen_embeddings",
    "max_grad_norm",
)

# In a micro-batch: prediction of the smallest encoders takes more than a kilobyte for each.
MOST_TOKENS = 1 << 26


def _by_commas(given: object) -> object:
    """Read `256,64,192`."""
    if not isinstance(given, str):
        return given
    parts = given.split(",")
    if not all(re.fullmatch(r" *[0-9]{1,9} *", part) for part in parts):
        raise ValueError(_("write whole numbers by commas: 256,64,192"))
    return [int(part) for part in parts]


Length = Annotated[int, Field(ge=2, le=MOST_TOKENS)]


class EstimateConfig(BaseModel):
    """One question: what will this need, on that card?"""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )

    model: str = Field(
        min_length=1, description=N_("model folder, or a name of the catalogue (docs/models.md)")
    )
    gpu: str | None = Field(
        default=None,
        description=N_("card of the catalogue (docs/cards.md) or a size such as 4GiB [this one's]"),
    )
    mode: Literal["train", "predict", "embed"] = Field(
        default="train", description=N_("what is done")
    )
    batch_size: int = Field(
        default=16, ge=1, le=MOST_TOKENS, description=N_("windows in one micro-batch")
    )
    max_length: int = Field(
        default=128, ge=2, le=MOST_TOKENS, description=N_("tokens in each of them")
    )
    lengths: Annotated[tuple[Length, ...], BeforeValidator(_by_commas)] = Field(
        default=(),
        max_length=1000,
        description=N_("lengths of steps that follow each other, in place of --max-length"),
    )
    accumulation: int = Field(default=1, ge=1, le=1000, description=N_("micro-batches in one step"))
    num_tags: int = Field(default=21, ge=1, le=100_000, description=N_("tags of the head"))
    precision: Precision | None = Field(default=None, description=N_("[what the card does best]"))
    pure_16bit: bool = Field(
        default=False, description=N_("all weights are 16-bit too, with no autocast")
    )
    no_autocast_cache: bool = Field(
        default=False, description=N_("keep no 16-bit copies of weights during a forward")
    )
    attn_implementation: Attention | None = Field(
        default=None, description=N_("attention code of transformers [sdpa where the model has it]")
    )
    optimizer: OptimizerName = Field(default="adamw", description=N_("what makes the update"))
    checkpointed_layers: int = Field(
        default=0, ge=0, description=N_("layers whose activations are computed twice")
    )
    host_state: bool = Field(
        default=False, description=N_("fp32 weights, gradients and optimizer lie on the host")
    )
    lora_rank: int = Field(
        default=0, ge=0, description=N_("rank of LoRA adapters, trained in the encoder's place")
    )
    first_layers: int | None = Field(
        default=None, ge=1, description=N_("keep so many of the encoder's layers [all]")
    )
    used_rows: int | None = Field(
        default=None,
        ge=1,
        description=N_("pieces of the vocabulary that occur in the data [all of them]"),
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
    every_token: bool = Field(
        default=False, description=N_("embed: a vector of each token, not of each window")
    )

    @model_validator(mode="after")
    def _levers_are_of_the_mode(self) -> "EstimateConfig":
        wrong = [] if self.mode == "train" else list(_OF_TRAINING)
        wrong += [] if self.mode == "embed" else ["every_token"]
        default = type(self).model_fields
        given = [name for name in wrong if getattr(self, name) != default[name].default]
        if self.lengths and self.max_length != default["max_length"].default:
            raise ValueError(_("--lengths and --max-length say the same thing: give one of them"))
        if self.batch_size * self.longest > MOST_TOKENS:
            raise ValueError(
                _(
                    "--batch-size {batch} with --max-length {length}: more than {most} tokens in a "
                    "micro-batch, which no card holds"
                ).format(batch=self.batch_size, length=self.longest, most=MOST_TOKENS)
            )
        if given:
            raise ValueError(
                _("{flags}: means nothing with --mode {mode}").format(
                    flags=", ".join(f"--{name.replace('_', '-')}" for name in given),
                    mode=self.mode,
                )
            )
        return self

    @property
    def longest(self) -> int:
        """Tokens of the longest window."""
        return max(self.lengths, default=self.max_length)
