"""`bertfit plan`: the fastest settings that fit a card, what they need, and what was not chosen."""

from typing import Annotated, Any

import typer

from bertfit.cli.options import with_fields
from bertfit.cli.output import print_json, tell, waiting
from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.planning.plan_config import PlanConfig
from bertfit.validation import validated

ALL = "all"
# They do not change the plan, or name its card. A command of `train` can be planned as it is.
_OF_TRAINING = (
    "output_dir",
    "overwrite",
    "learning_rate",
    "head_learning_rate",
    "weight_decay",
    "warmup_steps",
    "early_stopping_patience",
    "eval_steps",
    "logging_steps",
    "preemption_file",
    "preemption_command",
    "device",
)


def _plan(
    fields: dict[str, Any],
    explain: Annotated[
        str | None,
        typer.Option("--explain", help=_("say what one lever does, and why"), metavar="LEVER"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help=_("print one JSON document on stdout"))
    ] = False,
) -> int:
    asked = validated(PlanConfig, {**fields, "gpu": _card_of(fields["gpu"], fields["device"])})
    from bertfit.jobs.plan import plan
    from bertfit.memory.host import map_large_blocks

    map_large_blocks()
    if asked.gpu == ALL:
        return _rank(asked, as_json)
    with waiting(_("Planning: steps are traced, not run")):
        made, planner = plan(asked, tell)
    if explain is not None:
        return _explain(explain, made, planner, as_json)
    if as_json:
        print_json({"model": asked.model, "card": planner.facts.device, "plan": made})
        return 0
    from bertfit.cli.plan_tables import print_plan

    print_plan(made, planner.facts)
    return 0


def _card_of(gpu: str | None, device: str | None) -> str | None:
    """Return the card that `--gpu` or `--device` names, None for that of this machine.

    Raises:
        ConfigError: `--device` is none, or another than `--gpu`.
    """
    if device is None:
        return gpu
    is_cuda = device.partition(":")[0] == "cuda"
    if gpu is not None and not is_cuda and device not in (gpu, f"sim:{gpu}"):
        raise ConfigError(
            _("--gpu {gpu} and --device {device}: a plan is for one card. Leave one out.").format(
                gpu=gpu, device=device
            )
        )
    if gpu is not None or device in ("cuda", "cuda:0"):
        return gpu
    if device.startswith("sim:"):
        return device
    raise ConfigError(
        _(
            "--device {device}: a plan is for a card. Name one with --gpu, or leave --device out "
            "for that of this machine."
        ).format(device=device)
    )


def _rank(asked: PlanConfig, as_json: bool) -> int:
    from tqdm import tqdm

    from bertfit.jobs.plan import Ranked, rank_cards
    from bertfit.memory.cards import cards

    with tqdm(total=len(cards()), desc=_("cards"), disable=as_json, leave=False) as bar:

        def advance(row: Ranked) -> None:
            bar.update()

        ranked = rank_cards(asked, advance, tell)
    fits = any(row.plan is not None for row in ranked)
    if as_json:
        print_json({"model": asked.model, "cards": ranked})
        return 0 if fits else 3
    from bertfit.cli.plan_tables import print_ranking

    print_ranking(asked.model, ranked)
    return 0 if fits else 3


def _explain(lever: str, made: Any, planner: Any, as_json: bool) -> int:
    from bertfit.diagnose.explain_plan import LEVERS, explain_lever

    name = lever.replace("-", "_")
    if name not in LEVERS:
        raise ConfigError(
            _("--explain {lever}: there is no such lever. There are {known}.").format(
                lever=lever, known=", ".join(key.replace("_", "-") for key in LEVERS)
            )
        )
    with waiting(_("Planning: steps are traced, not run")):
        told = explain_lever(name, made, planner)
    if as_json:
        print_json(told)
        return 0
    from bertfit.cli.plan_tables import print_lever

    print_lever(told)
    return 0


command = with_fields(_plan, PlanConfig.model_fields, unlisted=_OF_TRAINING)
