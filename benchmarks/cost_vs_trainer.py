"""Is a plan ever slower than the best setting of transformers' Trainer that fits the same budget?

    python benchmarks/cost_vs_trainer.py [--model bert-base-chinese] [--card t4] [--json rows.json]

A step is 32 windows of 512 tokens, 21 tags. For each setting of Trainer (batch x accumulation,
precision, checkpointing) the budget is what its peak was measured to be on the stub runtime, and
the card's context. The plan for that budget is set beside the fastest of all settings that need no
more, both by the cost model: FLOPs, bytes of the card's memory, launches, what crosses the bus.
"""

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from bertfit.memory.device import resolve_device
from bertfit.planning.candidates import JobFacts
from bertfit.planning.cost import StepCost
from bertfit.planning.levers import TrainSettings, encoder_layers
from bertfit.planning.plan import make_plan
from bertfit.planning.planner import Planner
from bertfit.planning.request import card_precision, model_builder
from bertfit.planning.request_config import EstimateConfig
from bertfit.planning.sample import sample_step
from bertfit.types import LengthProfile
from bertfit.units import GIB

MIB = 1 << 20
CARD, LENGTH, WINDOWS, NUM_TAGS = "rtx-3050-4gb", 512, 32, 21


@dataclass(frozen=True)
class Setting:
    """One setting of Trainer, else its defaults, and the peak of what it reserves."""

    batch: int
    precision: str
    checkpointing: bool
    reserved_mib: int

    def __str__(self) -> str:
        words = f"{self.batch}x{WINDOWS // self.batch} {self.precision}"
        return words + " checkpointed" * self.checkpointing


# transformers 5.24, peak of the reserved memory in MiB.
SETTINGS = {
    "bert-base-chinese": (
        Setting(32, "fp32", False, 11816),
        Setting(1, "fp32", False, 2020),
        Setting(8, "fp16", True, 2148),
    ),
    "bert-large-uncased": (Setting(1, "fp32", False, 6102), Setting(1, "fp16", True, 5904)),
    "xlm-roberta-base": (Setting(1, "fp16", True, 5264),),
    "xlm-roberta-large": (Setting(1, "fp16", True, 10552),),
}


def facts_of(model: str, card: str = CARD) -> JobFacts:
    device = replace(resolve_device(card), total_bytes=80 * GIB)
    return JobFacts(
        model=model,
        build_model=model_builder(
            EstimateConfig(model=model, max_length=LENGTH, num_tags=NUM_TAGS)
        ),
        settings=TrainSettings(
            steps=(((1, 1),),), num_tags=NUM_TAGS, precision=card_precision(device)
        ),
        lengths=LengthProfile(histogram={LENGTH: 1000}),
        windows_per_step=WINDOWS,
        num_steps=100,
        device=device,
        budget_bytes=device.total_bytes,
        host_bytes=64 * GIB,
    )


def trainer_seconds(facts: JobFacts, settings: tuple[Setting, ...]) -> dict[Setting, float]:
    """Return the seconds of a step of each setting, by the cost model."""
    found = {}
    layers = len(encoder_layers(facts.build_model()))
    for precision in sorted({setting.precision for setting in settings}):
        levers = replace(facts.settings, precision=precision, padded=False)
        samples = sample_step(
            facts.build_model, lambda steps, k=levers: replace(k, steps=steps), facts.device
        )
        cost = StepCost(samples, facts.device, is_half=precision != "fp32")
        for setting in settings:
            if setting.precision == precision:
                step = [(setting.batch, LENGTH)] * (WINDOWS // setting.batch)
                twice = layers if setting.checkpointing else 0
                found[setting] = cost.seconds(step, twice)
    return found


def compare(model: str, card: str = CARD) -> list[dict]:
    """Set the plan beside Trainer at the budget of each of its settings."""
    facts = facts_of(model, card)
    planner = Planner(facts)
    theirs = trainer_seconds(facts, SETTINGS[model])
    rows = []
    for setting in theirs:
        fitting = [s for s in theirs if s.reserved_mib <= setting.reserved_mib]
        best = min(fitting, key=theirs.__getitem__)
        budget = setting.reserved_mib * MIB + facts.device.context_bytes
        planner.facts = replace(facts, budget_bytes=budget)
        plan = make_plan(planner)
        rows.append(
            {
                "model": model,
                "card": card,
                "budget_mib": budget // MIB,
                "trainer": str(best),
                "trainer_seconds": theirs[best],
                "plan": {
                    "windows": plan.chosen.micro_batch_tokens // LENGTH,
                    "layers_twice": plan.chosen.checkpointed_layers,
                    "host_state": plan.chosen.host_state,
                },
                "plan_seconds": plan.step_seconds,
                "required_mib": plan.estimate.required_bytes // MIB,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SETTINGS, help="only this one")
    parser.add_argument("--card", default=CARD, help="whose speed counts")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for model in [args.model] if args.model else SETTINGS:
        for row in compare(model, args.card):
            rows.append(row)
            plan = row["plan"]
            print(
                f"{model:20} {row['budget_mib']:6} MiB: Trainer {row['trainer']:21} "
                f"{row['trainer_seconds']:6.2f} s a step; plan {row['plan_seconds']:6.2f} s "
                f"({row['trainer_seconds'] / row['plan_seconds']:.2f}x): "
                f"{plan['windows']} windows, {plan['layers_twice']} layers twice, state on the "
                f"{'host' if plan['host_state'] else 'card'}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0 if all(r["plan_seconds"] <= r["trainer_seconds"] for r in rows) else 1)


if __name__ == "__main__":
    main()
