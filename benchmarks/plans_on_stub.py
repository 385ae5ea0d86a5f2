"""Do plans run where they say they do? Each is run on the CUDA build of PyTorch, at its budget.

    python benchmarks/plans_on_stub.py figures                    # the plans of docs/plan.md
    python benchmarks/plans_on_stub.py sweep --first 0 --count 16 # a piece of the sweep
    python benchmarks/plans_on_stub.py sweep --json rows.json     # goes on where it ended
    python benchmarks/plans_on_stub.py table --json rows.json     # the sweep as in docs/plan.md

The plan is made for a card of the stub runtime ../shared/tools/phantom_gpu, where every request for
memory is PyTorch's own and kernels do nothing. There the very step runs in a process of its own,
with all its micro-batches (in the sweep at most three of one shape), twice, and torch's allocator
is capped at the budget less the context: a plan that needs more fails with a real out-of-memory.
What is compared is the highest of the driver's memory against the prediction. What cannot fit is
refused; then the plan that needs least runs within the floor that the refusal names.
"""

import argparse
import dataclasses
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from bertfit.memory.device import resolve_device
from bertfit.planning import program
from bertfit.planning.candidates import Candidate, JobFacts, Pins, cut_step
from bertfit.planning.choice import choose
from bertfit.planning.levers import TrainSettings
from bertfit.planning.plan import make_plan
from bertfit.planning.planner import Planner
from bertfit.planning.request import model_builder
from bertfit.planning.request_config import EstimateConfig
from bertfit.types import LengthProfile
from bertfit.units import GIB, parse_bytes
from stub import Stub, serve

CARD = "rtx-3050-4gb"
NUM_TAGS, WINDOWS = 21, 32
# Steps of a plan that run: the third may still take a segment more.
ROUNDS = 4
# The stub runtime plays a card of so many multiprocessors; some temporaries depend on it.
MULTIPROCESSORS = 20

BUDGETS = ("1GiB", "1.5GiB", "2GiB", "3GiB", "3.82GiB", "6GiB", "8GiB")
MODELS = (
    "bert-base-chinese",
    "bert-large-uncased",
    "xlm-roberta-base",
    "answerdotai/ModernBERT-base",
)
LENGTHS = (64, 128, 256, 512)
# Micro-batches of one shape that a step of the sweep runs: all others ask for what the second did,
# and where the state is on the host each costs a pass over all weights.
MOST_ALIKE = 3

# Effective batch 32 x 512, 21 tags: what the plan must be able to do.
FIGURES = (
    {"model": "bert-base-chinese", "budget": "2GiB"},
    {"model": "bert-large-uncased", "budget": "2GiB"},
    {"model": "bert-base-chinese", "budget": "4GiB", "pins": {"activation_checkpointing": 0}},
    {"model": "bert-large-uncased", "budget": "4GiB", "pins": {"micro_batch_tokens": 8 * 512}},
    {"model": "bert-large-uncased", "budget": "4GiB"},
    {"model": "xlm-roberta-base", "budget": "3.82GiB"},
    {"model": "xlm-roberta-large", "budget": "4GiB"},
)


def sweep():
    for model in MODELS:
        for length in LENGTHS:
            for budget in BUDGETS:
                yield {"model": model, "length": length, "budget": budget}


def facts_of(case: dict) -> JobFacts:
    length = case.get("length", 512)
    budget = parse_bytes(case["budget"])
    card = replace(resolve_device(CARD), total_bytes=max(budget, 4 * GIB))
    card = replace(card, multiprocessors=MULTIPROCESSORS)
    return JobFacts(
        model=case["model"],
        build_model=model_builder(
            EstimateConfig(model=case["model"], max_length=length, num_tags=NUM_TAGS)
        ),
        settings=TrainSettings(steps=(((1, 1),),), num_tags=NUM_TAGS, precision="bf16"),
        # Where some window is shorter a mask is made, whatever it holds.
        lengths=LengthProfile(
            histogram={length: 1000} if case.get("even", True) else {length: 1000, length - 1: 1}
        ),
        windows_per_step=WINDOWS,
        num_steps=100,
        device=card,
        budget_bytes=budget,
        host_bytes=64 * GIB,
        pins=Pins(**case.get("pins", {})),
    )


def stub(script: str = __file__, *, even: bool = True) -> Stub:
    """Start the card that the plans are made for; a budget is a cap on it, as in training.

    Args:
        script: whose jobs run there.
        even: all windows are of one length, so masks are full.
    """
    return Stub(
        script,
        PHANTOM_SM="8.6",
        PHANTOM_SMS=str(MULTIPROCESSORS),
        PHANTOM_BOOL=str(int(even)),  # what a card says of `attention_mask.all()`
        PHANTOM_MEMORY=str(16 * GIB),
        PHANTOM_CONTEXT="0",
    )


def run_case(case: dict, card: Stub, planner: Planner | None = None) -> dict:
    """Plan a case and run the plan on the stub runtime; where nothing fits, the frugalest."""
    facts = facts_of(case)
    begun = time.perf_counter()
    planner = planner or Planner(facts)
    planner.facts = facts  # the budget is no part of what the planner remembers
    if choose(planner, facts.budget_bytes, facts.host_bytes)[0] is None:
        # The refusal also names trade-offs, each with an estimate of its own; its floor is enough.
        frugal = planner.most_frugal()
        planned = time.perf_counter()
        floor = planner.need(frugal).required_bytes
        planner.facts = replace(facts, budget_bytes=floor)
        row = run_chosen({**case, "floor": floor}, frugal, floor, card, planner)
    else:
        plan = make_plan(planner)
        planned = time.perf_counter()
        row = run_chosen(case, plan.chosen, facts.budget_bytes, card, planner)
        row["tokens_per_second"] = plan.tokens_per_second
    row["plan_seconds"], row["run_seconds"] = planned - begun, time.perf_counter() - planned
    return row


def run_chosen(case: dict, chosen: Candidate, budget: int, card: Stub, planner: Planner) -> dict:
    """Run the step of a candidate on the stub runtime, within a budget."""
    facts, need = planner.facts, planner.need_in_fence(chosen)
    step = cut_step(facts.steps()[0], chosen.micro_batch_tokens)
    if "length" in case:  # of the sweep
        step = [s for place, s in enumerate(step) if step[:place].count(s) < MOST_ALIKE]
    settings = replace(planner.settings(chosen), steps=(tuple(step),))
    cap = budget - facts.device.context_bytes
    truth = card.run({**case, "settings": dataclasses.asdict(settings), "cap": cap})
    row = {
        **case,
        "chosen": dataclasses.asdict(chosen),
        "required_bytes": need.required_bytes,
        "predicted_reserved": need.peak_reserved_bytes,
        **truth,
    }
    if "reserved" in truth:
        row["error"] = need.peak_reserved_bytes / truth["reserved"] - 1
        row["over_budget"] = truth["reserved"] > cap
    return row


def run_one(job: dict) -> dict:
    """Inside the stub runtime: run the plan's step under the cap."""
    from bertfit.engine.fence import set_expandable_segments

    fields = job["settings"]
    fields["steps"] = tuple(tuple(map(tuple, step)) for step in fields["steps"])
    settings = TrainSettings(**fields)
    device = torch.device("cuda", 0)
    set_expandable_segments(settings.expandable_segments)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, job["cap"] / total), device)
    build = model_builder(
        EstimateConfig(
            model=job["model"], max_length=job.get("length", 512), num_tags=settings.num_tags
        )
    )
    model, layers = program.prepare(build().to_empty(device="cpu"), settings)
    rounds = program.run(model, layers, settings, device)
    try:
        for _round in range(ROUNDS):
            next(rounds)
    except torch.OutOfMemoryError as error:
        return {"failed": str(error)[:200]}
    stats = torch.cuda.memory_stats()
    return {
        "reserved": stats["reserved_bytes.all.peak"],
        "allocated": stats["allocated_bytes.all.peak"],
        "alloc_retries": stats["num_alloc_retries"],
    }


def show(row: dict) -> None:
    budget = row["budget"] if isinstance(row["budget"], str) else f"{row['budget'] >> 20}MiB"
    name = f"{row['model']:28} {row.get('length', 512):4} {budget:>8} "
    if "floor" in row:
        name += f" refused, at its floor of {row['floor'] / GIB:.2f} GiB:"
    chosen = row["chosen"]
    levers = (
        f"{chosen['micro_batch_tokens'] // row.get('length', 512):3} windows, "
        f"{chosen['checkpointed_layers']:2} twice, {'host' if chosen['host_state'] else 'card'}"
    )
    if "failed" in row:
        print(f"{name} {levers} FAILED: {row['failed']}")
        return
    print(
        f"{name} {levers}, predicted {row['predicted_reserved'] >> 20} MiB, "
        f"peak {row['reserved'] >> 20} MiB ({row['error']:+.2%}), retries {row['alloc_retries']}"
    )


def print_table(known: dict) -> None:
    """Print the sweep as the table of docs/plan.md."""
    rows = {(r["model"], r["length"], r["budget"]): r for r in known.values() if "length" in r}
    print("| model | tokens | " + " | ".join(BUDGETS).replace("GiB", " GiB") + " |")
    print("| --- | --- |" + " --- |" * len(BUDGETS))
    for model in MODELS:
        for length in LENGTHS:
            cells = [cell(rows.get((model, length, budget))) for budget in BUDGETS]
            print(f"| {model} | {length} | " + " | ".join(cells) + " |")


def cell(row: dict | None) -> str:
    """Return a plan in a few signs: windows at once, layers twice, and whether the host helps."""
    if row is None or "failed" in row:
        return "?"
    if "floor" in row:
        return f"({row['floor'] / GIB:.2f})"
    chosen = row["chosen"]
    twice = f"+{chosen['checkpointed_layers']}" if chosen["checkpointed_layers"] else ""
    windows = chosen["micro_batch_tokens"] // row["length"]
    return f"{windows}{twice}{' h' if chosen['host_state'] else ''}"


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        serve(run_one)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("figures", "sweep", "table"))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="rows go there; those there are not run again")
    args = parser.parse_args()
    known = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    if args.what == "table":
        print_table(known)
        return
    card = stub()
    cases = list(FIGURES if args.what == "figures" else sweep())
    planners: dict[tuple, Planner] = {}
    for number in range(args.first, min(len(cases), args.first + args.count)):
        if f"{args.what} {number}" in known:
            continue
        case = cases[number]
        kind = (case["model"], case.get("length", 512), json.dumps(case.get("pins", {})))
        if kind not in planners:
            planners = {kind: Planner(facts_of(case))}
        row = run_case(case, card, planners[kind])
        show(row)
        sys.stdout.flush()
        known[f"{args.what} {number}"] = row
        if args.json:
            args.json.write_text(json.dumps(known, indent=1) + "\n")
    ran = [row for row in known.values() if "error" in row]
    failed = [row for row in known.values() if "failed" in row]
    if ran:
        errors = [row["error"] for row in ran]
        print(
            f"{len(ran)} ran, {len(failed)} failed, "
            f"{sum('floor' in row for row in known.values())} refused; predicted against peak "
            f"{min(errors):+.2%} to {max(errors):+.2%}; over the budget: "
            f"{sum(row['over_budget'] for row in ran)}"
        )
    sys.exit(1 if failed or any(row["over_budget"] for row in ran) else 0)


if __name__ == "__main__":
    main()
