"""Predicted against true memory: the cases that PyTorch's own allocator was asked about.

    python benchmarks/memory_truth.py [--cases FILE] [--json] [--only N,N] [--own]

Exit code: 0; 1 where a case failed or a verdict is wrong; 2 for an argument that makes no sense.

The truth is a file of cases with their results (see ../shared/data/memory_truth). Each case is
traced with the plain loop that made the truth, replayed in the simulated allocator, and compared.
"""

import argparse
import contextlib
import gc
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import transformers

from bertfit.memory.allocator import CachingAllocator
from bertfit.memory.kernels import Chip
from bertfit.memory.trace import record

SHARED = Path(__file__).resolve().parents[2] / "shared"
AMP = {"fp16-amp": torch.float16, "bf16-amp": torch.bfloat16}
PURE = {"pure-bf16": torch.bfloat16, "pure-fp16": torch.float16}


def build(case, models):
    spec = models.NAMES[case["model"]] if isinstance(case["model"], str) else case["model"]
    spec = dict(spec)
    prefix, token_types = models.TYPES[spec.pop("type")]
    config = getattr(transformers, prefix + "Config")(num_labels=case["num_labels"], **spec)
    config._attn_implementation = case["attention"]
    head = {"token": "ForTokenClassification", "sequence": "ForSequenceClassification"}
    with torch.device("meta"):
        model = getattr(transformers, prefix + head[case["task"]])(config)
    return model, config, token_types


def make_batch(case, token_types, labels, number):
    length = case["seq_len"]
    if isinstance(length, list):
        length = length[number % len(length)]
    shape = (case["batch"], length)
    batch = {"input_ids": torch.zeros(shape, dtype=torch.long)}
    if token_types:
        batch["token_type_ids"] = torch.zeros(shape, dtype=torch.long)
    if case["mask"] != "none":
        # The stub runtime reads zeros, whatever a mask holds, or ones for a full one.
        fill = torch.ones if case["mask"] == "full" else torch.zeros
        batch["attention_mask"] = fill(shape, dtype=torch.long)
    if labels:
        wanted = shape if case["task"] == "token" else shape[:1]
        batch["labels"] = torch.zeros(wanted, dtype=torch.long)
    return batch


def make_optimizer(kind, parameters):
    if kind in ("adamw-foreach", "adamw-fused"):
        return torch.optim.AdamW(
            parameters, lr=5e-5, weight_decay=0.01, **{kind.split("-")[1]: True}
        )
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=0.01)
    if kind == "sgd-momentum":
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    if kind == "adafactor":
        return transformers.optimization.Adafactor(
            parameters, lr=5e-5, scale_parameter=False, relative_step=False
        )
    assert kind == "adafactor-torch", kind
    return torch.optim.Adafactor(parameters, lr=5e-5)


def freeze(case, model, config):
    base = model.base_model
    if case["freeze_embeddings"]:
        base.embeddings.requires_grad_(False)
    if case["freeze_layers"]:
        stack = base.transformer if config.model_type == "distilbert" else base
        if hasattr(stack, "encoder"):
            layers = stack.encoder.layer
        else:
            layers = getattr(stack, "layers", None) or stack.layer
        for layer in layers[: case["freeze_layers"]]:
            layer.requires_grad_(False)


def train(case, model, config, token_types, trace):
    amp = AMP.get(case["precision"])
    if case["precision"] in PURE:
        model = model.to(PURE[case["precision"]])
    model = model.to("cuda")
    model.train()
    if case["checkpointing"]:
        # transformers 5.24 renamed it and warns of the old name.
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    freeze(case, model, config)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(case["optimizer"], parameters)
    scaler = torch.amp.GradScaler("cuda", enabled=case["precision"] == "fp16-amp")
    k = case["grad_accum"]
    for step in range(case["steps"]):
        optimizer.zero_grad(set_to_none=True)
        for micro in range(k):
            trace.mark(f"step {step} forward {micro}")
            batch = make_batch(case, token_types, True, step * k + micro)
            batch = {name: tensor.to("cuda") for name, tensor in batch.items()}
            with torch.autocast("cuda", dtype=amp) if amp else contextlib.nullcontext():
                outputs = model(**batch)
                loss = outputs.loss / k
            trace.mark(f"step {step} backward {micro}")
            scaler.scale(loss).backward()
        trace.mark(f"step {step} optimizer")
        if case["clip"]:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer)
        scaler.update()


def infer(case, model, config, token_types, trace):
    amp = AMP.get(case["precision"])
    if case["precision"] in PURE:
        model = model.to(PURE[case["precision"]])
    model = model.to("cuda")
    model.eval()
    predictions = None
    with torch.inference_mode():
        for step in range(case["steps"]):
            trace.mark(f"batch {step}")
            batch = make_batch(case, token_types, False, step)
            batch = {name: tensor.to("cuda") for name, tensor in batch.items()}
            with torch.autocast("cuda", dtype=amp) if amp else contextlib.nullcontext():
                outputs = model(**batch)
            predictions = outputs.logits.argmax(-1).cpu()
    return predictions


def trace_case(case, multiprocessors, models):
    """Trace the plain loop of a case."""
    card = Chip(
        compute_capability=tuple(int(n) for n in case["sm"].split(".")),
        multiprocessors=multiprocessors,
    )
    model, config, token_types = build(case, models)
    with record(card) as trace:
        (infer if case["optimizer"] == "none" else train)(case, model, config, token_types, trace)
    return trace


def replay(case, trace):
    """Replay a trace on the card of a case; the allocator, and where it stopped."""
    capacity = case["memory"] - case["context"] if case["memory"] else None
    allocator = CachingAllocator(
        capacity, card_bytes=case["memory"], expandable_segments=case["expandable"]
    )
    held, sizes = {}, trace.sizes
    for at, entry in enumerate(trace.stream):
        if entry < 0:
            allocator.free(held.pop(~entry))
        else:
            block = allocator.malloc(sizes[entry])
            if block is None:
                return allocator, at
            held[entry] = block
    return allocator, None


def error_of(found, truth):
    """Return the error as a share of the truth, which is 0 where not one tensor found room."""
    return (found - truth) / truth if truth else float(found > 0)


def compare(number, case, result, models):
    begun = time.perf_counter()
    trace = trace_case(case, result["multiprocessors"], models)
    allocator, stopped = replay(case, trace)
    return {
        "number": number,
        "case": case,
        "reserved": error_of(allocator.peak_reserved_bytes, result["max_memory_reserved"]),
        "allocated": error_of(allocator.peak_allocated_bytes, result["max_memory_allocated"]),
        "requested": error_of(allocator.peak_requested_bytes, result["max_requested"]),
        "oom": stopped is not None,
        "verdict_wrong": (stopped is not None) != result["oom"],
        "judged": not result["oom"] and stopped is None,
        "seconds": time.perf_counter() - begun,
    }


def row_of(compare, number, case, *others, key="case"):
    """Compare a case; one that cannot be compared is a wrong row, and the others go on."""
    try:
        return compare(number, case, *others)
    except Exception as error:  # noqa: BLE001 (whatever it is, the row says it)
        return {
            "number": number,
            key: case,
            "failed": f"{type(error).__name__}: {error}",
            "oom": False,
            "verdict_wrong": True,
            "judged": False,
        }


def summarize(rows):
    judged = [row for row in rows if row["judged"]]
    summary = {"cases": len(rows)}
    for name in ("reserved", "allocated"):
        errors = [row[name] for row in judged] or [0.0]
        summary[name] = {
            "median_abs_error": statistics.median(map(abs, errors)),
            "max_abs_error": max(map(abs, errors)),
            "max_under": max(0.0, -min(errors)),
        }
    summary["verdicts_wrong"] = sum(row["verdict_wrong"] for row in rows)
    summary["failed"] = sum("failed" in row for row in rows)  # each is a wrong verdict too
    return summary


def describe(row):
    if "failed" in row:
        what = json.dumps(row.get("job") or row.get("case"))
        return f"{row['number']:4d} FAILED {row['failed']} {what}"
    errors = f"{row['number']:4d} {row['reserved']:+8.3%} {row['allocated']:+8.3%}"
    if "job" in row:
        return f"{errors} {json.dumps(row['job'])}"
    case = row["case"]
    model = case["model"] if isinstance(case["model"], str) else case["model"]["type"] + "*"
    flags = [
        case["precision"],
        case["attention"],
        case["optimizer"],
        case["task"],
        case["mask"],
        "sm" + case["sm"],
    ]
    flags += [
        name for name in ("checkpointing", "clip", "expandable", "freeze_embeddings") if case[name]
    ]
    flags += [f"accum {case['grad_accum']}"] if case["grad_accum"] > 1 else []
    flags += [f"freeze {case['freeze_layers']}"] if case["freeze_layers"] else []
    verdict = " WRONG VERDICT" if row["verdict_wrong"] else " oom" if row["oom"] else ""
    length = case["seq_len"] if isinstance(case["seq_len"], int) else "varied"
    return f"{errors} {model} {case['batch']}x{length} {' '.join(flags)}{verdict}"


def chosen(parser, only, num_cases):
    """Read `--only`; without it, every number."""
    if only is None:
        return range(num_cases)
    try:
        numbers = [int(part) for part in only.split(",")]
    except ValueError:
        numbers = [-1]
    if not all(0 <= number < num_cases for number in numbers):
        message = f"--only {only}: give numbers from 0 to {num_cases - 1}, by commas: 3,14"
        parser.exit(2, f"error: {message}\n")
    return numbers


def own(parser, only):
    import memory_own
    import stub

    jobs = list(memory_own.jobs())
    numbers = chosen(parser, only, len(jobs))
    card, rows = stub.Stub(memory_own.__file__), []
    for number in numbers:
        row = row_of(memory_own.compare, number, jobs[number], card, key="job")
        rows.append(row)
        print(describe(row), file=sys.stderr, flush=True)
    card.close()
    return rows


def report(rows, as_json):
    """Print the summary, and say by the exit code whether all is as it should be."""
    summary = summarize(rows)
    code = 1 if summary["verdicts_wrong"] or summary["failed"] else 0
    if as_json:
        print(json.dumps(summary))
        return code
    print("largest errors: reserved, allocated")
    for row in sorted((r for r in rows if r["judged"]), key=lambda r: -abs(r["reserved"]))[:10]:
        print(describe(row))
    for row in rows:
        if "failed" in row:
            print(describe(row))
    print(json.dumps(summary, indent=1))
    return code


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=Path, default=SHARED / "data/memory_truth/cases.json")
    parser.add_argument("--only", help="numbers of cases, with commas")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--own", action="store_true", help="bertfit's own step, measured here")
    options = parser.parse_args()
    if options.own:
        return report(own(parser, options.only), options.json)
    sys.path.insert(0, str(SHARED / "tools/phantom_gpu"))
    import models

    cases = json.loads(options.cases.read_text())["cases"]
    rows = []
    for number in chosen(parser, options.only, len(cases)):
        case, result = cases[number]["case"], cases[number]["result"]
        row = row_of(compare, number, case, result, models)
        rows.append(row)
        print(describe(row), f"{row.get('seconds', 0.0):.1f} s", file=sys.stderr, flush=True)
        gc.collect()
    return report(rows, options.json)


if __name__ == "__main__":
    sys.exit(main())
