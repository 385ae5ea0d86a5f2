"""Peak reserved memory of a training step of 32 x 512 tokens: transformers' Trainer and bertfit.

    python benchmarks/memory_vs_trainer.py            # all rows
    python benchmarks/memory_vs_trainer.py --first 2 --count 2 --json rows.json

Both run on the CUDA build of PyTorch on the stub runtime ../shared/tools/phantom_gpu, where every
request for memory is PyTorch's own; the CUDA context is not counted. Trainer runs with the named
settings and else its defaults. bertfit plans for a budget of the named share of what Trainer took.
Some window of each batch is shorter than the batch, so both need an attention mask.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from bertfit.planning.request import model_builder
from bertfit.planning.request_config import EstimateConfig
from plans_on_stub import NUM_TAGS, facts_of, run_case, run_one, stub
from stub import serve

MIB = 1 << 20
# Model, Trainer's settings as (batch, accumulation, precision, checkpointing), our share of its
# peak, and what we are held to beside.
ROWS = (
    ("bert-base-uncased", (32, 1, "fp32", False), 0.30, {"activation_checkpointing": 0}),
    ("bert-base-chinese", (1, 32, "fp32", False), 1.0, {}),
    ("bert-base-chinese", (8, 4, "fp16", True), 1.0, {}),
    ("bert-large-uncased", (1, 32, "fp16", True), 0.45, {}),
    ("xlm-roberta-base", (1, 32, "fp16", True), 0.62, {}),
    ("xlm-roberta-large", (1, 32, "fp16", True), 0.33, {}),
)


def run_trainer(job: dict) -> dict:
    """Inside the stub runtime: two steps of transformers' Trainer."""
    import torch
    import transformers

    name = job["model"]
    batch, accumulation, precision, checkpointing = job["how"]
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
    if sys.argv[1:] == ["--serve"]:
        serve(lambda job: run_trainer(job) if "how" in job else run_one(job))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=len(ROWS))
    parser.add_argument("--json", type=Path, help="rows go there, beside those of other pieces")
    args = parser.parse_args()
    card = stub(__file__, even=False)
    known = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    good = True
    for number in range(args.first, min(len(ROWS), args.first + args.count)):
        name, how, share, pins = ROWS[number]
        theirs = card.run({"model": name, "how": how})
        if "failed" in theirs:
            print(name, how, theirs)
            good = False
            continue
        case = {"model": name, "budget": "4GiB", "pins": pins, "even": False}
        context = facts_of(case).device.context_bytes
        budget = int(theirs["reserved"] * share) + context
        ours = run_case({**case, "budget": budget}, card)
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
