"""What a user asks of the planner: a training job, its data optional, and a card."""

from pathlib import Path

from pydantic import Field, field_validator

from bertfit.config import JobConfig
from bertfit.errors import ConfigError
from bertfit.language import N_
from bertfit.units import parse_bytes


class PlanConfig(JobConfig):
    """One question: how would this job run, on that card?

    Without data the sizes stand for them: `batch_size` windows of `max_length` tokens in a step.
    """

    train_file: list[Path] = Field(
        default=[], description=N_("training data; without them the sizes below count")
    )
    gpu: str | None = Field(
        default=None,
        description=N_("card of the catalogue, a size such as 4GiB, or all [this machine's]"),
    )
    num_labels: int = Field(default=10, ge=1, description=N_("labels, where there are no data"))
    num_texts: int = Field(
        default=10_000, ge=1, description=N_("texts of an epoch, where there are no data")
    )
    host_memory: int | None = Field(
        default=None,
        description=N_("memory of the machine with the card [this one's; with --gpu: enough]"),
    )

    @field_validator("host_memory", mode="before")
    @classmethod
    def _host_memory_is_a_size(cls, value: object) -> object:
        if not isinstance(value, str | int) or isinstance(value, bool):
            return value
        try:
            return parse_bytes(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
