"""The number format of a job: the fastest of the device in which the model's own code runs."""

from pathlib import Path

import torch

from bertfit.config import JobConfig, Precision
from bertfit.engine.precision import choose_precision, suited_precision
from bertfit.engine.workplace import Workplace
from bertfit.jobs.corpus import Say
from bertfit.models.model_config import read_config
from bertfit.planning.request import card_precision
from bertfit.planning.workplace import workplace_of


def format_of_prediction(
    asked: Precision | None,
    device: torch.device,
    folder: Path,
    trust_remote_code: bool,
    say: Say = lambda message: None,
) -> Precision:
    """Return in what a model predicts, or gives vectors.

    Args:
        asked: by the user.
        device: where.
        folder: of the model.
        trust_remote_code: whether its own code may be run.
        say: told where the model keeps the device from its best.

    Raises:
        ConfigError: the device has not what was asked.
        ModelError: the model has not, or cannot be read.
    """
    best = choose_precision(asked, device)
    if best == "fp32":
        return best
    kind = str(read_config(folder, trust_remote_code).model_type)
    return suited_precision(asked, best, kind, training=False, say=say)


def in_format_of_training(
    job: JobConfig, place: Workplace, kind: str, say: Say
) -> tuple[JobConfig, Workplace]:
    """Return a job whose precision its model trains in, and its workplace.

    Args:
        job: what is asked.
        place: where it works, as asked.
        kind: `model_type` of the model.
        say: told where the model keeps the workplace from its best.

    Raises:
        ModelError: the model does not train in what was asked.
    """
    best = job.precision or place.precision
    if best == "fp32" and place.spec is not None:
        best = job.precision or card_precision(place.spec)  # a simulated one counts in its own
    suited = suited_precision(job.precision, best, kind, training=True, say=say)
    if suited == best:
        return job, place
    job = job.model_copy(update={"precision": suited})
    return job, workplace_of(job)
