"""Predicted against true host memory: a training run and a prediction run of a model folder.

    python benchmarks/host_memory.py FOLDER [--device cuda] [--json]

Each run is a process of its own. The most that the system says it held (VmHWM) is set beside
`MemoryEstimate.host_bytes`, and what it held before a model was loaded beside the runtime that the
estimate counts. For `--device cuda` without a card, preload the stub runtime of
../shared/tools/phantom_gpu: PyTorch loads its CUDA libraries there, but no driver keeps anything.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

TEXT = "Ada B-PER\nlives O\nin O\nRome B-LOC\n. O\n\n"


def held_bytes(field):
    """Return VmRSS or VmHWM of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}")


def work(kind, folder, device, place):
    """Run one job in this process; return what was held before it and at most."""
    if device == "cuda":
        torch.zeros(1, device="cuda")
    if kind == "predict":
        from bertfit.jobs.predict import load

        before = held_bytes("VmRSS")
        list(load(folder, device=device).entities(["Ada lives in Rome."] * 8))
        return before
    from bertfit.config import job_config
    from bertfit.jobs.train import train

    data = Path(place) / "data.txt"
    data.write_text(TEXT * 8)
    job = job_config(
        {"model": folder, "train_file": [data], "eval_file": [data], "output_dir": f"{place}/run"}
        | {"device": device, "num_train_epochs": 2, "batch_size": 4}
    )
    before = held_bytes("VmRSS")
    train(job, progress=False, say=lambda text: None)
    return before


def predicted(kind, folder):
    from bertfit.planning.request import estimate
    from bertfit.planning.request_config import EstimateConfig

    asked = EstimateConfig(model=folder, mode=kind, gpu="rtx-3050-4gb", max_length=16, batch_size=4)
    return estimate(asked)[0].host_bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", choices=["train", "predict"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if options.one:
            before = work(options.one, options.folder, options.device, place)
            print("RESULT " + json.dumps({"before": before, "peak": held_bytes("VmHWM")}))
            sys.stdout.flush()
            os._exit(0)  # the stub runtime has no orderly end
    rows = []
    for kind in ("train", "predict"):
        command = [sys.executable, __file__, options.folder, "--device", options.device]
        done = subprocess.run([*command, "--one", kind], capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not lines:
            raise SystemExit(done.stderr[-2000:])
        rows.append({"job": kind, **json.loads(lines[-1][7:])})
    for row in rows:
        row["predicted"] = predicted(row["job"], options.folder)
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        mib = {name: f"{row[name] / 2**20:,.0f} MiB" for name in ("before", "peak", "predicted")}
        print(f"{row['job']:8} before {mib['before']}, most {mib['peak']}, predicted", end=" ")
        print(mib["predicted"])


if __name__ == "__main__":
    main()
