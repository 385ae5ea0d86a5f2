"""Peak reserved memory of a training step of 32 x 512 tokens: transformers' Trainer and bertfit.

    python benchmarks/memory_vs_trainer.py            # all rows
    python benchmarks/memory_vs_trainer.py --first 2 --count 2 --json rows.json

Both run on the CUDA build of PyTorch on the stub runtime ../shared/tools/phantom_gpu, where every
request for memory is PyTorch's own; the CUDA context is not counted. Trainer runs with the named
settings and else its defaults. bertfit plans for a budget of the named share of what Trainer took.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bertfit.planning.request import model_builder
from bertfit.planning.request_config import EstimateConfig
from plans_on_stub import MULTIPROCESSORS, NUM_TAGS, PHANTOM, facts_of, run_case

MIB = 1 << 20
# Model, Trainer's settings as (batch, accumulation, precision, checkpointing), our share of its
# peak, and what we are held to beside.
ROWS = (
    ("bert-base-chinese", (32, 1, "fp32", False), 0.30, {"activation_checkpointing": 0}),
    ("bert-base-chinese", (1, 32, "fp32", False), 1.0, {}),
    ("bert-base-chinese", (8, 4, "fp16", True), 1.0, {}),
    ("bert-large-uncased", (1, 32, "fp16", True), 0.45, {}),
    ("xlm-roberta-base", (1, 32, "fp16", True), 0.62, {}),
    ("xlm-roberta-large", (1, 32, "fp16", True), 0.33, {}),
)


def trainer_peak(row: tuple, build: Path) -> dict:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTORCH_")}
    environment.update(
        LD_PRELOAD=f"{build}/libphantom.so",
        LD_LIBRARY_PATH=str(build),
        PHANTOM_SM="8.6",
        PHANTOM_SMS=str(MULTIPROCESSORS),
        PHANTOM_BOOL="1",
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_VERBOSITY="error",
    )
    done = subprocess.run(
        [sys.executable, __file__, "--trainer", json.dumps(row[:2])],
        env=environment,
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        return {"failed": (done.stderr.strip().splitlines() or ["no answer"])[-1][:200]}
    return json.loads(lines[-1][7:])


def run_trainer(name: str, how: list) -> dict:
    """Inside the stub runtime: two steps of transformers' Trainer."""
    import torch
    import transformers

    batch, accumulation, precision, checkpointing = how
    build = model_builder(EstimateConfig(model=name, max_length=512, num_tags=NUM_TAGS))
    model = build().to_empty(device="cpu")
    item = {
        "input_ids": torch.zeros(512, dtype=torch.int64),
        "attention_mask": torch.ones(512, dtype=torch.int64),
        "labels": torch.zeros(512, dtype=torch.int64),
    }
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            fp16=precision == "fp16",
            gradient_checkpointing=checkpointing,
            max_steps=2,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=[item] * (2 * batch * accumulation)
        )
        trainer.train()
    return {"reserved": torch.cuda.max_memory_reserved()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=len(ROWS))
    parser.add_argument("--json", type=Path, help="rows go there, beside those of other pieces")
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.trainer:
        print("RESULT " + json.dumps(run_trainer(*json.loads(args.trainer))))
        sys.stdout.flush()
        os._exit(0)  # the stub runtime has no orderly end
    build = Path(os.environ.get("PHANTOM_BUILD", Path(tempfile.gettempdir()) / "bertfit-phantom"))
    if not (build / "libphantom.so").exists():
        subprocess.run([PHANTOM / "build.sh", sys.executable, build], check=True)
    known = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    good = True
    for number in range(args.first, min(len(ROWS), args.first + args.count)):
        name, how, share, pins = ROWS[number]
        theirs = trainer_peak(ROWS[number], build)
        if "failed" in theirs:
            print(name, how, theirs)
            good = False
            continue
        case = {"model": name, "budget": "4GiB", "pins": pins}
        context = facts_of(case).device.context_bytes
        budget = int(theirs["reserved"] * share) + context
        ours = run_case({**case, "budget": budget}, build)
        known[str(number)] = {"trainer": theirs["reserved"], "how": how, "share": share, **ours}
        batch, accumulation, precision, checkpointing = how
        theirs_in_words = f"{batch}x{accumulation} {precision}" + " ckpt" * checkpointing
        if "reserved" in ours:
            chosen = ours["chosen"]
            ratio = ours["reserved"] / theirs["reserved"]
            levers = (
                f"{chosen['micro_batch_tokens'] // 512} windows, "
                f"{chosen['checkpointed_layers']} layers twice, "
                f"state on the {'host' if chosen['host_state'] else 'card'}"
            )
            print(
                f"{name:20} Trainer {theirs_in_words:15} {theirs['reserved'] // MIB:6} MiB, "
                f"bertfit {ours['reserved'] // MIB:5} MiB = {ratio:.2f} (at most {share}): {levers}"
            )
        else:
            print(
                f"{name:20} Trainer {theirs_in_words:15} {theirs['reserved'] // MIB:6} MiB: {ours}"
            )
            good = False
        sys.stdout.flush()
        if args.json:
            args.json.write_text(json.dumps(known, indent=1) + "\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
