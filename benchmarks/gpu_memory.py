"""Predicted against measured memory on a real card, the CUDA context included: 20 jobs.

    python benchmarks/gpu_memory.py [--json] [--only N,N]

Each job runs its real step, prediction or pooling in a process of its own (about ten seconds), and
`bertfit.planning.estimate` is asked the same question. Without a card it says so and ends with 2;
preload the stub runtime of ../shared/tools/phantom_gpu to check the script itself.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import islice

import torch

from bertfit.errors import ConfigError
from bertfit.memory.cuda_probe import CudaProbe
from bertfit.memory.device import resolve_device
from bertfit.planning import estimate, program
from bertfit.types import DeviceSpec
from memory_own import build, settings_of

SECONDS = 480  # of one card's time, for all jobs
ROUNDS = 3

_TRAIN = {"kind": "train", "model": "bert", "steps": [[[8, 128]]]}
_PREDICT = {"kind": "predict", "model": "bert", "batches": [[32, 128], [64, 40]]}
JOBS = [
    _TRAIN,
    {**_TRAIN, "precision": "fp16"},
    {**_TRAIN, "precision": "bf16"},
    {**_TRAIN, "precision": "fp16", "attention": "eager"},
    {**_TRAIN, "padded": False, "precision": "fp16"},
    {**_TRAIN, "checkpointed_layers": 12, "precision": "fp16", "steps": [[[8, 256]]]},
    {**_TRAIN, "checkpointed_layers": 12, "precision": "fp16", "autocast_cache": False},
    {**_TRAIN, "used_rows": 3000, "precision": "fp16", "steps": [[[4, 128], [9, 61]], [[2, 300]]]},
    {**_TRAIN, "optimizer": "adamw-8bit"},
    {**_TRAIN, "optimizer": "adafactor"},
    {**_TRAIN, "optimizer": "adamw-foreach"},
    {**_TRAIN, "frozen_embeddings": True, "frozen_layers": 4},
    {**_TRAIN, "expandable_segments": True, "precision": "fp16"},
    {**_TRAIN, "pure_16bit": True, "precision": "bf16"},
    {**_TRAIN, "model": "roberta", "steps": [[[16, 100]]], "precision": "fp16"},
    {**_TRAIN, "model": "electra", "steps": [[[64, 64]]]},
    {**_TRAIN, "model": "modernbert", "precision": "bf16", "steps": [[[4, 256]]]},
    {**_PREDICT, "precision": "fp16"},
    {**_PREDICT, "model": "albert"},
    {**_PREDICT, "kind": "embed", "model": "distilbert", "precision": "fp16"},
]


def possible(job, capability):
    """Return the job with a number format that the card has."""
    if job.get("precision") == "bf16" and capability < (8, 0):
        return {**job, "precision": "fp16"}
    return job


def others_hold():
    """Return what the card holds before this process makes a context, or None: no NVML."""
    try:
        return CudaProbe().used_bytes()
    except ConfigError:
        return None


def run_one(job):
    """Run a job on the card and print its peaks and what the process holds beside them."""
    before = others_hold()
    settings = settings_of(job)
    model = build(job).to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()  # zeros tag every token O, and no gradient is refused
    model, layers = program.prepare(model, settings)
    device = torch.device("cuda")
    ended = False
    try:
        for _round in islice(program.run(model, layers, settings, device), ROUNDS):
            pass
    except torch.OutOfMemoryError:
        ended = True
    torch.cuda.synchronize()
    statistics = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    return {
        "oom": ended,
        "allocated": statistics["allocated_bytes.all.peak"],
        "reserved": statistics["reserved_bytes.all.peak"],
        # Without NVML other programs on the card would be counted as context.
        "context": total - free - torch.cuda.memory_reserved() - (before or 0),
    }


def card():
    """Return the card that is here; its context is the remembered or the catalogue's."""
    properties = torch.cuda.get_device_properties(0)
    try:
        context_bytes = resolve_device(None).context_bytes
    except ConfigError:  # no NVML, as on the stub runtime
        context_bytes = resolve_device(f"{properties.total_memory}").context_bytes
    return DeviceSpec(
        name=properties.name,
        total_bytes=properties.total_memory,
        context_bytes=context_bytes,
        compute_capability=(properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        peak_flops=1.0,
        memory_bandwidth=1.0,
        bf16=properties.major >= 8,
    )


def compare(number, job, device):
    """Run one job in a process of its own and set what was said beside it."""
    environment = dict(os.environ)
    environment["PYTORCH_ALLOC_CONF"] = (
        f"expandable_segments:{job.get('expandable_segments', False)}"
    )
    done = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps(job)],
        env=environment,
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit(f"{job}: {done.stderr[-2000:]}")
    truth = json.loads(lines[-1][7:])
    found = estimate.estimate_memory(lambda: build(job), settings_of(job), device)
    total = truth["reserved"] + truth["context"]
    return {
        "number": number,
        "job": job,
        **truth,
        "reserved_error": found.peak_reserved_bytes / truth["reserved"] - 1,
        "allocated_error": found.peak_allocated_bytes / truth["allocated"] - 1,
        "required": found.required_bytes,
        "total": total,
        "enough": truth["oom"] or found.required_bytes >= total,
    }


def describe(row):
    """Return a line of the table."""
    job = {name: value for name, value in row["job"].items() if name not in ("kind", "model")}
    return (
        f"{row['number']:2} {row['job']['kind']:7} {row['job']['model']:10} "
        f"reserved {row['reserved'] >> 20:6,} MiB {row['reserved_error']:+7.2%}  "
        f"allocated {row['allocated_error']:+7.2%}  context {row['context'] >> 20:4} MiB  "
        f"required {row['required'] >> 20:6,} of {row['total'] >> 20:6,} MiB "
        f"{'' if row['enough'] else 'UNDER '}{'oom ' if row['oom'] else ''}{json.dumps(job)}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", help="numbers of jobs, by commas")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print("RESULT " + json.dumps(run_one(json.loads(options.one))))
        sys.stdout.flush()
        os._exit(0)  # the stub runtime has no orderly end
    if not torch.cuda.is_available():
        print(
            "error: torch sees no CUDA card here, so there is nothing to measure. Run "
            "`bertfit doctor` to see why, or preload the stub runtime to check this script.",
            file=sys.stderr,
        )
        raise SystemExit(2)
    device = card()
    begun = time.perf_counter()
    rows = []
    wanted = [int(n) for n in options.only.split(",")] if options.only else range(len(JOBS))
    for number in wanted:
        if time.perf_counter() - begun > SECONDS:
            print(f"stopped after {SECONDS} s, before job {number}", file=sys.stderr)
            break
        rows.append(compare(number, possible(JOBS[number], device.compute_capability), device))
        print(describe(rows[-1]), file=sys.stderr, flush=True)
    judged = [row for row in rows if not row["oom"]]
    summary = {
        "card": device.name,
        "jobs": len(rows),
        "seconds": round(time.perf_counter() - begun),
        "reserved_max_abs_error": max(abs(row["reserved_error"]) for row in judged),
        "allocated_max_abs_error": max(abs(row["allocated_error"]) for row in judged),
        "context_said": device.context_bytes,
        "context_measured": sorted({row["context"] for row in rows}),
        "under": [row["number"] for row in rows if not row["enough"]],
    }
    print(json.dumps({**summary, "rows": rows} if options.json else summary, indent=1))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
