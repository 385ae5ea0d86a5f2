"""What each trade-off takes on a card, by the estimator: the table of docs/trade-offs.md.

    python benchmarks/trade_offs.py [--model bert-base-chinese] [--length 512] [--json FILE]

A step of 32 windows, in one micro-batch and in 32 of one window each, where weights and optimizer
decide. All rows of the vocabulary are counted; a real job has only those that occur.
"""

import argparse
import json
from pathlib import Path

from bertfit.memory.device import resolve_device
from bertfit.planning.estimate import estimate_memory
from bertfit.planning.levers import TrainSettings, encoder_layers
from bertfit.planning.request import EstimateConfig, model_builder
from bertfit.planning.tradeoffs import CATALOGUE, window_limit, with_trade_offs
from bertfit.units import MIB

WINDOWS = 32


def rows_of(model: str, length: int, tags: int):
    device = resolve_device("rtx-3060-12gb")
    asked = EstimateConfig(model=model, batch_size=WINDOWS, max_length=length, num_tags=tags)
    build = model_builder(asked)
    layers = len(encoder_layers(build()))
    for name in (None, *(row.name for row in CATALOGUE if row.name != "smaller-model")):
        made = {} if name is None else {name: None}
        tokens = min(length, window_limit(made) or length)
        peaks = []
        for windows in (WINDOWS, 1):
            # Two micro-batches are as good as 32: the second finds the gradients of the first.
            shapes = ((windows, tokens),) * (1 if windows == WINDOWS else 2)
            plain = TrainSettings(steps=(shapes,), num_tags=tags, precision="bf16")
            settings = with_trade_offs(plain, made, layers)
            peaks.append(round(estimate_memory(build, settings, device).peak_reserved_bytes / MIB))
        row = {"allow": name, "one_micro_batch_mib": peaks[0], "one_window_mib": peaks[1]}
        print(f"{name or '(nothing)':20} {peaks[0]:7,} {peaks[1]:7,}", flush=True)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="bert-base-chinese")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--tags", type=int, default=21)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(f"{args.model}, bf16, reserved MiB: 32 x {args.length}, and 1 x {args.length} at a time")
    rows = list(rows_of(args.model, args.length, args.tags))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
