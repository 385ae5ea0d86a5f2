"""Where a training run is: what a checkpoint holds beside its tensors."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, TypeAdapter, ValidationError

from bertfit.types import Scores


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """A training run between two steps.

    No random state is among it: the order of the texts is a function of (seed, epoch), the draws
    of a step one of (seed, step).

    Attributes:
        step: steps made so far.
        decay: what the embedding rows that are not trained were multiplied with.
        loss_scale: of fp16, else None.
        good_steps: since the loss scale changed.
        micro_batch_tokens: how large a micro-batch may be now.
        evaluations: every evaluation in short, as in `scores.json`.
        best: scores of the best evaluation.
        best_step: its step.
        without_gain: evaluations since.
        texts: learnt from so far, over all epochs.
        training_seconds: spent in steps.
        oom_retries: how often memory ended.
        finished: whether training is over.
        identity: what the run depends on, name -> value or checksum.
    """

    step: Annotated[int, Field(ge=0)]
    decay: float = 1.0
    loss_scale: float | None = None
    good_steps: int = 0
    micro_batch_tokens: Annotated[int, Field(ge=1)]
    evaluations: tuple[Mapping[str, object], ...] = ()
    best: Scores | None = None
    best_step: int = 0
    without_gain: int = 0
    texts: int = 0
    training_seconds: float = 0.0
    oom_retries: int = 0
    finished: bool = False
    identity: Mapping[str, str]

    def to_json(self) -> dict[str, object]:
        """Return the state as what JSON can hold; floats come back bit for bit."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return the state that `to_json` gave; what an older format lacks is at its default.

        Raises:
            ValueError: a field is missing that always was there, is not known, or holds what it
                never does; with their names.
        """
        fields = dataclasses.fields(cls)
        needed = {field.name for field in fields if field.default is dataclasses.MISSING}
        wrong = (set(stored) - {field.name for field in fields}) | (needed - set(stored))
        if wrong:
            raise ValueError(", ".join(sorted(wrong)))
        try:
            return TypeAdapter(cls).validate_python(stored)
        except ValidationError as error:
            places = (".".join(map(str, fault["loc"])) for fault in error.errors())
            raise ValueError(", ".join(places)) from None
