"""How long an estimate takes over the imports, and how much RAM.

    python benchmarks/estimate_time.py [--model NAME] [--json]
    python benchmarks/estimate_time.py --plan bert-large-uncased=4GiB xlm-roberta-base=3.82GiB

Beside `import torch` and the import of the model's class: the first answer, the traces from which
a whole family of shapes follows, a shape of that family, a grid of 36 shapes, and the table of the
largest batch for six lengths, and plans of 32 windows of 512 tokens for an easy budget, a tight one
and one that is refused. Each but the family's shapes is a process of its own, as a user's.
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time

LENGTHS = (64, 128, 256, 320, 384, 512)
BATCHES = (1, 2, 4, 8, 16, 32)
BUDGETS = ("8GiB", "4GiB", "2GiB", "1GiB")


def question(model, shape):
    from bertfit.planning.request_config import EstimateConfig

    return EstimateConfig(
        model=model, gpu="rtx-3050-4gb", batch_size=shape[0], max_length=shape[1], precision="fp16"
    )


def imports():
    """Import what any user of the model imports."""
    import torch  # noqa: F401
    from transformers import BertForTokenClassification  # noqa: F401


def family(model):
    from bertfit.memory.device import resolve_device
    from bertfit.planning.request import model_builder, settings_of
    from bertfit.planning.shapes import ShapeFamily

    device = resolve_device("rtx-3050-4gb")
    build = model_builder(question(model, (1, 512)))
    return ShapeFamily(build, lambda shape: settings_of(question(model, shape), device), device)


def plan(model, budget):
    """Return the CPU seconds of a plan, or of its refusal, over the imports."""
    from bertfit.errors import BertfitError
    from bertfit.planning.plan import make_plan
    from bertfit.planning.planner import Planner
    from plans_on_stub import facts_of

    imports()
    begun = time.process_time()
    planner = Planner(facts_of({"model": model, "budget": budget}))
    traced = time.process_time()
    try:
        made = make_plan(planner)
    except BertfitError as error:
        made = None
        answer = str(error).splitlines()[0]
    else:
        chosen = made.chosen
        answer = (
            f"{chosen.micro_batch_tokens} tokens, {chosen.checkpointed_layers} layers twice, "
            f"host state {chosen.host_state}, {made.estimate.required_bytes} bytes"
        )
    return {
        "plan": time.process_time() - begun,
        "to begin with": traced - begun,
        "needs": len(planner.needs),
        "answer": answer,
        "RAM MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
    }


def work(what, model):
    """Return the seconds of one kind of question, in this process."""
    if what.startswith("plan="):
        return plan(model, what.removeprefix("plan="))
    from bertfit.memory.host import map_large_blocks

    map_large_blocks()  # as the commands do
    begun = time.perf_counter()
    imports()
    imported = time.perf_counter()
    found = {"imports": imported - begun}
    if what == "first":
        from bertfit.planning.request import estimate

        estimate(question(model, (16, 512)))
    elif what == "capacity":
        from bertfit.planning.capacity import capacity

        capacity(question(model, (1, 8)), LENGTHS)
    else:
        shapes = family(model)
        if what == "grid":
            for length in LENGTHS:
                for batch in BATCHES:
                    shapes.estimate((batch, length))
        else:
            shapes.estimate((16, 512))
            found["family"] = time.perf_counter() - imported
            draw, each = random.Random(0), []
            while len(each) < 20:
                shape = (draw.randint(7, 40), 8 * draw.randint(56, 64))
                traces, start = shapes.num_traces, time.perf_counter()
                shapes.estimate(shape)
                if shapes.num_traces == traces:
                    each.append(time.perf_counter() - start)
            found["shape"], found["slowest shape"] = statistics.median(each), max(each)
    found.setdefault(what, time.perf_counter() - imported)
    found["RAM MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="bert-base-chinese")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plan", nargs="+", metavar="MODEL=BUDGET", help="only these plans")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(work(options.one, options.model)))
        return
    rows = {}
    asked = [(what, options.model) for what in ("first", "family", "grid", "capacity")]
    asked += [(f"plan={budget}", options.model) for budget in BUDGETS]
    if options.plan:
        asked = [(f"plan={text.split('=')[1]}", text.split("=")[0]) for text in options.plan]
    for what, model in asked:
        command = [sys.executable, __file__, "--one", what, "--model", model]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = rows[f"{model} {what}"] = json.loads(done.stdout.splitlines()[-1])
        if not options.json:
            values = "  ".join(
                f"{name} {value:,.3f}" if isinstance(value, float) else f"{name} {value}"
                for name, value in row.items()
            )
            print(f"{model} {what:9} {values}", flush=True)
    if options.json:
        print(json.dumps({"model": options.model, "rows": rows}))


if __name__ == "__main__":
    main()
