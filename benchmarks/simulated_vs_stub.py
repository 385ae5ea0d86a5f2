"""Compare the simulated card's peak with that of the stub runtime, on the same steps.

    benchmarks/simulated_vs_stub.py --stub ../shared/tools/phantom_gpu/run.sh

Each setting runs twice: `Steps` on the simulated card (nothing is computed, only counted), and in a
process under the stub runtime with device=cuda. Peak reserved and allocated bytes are compared.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from bertfit.config import Precision
from bertfit.data.tags import label_scheme
from bertfit.engine.fence import fence
from bertfit.engine.host_state import make_update as place_model
from bertfit.engine.optim import Update, parameter_groups
from bertfit.engine.recovery import Steps
from bertfit.engine.step import StepResult
from bertfit.engine.workplace import choose_workplace
from bertfit.memory.device import present_device
from bertfit.models.encoder import build_classifier
from bertfit.planning.simulated_card import SimulatedCard
from bertfit.types import DeviceSpec, Window
from bertfit.units import GIB

TAGS = label_scheme(["LOC", "ORG", "PER"], "bio").tags
BASE = {"model_type": "bert", "vocab_size": 21128}
SMALL = {"model_type": "bert", "vocab_size": 8000, "hidden_size": 384, "num_attention_heads": 6,
         "num_hidden_layers": 6, "intermediate_size": 1536}  # fmt: skip
# model, precision, tokens of a micro-batch, shortest and longest window, texts in a step, budget
SETTINGS = [
    (SMALL, "fp32", 2048, 8, 128, 16, None),
    (SMALL, "bf16", 2048, 8, 128, 16, None),
    (SMALL, "fp16", 4096, 20, 512, 16, None),
    (SMALL, "fp32", 8192, 100, 512, 32, None),
    (SMALL, "bf16", 512, 8, 512, 8, None),
    (BASE, "fp32", 2048, 8, 128, 16, None),
    (BASE, "bf16", 4096, 16, 256, 32, None),
    (BASE, "fp16", 1024, 64, 512, 8, None),
    (BASE, "bf16", 8192, 8, 512, 16, 4 * GIB),
    (SMALL, "fp32", 8192, 8, 512, 32, GIB),
]
STEPS = 4


def windows(number: int, step: int) -> list[Window]:
    __, __, __, low, high, count, __ = SETTINGS[number]
    rng = np.random.default_rng([number, step])
    made = []
    for index, length in enumerate(rng.integers(low, high + 1, count)):
        units = int(length) - 2
        made.append(
            Window(
                index=index,
                input_ids=np.array([101, *rng.integers(200, 7900, units), 102], dtype=np.int32),
                units=np.array([(i, i + 1) for i in range(units)], dtype=np.int32).reshape(-1, 2),
                first_token=np.arange(1, units + 1, dtype=np.int32),
                labels=rng.integers(0, len(TAGS), units).astype(np.int16),
                owned=(0, units),
            )
        )
    return made


def make_update(model: torch.nn.Module, device: torch.device, precision: Precision) -> Update:
    groups = parameter_groups(
        model, [], learning_rate=5e-5, head_learning_rate=1e-3, weight_decay=0.01
    )
    return place_model(model, groups, device=device, precision=precision, max_grad_norm=1.0)


def run_steps(number: int, model: torch.nn.Module, update: Update, **more: object) -> list[int]:
    steps = Steps(model, update, pad_id=0, seed=1, **more)  # type: ignore[arg-type]
    return [steps.run(step, windows(number, step)).oom_retries for step in range(STEPS)]


def on_stub(number: int) -> dict[str, object]:
    fields, precision, tokens, *__, budget = SETTINGS[number]
    place = choose_workplace("cuda", precision)
    with fence(place.device, budget, place.context_bytes):
        model = build_classifier(fields, TAGS).train()
        retries = run_steps(
            number, model, make_update(model, place.device, precision),
            device=place.device, precision=precision, card=place.gauge, micro_batch_tokens=tokens,
        )  # fmt: skip
    spec = present_device(0)
    return {
        "reserved": torch.cuda.max_memory_reserved(),
        "allocated": torch.cuda.max_memory_allocated(),
        "retries": retries,
        "spec": {name: getattr(spec, name) for name in DeviceSpec.__slots__},
    }


def on_simulated(number: int, spec: DeviceSpec) -> dict[str, object]:
    fields, precision, tokens, *__, budget = SETTINGS[number]
    card = SimulatedCard(spec, budget_bytes=budget, precision=precision)
    model = build_classifier(fields, TAGS).train()

    def count(model: object, update: object, batches: object, **more: object) -> StepResult:
        card.charge(batches, with_update=True)
        return StepResult(loss=torch.ones(()), grad_norm=torch.ones(()), refused=torch.zeros(()))

    card.load(model, make_update, 512)
    retries = run_steps(
        number, model, make_update(model, torch.device("cpu"), precision),
        device=torch.device("cpu"), precision=precision,
        card=card, micro_batch_tokens=tokens, step=count, gradients=card.gradients,
    )  # fmt: skip
    return {
        "reserved": card.allocator.peak_reserved_bytes,
        "allocated": card.allocator.peak_allocated_bytes,
        "retries": retries,
        "traces": card.events.num_traces,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stub", type=Path, help="what runs Python on the stub runtime")
    parser.add_argument("--one", type=int, help="run one setting on the stub, in this process")
    parser.add_argument("--only", help="numbers of settings, with commas")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(on_stub(args.one)), flush=True)
        os._exit(0)  # the stub aborts at exit
    rows = []
    for number in map(int, args.only.split(",")) if args.only else range(len(SETTINGS)):
        command = [str(args.stub), __file__, "--one", str(number)]
        out = subprocess.run(
            command, check=True, capture_output=True, text=True,
            env={"PHANTOM_MEMORY": "12GiB", **os.environ},
        )  # fmt: skip
        true = json.loads(out.stdout.splitlines()[-1])
        given = true.pop("spec")
        given["compute_capability"] = tuple(given["compute_capability"])
        ours = on_simulated(number, DeviceSpec(**given))
        row = {
            "number": number,
            "reserved": ours["reserved"] / true["reserved"] - 1,
            "allocated": ours["allocated"] / true["allocated"] - 1,
            "stub": true,
            "simulated": ours,
        }
        rows.append(row)
        print(
            f"{number:2d} reserved {row['reserved']:+8.3%} allocated {row['allocated']:+8.3%}  "
            f"retries {true['retries']} {ours['retries']}  traces {ours['traces']}",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(int(max(abs(row["reserved"]) for row in rows) > 0.02))


if __name__ == "__main__":
    main()
