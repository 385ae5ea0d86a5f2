"""bertfit: BERT-family sequence labellers inside a fixed amount of GPU memory.

The public names load what they need on first use, so that importing bertfit is free.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0.dev0"

_HOMES = {
    "train": "bertfit.api",
    "evaluate": "bertfit.api",
    # Not by way of `api`, which imports the trainer and the planner too.
    "load": "bertfit.jobs.predict",
    "load_encoder": "bertfit.jobs.embed",
    "load_int8": "bertfit.jobs.int8",
    "estimate": "bertfit.api",
    "capacity": "bertfit.api",
    "plan": "bertfit.api",
    "JobConfig": "bertfit.config",
    "EstimateConfig": "bertfit.planning.request_config",
    "PlanConfig": "bertfit.planning.plan_config",
    "MemoryEstimate": "bertfit.types",
    "Entity": "bertfit.types",
    "Example": "bertfit.types",
    "Scores": "bertfit.types",
    "BertfitError": "bertfit.errors",
}

__all__ = [
    "BertfitError",
    "Entity",
    "EstimateConfig",
    "Example",
    "JobConfig",
    "MemoryEstimate",
    "PlanConfig",
    "Scores",
    "capacity",
    "estimate",
    "evaluate",
    "load",
    "load_encoder",
    "load_int8",
    "plan",
    "train",
]

if TYPE_CHECKING:
    from bertfit.api import capacity, estimate, evaluate, load, load_encoder, load_int8, plan, train
    from bertfit.config import JobConfig
    from bertfit.errors import BertfitError
    from bertfit.planning.plan_config import PlanConfig
    from bertfit.planning.request_config import EstimateConfig
    from bertfit.types import Entity, Example, MemoryEstimate, Scores


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'bertfit' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
