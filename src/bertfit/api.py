"""The Python interface: what `import bertfit` offers."""

from collections.abc import Callable, Sequence
from pathlib import Path

from bertfit.config import JobConfig, Precision
from bertfit.data.formats import ReadOptions
from bertfit.data.mistakes import Mistake
from bertfit.jobs.embed import Embedder, load_encoder
from bertfit.jobs.evaluate import EvaluateReport
from bertfit.jobs.evaluate import evaluate as _evaluate
from bertfit.jobs.int8 import load_int8
from bertfit.jobs.plan import plan as _plan
from bertfit.jobs.predict import Predictor, load
from bertfit.jobs.train import TrainReport, train
from bertfit.planning.capacity import Capacity, capacity
from bertfit.planning.plan import Plan
from bertfit.planning.plan_config import PlanConfig
from bertfit.planning.request import estimate as _estimate
from bertfit.planning.request_config import EstimateConfig
from bertfit.types import MemoryEstimate

__all__ = [
    "Capacity",
    "Embedder",
    "EstimateConfig",
    "EvaluateReport",
    "JobConfig",
    "MemoryEstimate",
    "Plan",
    "PlanConfig",
    "Predictor",
    "TrainReport",
    "capacity",
    "estimate",
    "evaluate",
    "load",
    "load_encoder",
    "load_int8",
    "plan",
    "train",
]


def evaluate(
    model: str | Predictor,
    files: Sequence[Path | str],
    *,
    options: ReadOptions | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    progress: bool = True,
    say: Callable[[str], None] = lambda message: None,
    on_mistake: Callable[[Mistake], None] | None = None,
) -> EvaluateReport:
    """Score a tagger on annotated files.

    Args:
        model: run folder, model folder, hub id, or a predictor that is already loaded.
        files: annotated data in any format that bertfit reads.
        options: how to read them; None looks at the content.
        device: where to run; None takes the fastest device here.
        precision: None takes the fastest that keeps the quality.
        progress: show a progress bar on stderr.
        say: told about repairs, what was left out, and a precision that the model does not run in.
        on_mistake: told every mistake, with its context.

    Raises:
        BertfitError: see `bertfit.errors`.
    """
    predictor = (
        model
        if isinstance(model, Predictor)
        else load(model, device=device, precision=precision, say=say)
    )
    return _evaluate(
        predictor,
        [Path(file) for file in files],
        options or ReadOptions(),
        progress=progress,
        say=say,
        on_mistake=on_mistake,
    )


def estimate(asked: EstimateConfig) -> MemoryEstimate:
    """Say what a job needs on a card, before it runs; reads no weights and needs no card.

    Args:
        asked: model, card, sizes and levers.

    Raises:
        ModelError: the model is not known, or cannot be used.
        ConfigError: the card is not known, or sizes that make no sense.
    """
    return _estimate(asked)[0]


def plan(asked: PlanConfig) -> Plan:
    """Choose the fastest settings of a training job that fit a card; reads no weights.

    Args:
        asked: the job, its data or sizes, and the card, which need not be here.

    Raises:
        BudgetError: nothing fits.
        BertfitError: see `bertfit.errors`.
    """
    return _plan(asked)[0]
