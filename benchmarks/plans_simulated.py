"""Do plans run where they say they do, on the simulated card? The step is really computed.

    python benchmarks/plans_simulated.py                # all, those of least work first
    python benchmarks/plans_simulated.py --first 0 --count 2 --json rows.json

The plans are those of `plans_on_stub.py figures`: 32 windows of 512 tokens in a step, 21 tags. Each
trains a model of random weights for one update of two micro-batches of the planned shape, on the
processor, with its memory counted by the card that `--device sim:` is. Steps that are counted and
not computed follow until the peak is steady. Beside it is what the plan has predicted.
"""

import argparse
import json
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bertfit.engine.step import train_step
from bertfit.models.encoder import build_classifier
from bertfit.planning import program
from bertfit.planning.plan import make_plan
from bertfit.planning.planner import Planner
from bertfit.planning.request import model_fields
from bertfit.planning.simulated_card import SimulatedCard
from bertfit.types import Batch
from plans_on_stub import FIGURES, NUM_TAGS, facts_of

MIB = 1 << 20
CPU = torch.device("cpu")
# The order in which they take longer on a processor.
ORDER = (0, 2, 5, 1, 4, 3, 6)


def model_of(name: str) -> torch.nn.Module:
    tags = ("O", *(f"T{number}" for number in range(1, NUM_TAGS)))
    return build_classifier(model_fields(name), tags)


def batch_of(shape: tuple[int, int], vocabulary: int, draw: np.random.Generator) -> Batch:
    tokens = shape[0] * shape[1]
    return Batch(
        input_ids=draw.integers(5, vocabulary, shape),
        attention_mask=None,
        labels=draw.integers(0, NUM_TAGS, shape),
        num_labelled=tokens,
        num_tokens=tokens,
    )


def run_case(case: dict) -> dict:
    facts = facts_of(case)
    plan = make_plan(Planner(facts))
    settings = plan.settings
    (shapes,) = settings.steps
    torch.manual_seed(0)
    model, __ = program.prepare(model_of(case["model"]), settings)
    card = SimulatedCard(
        facts.device,
        budget_bytes=facts.budget_bytes,
        precision=settings.precision,
        expandable_segments=settings.expandable_segments,
        autocast_cache=settings.autocast_cache,
    )

    def make_update(model, device, precision):
        return program.place(model, replace(settings, precision=precision), device)

    card.load(model, make_update, facts.longest)
    update = make_update(model.train(), CPU, settings.precision)
    draw = np.random.default_rng(0)
    # Windows of one length: a second shape in a step is a smaller last micro-batch.
    batches = [batch_of(shapes[0], model.config.vocab_size, draw) for __ in range(2)]
    before = update.masters[0].detach().clone()
    begun = time.perf_counter()
    result = card.counted(train_step)(
        model,
        update,
        batches,
        device=CPU,
        precision=settings.precision,
        autocast_cache=settings.autocast_cache,
    )
    seconds = time.perf_counter() - begun
    rest = [batch_of(shape, model.config.vocab_size, draw) for shape in shapes]
    for __ in range(2):
        card.charge(rest, with_update=True)
    seen, predicted = card.peak_reserved_bytes(), plan.estimate.peak_reserved_bytes
    return {
        **case,
        "windows": shapes[0][0],
        "layers_twice": settings.checkpointed_layers,
        "host_state": settings.host_state,
        "predicted": predicted,
        "seen": seen,
        "error": predicted / seen - 1,
        "loss": float(result.loss),
        "refused": float(result.refused),
        "moved": float((update.masters[0].detach() - before).abs().max()),
        "alloc_retries": card.num_alloc_retries(),
        "step_seconds": seconds,
        "ram": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=len(ORDER))
    parser.add_argument("--json", type=Path, help="rows go there, beside those of other pieces")
    args = parser.parse_args()
    known = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    good = True
    for number in ORDER[args.first : args.first + args.count]:
        row = run_case(FIGURES[number])
        known[str(number)] = row
        good &= abs(row["error"]) <= 0.02 and row["moved"] > 0 and not row["refused"]
        print(
            f"{row['model']:20} {row['budget']:>8}: {row['windows']} windows, "
            f"{row['layers_twice']} layers twice, "
            f"{'host' if row['host_state'] else 'card'}, predicted {row['predicted'] // MIB} MiB, "
            f"seen {row['seen'] // MIB} MiB ({row['error']:+.2%}), loss {row['loss']:.3f}, "
            f"{row['step_seconds']:.0f} s, RAM {row['ram'] / 1e9:.1f} GB",
            flush=True,
        )
        if args.json:
            args.json.write_text(json.dumps(known, indent=1) + "\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
