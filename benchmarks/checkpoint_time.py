"""How long training stops for a checkpoint, and how soon it is on the disk.

    python benchmarks/checkpoint_time.py --model FOLDER

Trains nothing: takes the model of a folder with an AdamW state, as a run has them, and saves it
some times. Prints a table, writes JSON.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

from bertfit.engine.optim import Update, parameter_groups
from bertfit.jobs.checkpoints import CheckpointStore
from bertfit.jobs.snapshots import Snapshots, snapshot_bytes
from bertfit.jobs.train_state import TrainState
from bertfit.models.encoder import find_model, load_classifier
from bertfit.models.rows import keep_rows
from bertfit.units import MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=int, default=20_000, help="embedding rows that are trained")
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="disk to write to")
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args()

    model, __ = load_classifier(find_model(asked.model), ("O", "B-X", "I-X"))
    rows = min(asked.rows, model.get_input_embeddings().weight.shape[0])  # type: ignore[operator, union-attr]
    keep_rows(model, range(rows))
    groups = parameter_groups(
        model, [], learning_rate=1e-4, head_learning_rate=1e-3, weight_decay=0.01
    )
    update = Update(groups, max_grad_norm=1.0)
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-", dir=asked.folder))
    snapshots = Snapshots(CheckpointStore(folder), model, update, print)
    table = []
    for step in range(1, asked.saves + 1):
        began = time.perf_counter()
        snapshots.take(TrainState(step=step, micro_batch_tokens=1, identity={}))
        stopped = time.perf_counter() - began
        snapshots.wait()
        table.append({"stopped": stopped, "durable": time.perf_counter() - began})
    began = time.perf_counter()
    CheckpointStore(folder).load_newest()
    loading = time.perf_counter() - began
    shutil.rmtree(folder)
    size = snapshot_bytes(model, update)
    print(f"{size / MIB:.0f} MiB of weights and moments")
    for number, row in enumerate(table, 1):
        print(f"save {number}: stopped {row['stopped']:.3f} s, durable {row['durable']:.2f} s")
    print(f"read and compared with its checksums: {loading:.2f} s")
    if asked.json is not None:
        asked.json.write_text(
            json.dumps({"bytes": size, "saves": table, "load_seconds": loading}, indent=1)
        )


if __name__ == "__main__":
    main()
