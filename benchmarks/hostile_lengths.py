"""Train bert-base steps with lengths in hostile order inside budgets; memory must never end a run.

    python benchmarks/hostile_lengths.py                              # on the card of this machine
    PHANTOM_MEMORY=8GiB run.sh benchmarks/hostile_lengths.py          # on the stub runtime

The texts are drawn; what is measured is memory. `last` has the longest windows in the last steps,
`turns` has steps of 8 and of 512 tokens in turn. With `--neighbour` 500 MiB of the card go to
somebody else half way. Where the budget does not hold weights and optimizer state, these stay on
the host. Prints one line per run, and JSON with `--json`.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

from bertfit.data.tags import label_scheme
from bertfit.engine.fence import check_floor, fence, floor_bytes
from bertfit.engine.host_state import make_update
from bertfit.engine.optim import parameter_groups
from bertfit.engine.recovery import Steps
from bertfit.engine.workplace import choose_workplace
from bertfit.errors import BudgetError
from bertfit.models.encoder import build_classifier
from bertfit.models.rows import keep_rows
from bertfit.planning.levers import TrainSettings, prepare_model
from bertfit.types import Window
from bertfit.units import GIB, MIB, parse_bytes

BERT_BASE = {"model_type": "bert", "vocab_size": 21128}  # the fields' defaults are bert-base
PIECES = 3500  # that occur: about as many as 10,000 Chinese sentences have
TAGS = label_scheme(["LOC", "ORG", "PER"], "bio").tags


def window(num_tokens: int, seed: int) -> Window:
    rng = np.random.default_rng(seed)
    units = num_tokens - 2
    return Window(
        index=seed,
        input_ids=np.array([101, *rng.integers(200, PIECES, units), 102], dtype=np.int32),
        units=np.array([(i, i + 1) for i in range(units)], dtype=np.int32),
        first_token=np.arange(1, units + 1, dtype=np.int32),
        labels=rng.integers(0, len(TAGS), units).astype(np.int16),
        owned=(0, units),
    )


def lengths_of(order: str, steps: int, batch: int) -> list[list[int]]:
    rng = np.random.default_rng(7)
    if order == "turns":
        return [[8 if step % 2 == 0 else 512] * batch for step in range(steps)]
    drawn = np.sort(np.clip(rng.gamma(2.0, 60.0, steps * batch).astype(int) + 8, 8, 512))
    return drawn.reshape(steps, batch).tolist()


def run(order: str, budget: int, args: argparse.Namespace) -> dict[str, object]:
    torch.manual_seed(0)
    place = choose_workplace("cuda", args.precision)
    precision = place.precision
    started, neighbour = time.perf_counter(), None
    retries, cuts, ended = 0, [], ""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = build_classifier(BERT_BASE, TAGS).train()
    keep_rows(model, [0, *range(PIECES), 101, 102])
    host_state = floor_bytes(model, precision) + place.context_bytes > budget
    try:
        floor = floor_bytes(model, precision, host_state=host_state)
        check_floor(budget, floor, place.context_bytes)
    except BudgetError as error:
        return refused(order, budget, str(error))
    with fence(place.device, budget, place.context_bytes):
        groups = parameter_groups(
            model, [], learning_rate=5e-5, head_learning_rate=1e-3, weight_decay=0.01
        )
        steps = Steps(
            model,
            make_update(
                model,
                groups,
                device=place.device,
                precision=precision,
                max_grad_norm=1.0,
                host_state=host_state,
            ),
            device=place.device,
            precision=precision,
            pad_id=0,
            seed=1,
            card=place.gauge,
            micro_batch_tokens=args.tokens,
            relieve=lambda: checkpoint_layers(model),
        )
        try:
            if args.rehearse:
                steps.rehearse([window(512, i) for i in range(args.batch)])
            for step, lengths in enumerate(lengths_of(order, args.steps, args.batch)):
                if args.neighbour and step == args.steps // 2:
                    torch.cuda.empty_cache()  # else there is nothing left to take
                    neighbour = take(500 * MIB)
                done = steps.run(step, [window(n, 1000 * step + i) for i, n in enumerate(lengths)])
                retries += done.oom_retries
                cuts.append(len(done.cuts))
        except BudgetError as error:
            ended = str(error)
    peak = torch.cuda.max_memory_reserved() + place.context_bytes
    del neighbour
    return {
        "order": order,
        "budget_gib": budget / GIB,
        "steps": len(cuts),
        "oom_retries": retries,
        "micro_batches": sum(cuts),
        "tokens": steps.micro_batch_tokens,
        "peak_gib": peak / GIB,
        "over": peak > budget,
        "checkpointing": steps.relieved,
        "host_state": host_state,
        "ended": ended,
        "seconds": time.perf_counter() - started,
    }


def checkpoint_layers(model: torch.nn.Module) -> bool:
    prepare_model(model, TrainSettings(steps=(((1, 1),),), num_tags=7, checkpointed_layers=12))
    return True


def refused(order: str, budget: int, reason: str) -> dict[str, object]:
    return {
        "order": order, "budget_gib": budget / GIB, "steps": 0, "oom_retries": 0,
        "micro_batches": 0, "tokens": 0, "peak_gib": 0.0, "over": False, "checkpointing": False,
        "host_state": False, "refused": reason, "ended": "", "seconds": 0.0,
    }  # fmt: skip


def take(size_bytes: int) -> object:
    """Take memory of the card past torch's allocator, as another program does."""
    import ctypes

    libcudart = ctypes.CDLL(None)
    pointer = ctypes.c_void_p()
    left = ctypes.c_size_t(size_bytes)
    assert libcudart.cudaMalloc(ctypes.byref(pointer), left) == 0, "the neighbour found no room"
    return pointer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budgets", default="1.5GiB,2GiB,3GiB,3.82GiB,6GiB")
    parser.add_argument("--orders", default="last,turns")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"))
    parser.add_argument("--rehearse", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--neighbour", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for budget in map(parse_bytes, args.budgets.split(",")):
        for order in args.orders.split(","):
            rows.append(row := run(order, budget, args))
            print(
                f"{budget / GIB:5.2f} GiB {order:6s} steps {row['steps']:3d} retries "
                f"{row['oom_retries']:2d} micro-batches {row['micro_batches']:4d} of "
                f"{row['tokens']:5d} tokens  peak {row['peak_gib']:.2f} GiB  "
                f"{row['seconds']:.0f} s{' checkpointing' if row['checkpointing'] else ''}"
                f"{' state on the host' if row['host_state'] else ''}"
                f"{'  OVER' if row['over'] else ''} {row['ended']}{row.get('refused', '')}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.stdout.flush()
    os._exit(int(any(row["over"] or row["ended"] for row in rows)))  # the stub aborts at exit


if __name__ == "__main__":
    main()
