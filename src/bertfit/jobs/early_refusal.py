"""A budget that no plan could keep to, refused while little has been read and nothing computed.

First by the model's config alone, then by a plan for the first texts. What all texts need is never
less, so whatever is refused here would be refused later.
"""

from pathlib import Path

import psutil
import torch

from bertfit.config import JobConfig
from bertfit.engine.fence import check_floor, check_least, floor_bytes
from bertfit.engine.workplace import Workplace
from bertfit.errors import BudgetError, ConfigError, ModelError
from bertfit.jobs.corpus import SAMPLED_TEXTS, read_sample
from bertfit.jobs.plan import facts_of_corpus
from bertfit.language import _
from bertfit.memory.host import available_bytes
from bertfit.models.encoder import build_classifier
from bertfit.models.model_config import config_fields
from bertfit.models.rows import keep_rows
from bertfit.planning.choice import is_hopeless
from bertfit.planning.planner import Planner
from bertfit.planning.refusal import nothing_fits
from bertfit.units import MIB

# With room for so much beside the whole state, one window has room where the state is on the host:
# that frees three quarters of it.
WORK_BYTES = 512 * MIB


def refuse_early(job: JobConfig, place: Workplace, folder: Path) -> None:
    """Refuse a budget below the floor of a job.

    Args:
        job: what is asked.
        place: where it trains.
        folder: of the model, whose config says how large it is.

    Raises:
        BudgetError: nothing fits; the message has the floor.
        ConfigError: a lever that the user has set does not fit, and without it the job would.
    """
    if job.budget is None:
        return
    try:
        with torch.device("meta"):
            model = build_classifier(config_fields(folder), ("O",))
    except ModelError:  # its config does not say
        return
    keep_rows(model, ())  # how many of the vocabulary are used, only the texts say
    whole = floor_bytes(model, place.precision)
    if place.spec is None:
        if not job.allow:  # a trade-off may make the model smaller
            check_floor(job.budget, whole, place.context_bytes)
        return
    if not job.allow:
        check_least(job.budget, model, job.precision or "bf16", place.context_bytes)
    if job.budget < whole + place.context_bytes + WORK_BYTES:
        _refuse_by_sample(job, place)


def _by_the_first(count: int, error: BudgetError | ConfigError) -> BudgetError | ConfigError:
    """Say of a refusal that more texts may need more: longer windows, more of the vocabulary."""
    if count < SAMPLED_TEXTS:
        return error
    return type(error)(
        _("By the first {count} texts, and all of them may need more: {error}").format(
            count=count, error=error
        )
    )


def _refuse_by_sample(job: JobConfig, place: Workplace) -> None:
    corpus = read_sample(job)
    if corpus is None:
        return
    host_bytes = available_bytes() + psutil.Process().memory_info().rss
    assert place.spec is not None, "only a card has a plan"
    try:
        facts = facts_of_corpus(job, corpus, place.spec, host_bytes, lambda message: None)
        planner = Planner(facts)
        if is_hopeless(planner):
            raise _by_the_first(len(corpus.train), nothing_fits(planner))
    except ModelError:  # an operation whose memory is not known, or texts of another language
        return
