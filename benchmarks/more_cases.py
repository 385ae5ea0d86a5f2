"""Cases of the plain loop beside the 135 of the truth table: other models, shapes and levers.

    python benchmarks/more_cases.py [--only N,N] [--json FILE]

The truth is measured here, on the stub runtime of ../shared/tools/phantom_gpu, by the loop that
made the table; then each case is predicted as `memory_truth.py` does. Models are configurations
of encoders that people use, by hand, none of which the table has, and of kinds with other parts
switched on. The fields of a case are those of ../shared/data/memory_truth/README.md.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch

import memory_truth
from stub import PHANTOM, Stub, serve

sys.path.insert(0, str(PHANTOM))

GIB = 1 << 30

TINY_BERT = {"type": "bert", "vocab_size": 30522, "hidden_size": 312, "num_hidden_layers": 4,
             "num_attention_heads": 12, "intermediate_size": 1200}  # fmt: skip
RBT3 = {"type": "bert", "vocab_size": 21128, "num_hidden_layers": 3}
RBTL3 = {"type": "bert", "vocab_size": 21128, "hidden_size": 1024, "num_hidden_layers": 3,
         "num_attention_heads": 16, "intermediate_size": 4096}  # fmt: skip
E5_SMALL = {"type": "bert", "vocab_size": 250037, "hidden_size": 384, "num_hidden_layers": 12,
            "num_attention_heads": 12, "intermediate_size": 1536}  # fmt: skip
ROBERTA_LARGE = {"type": "roberta", "vocab_size": 50265, "hidden_size": 1024,
                 "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
                 "max_position_embeddings": 514, "type_vocab_size": 1}  # fmt: skip
MDISTIL = {"type": "distilbert", "vocab_size": 119547, "dim": 768, "n_layers": 6, "n_heads": 12,
           "hidden_dim": 3072}  # fmt: skip
ALBERT_LARGE = {"type": "albert", "vocab_size": 21128, "embedding_size": 128, "hidden_size": 1024,
                "num_hidden_layers": 24, "num_attention_heads": 16,
                "intermediate_size": 4096}  # fmt: skip
ELECTRA_BASE = {"type": "electra", "vocab_size": 21128, "embedding_size": 768, "hidden_size": 768,
                "num_hidden_layers": 12, "num_attention_heads": 12,
                "intermediate_size": 3072}  # fmt: skip
DEBERTA_SMALL = {"type": "deberta-v2", "vocab_size": 128100, "hidden_size": 768,
                 "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 3072,
                 "max_position_embeddings": 512, "type_vocab_size": 0, "relative_attention": True,
                 "max_relative_positions": -1, "position_buckets": 256,
                 "norm_rel_ebd": "layer_norm", "share_att_key": True,
                 "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}  # fmt: skip
MODERN_LARGE = {"type": "modernbert", "vocab_size": 50368, "hidden_size": 1024,
                "intermediate_size": 2624, "num_hidden_layers": 28,
                "num_attention_heads": 16}  # fmt: skip
# Kinds that no encoder above has: odd widths, wide and narrow heads, other parts switched on.
CAUSAL_BERT = {"type": "bert", "vocab_size": 64001, "hidden_size": 576, "num_hidden_layers": 6,
               "num_attention_heads": 16, "intermediate_size": 577, "hidden_act": "mish",
               "is_decoder": True, "use_cache": False}  # fmt: skip
WIDE_HEADS = {"type": "roberta", "vocab_size": 5003, "hidden_size": 1024, "num_hidden_layers": 4,
              "num_attention_heads": 4, "intermediate_size": 1025, "type_vocab_size": 4,
              "max_position_embeddings": 2050, "attention_probs_dropout_prob": 0.0}  # fmt: skip
GROUPED_ALBERT = {"type": "albert", "vocab_size": 30000, "embedding_size": 100, "hidden_size": 320,
                  "num_hidden_layers": 6, "num_attention_heads": 20, "intermediate_size": 1281,
                  "num_hidden_groups": 2, "inner_group_num": 2}  # fmt: skip
MODERN_POOLED = {"type": "modernbert", "vocab_size": 50368, "hidden_size": 880,
                 "intermediate_size": 1760, "num_hidden_layers": 5, "num_attention_heads": 5,
                 "local_attention": 16, "classifier_pooling": "mean", "attention_bias": True,
                 "attention_dropout": 0.1, "mlp_dropout": 0.1}  # fmt: skip
DEBERTA_ABSOLUTE = {"type": "deberta-v2", "vocab_size": 8021, "hidden_size": 336,
                    "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 511,
                    "relative_attention": True, "position_buckets": -1, "pos_att_type": ["c2p"],
                    "type_vocab_size": 2, "embedding_size": 64}  # fmt: skip
SINUSOIDAL = {"type": "distilbert", "vocab_size": 119547, "dim": 300, "n_layers": 4, "n_heads": 3,
              "hidden_dim": 37, "sinusoidal_pos_embds": True, "activation": "relu"}  # fmt: skip

PLAIN = {"task": "token", "num_labels": 13, "batch": 8, "seq_len": 128, "precision": "fp16-amp",
         "attention": "sdpa", "optimizer": "adamw-fused", "checkpointing": False, "grad_accum": 1,
         "freeze_embeddings": False, "freeze_layers": 0, "clip": True, "mask": "padded",
         "sm": "8.6", "expandable": False, "memory": 256 * GIB, "context": 0,
         "steps": 3}  # fmt: skip

CASES = (
    {"model": TINY_BERT, "batch": 57, "seq_len": 93},
    {"model": TINY_BERT, "precision": "fp32", "batch": 5, "seq_len": 511, "attention": "eager"},
    {"model": RBT3, "batch": 1, "seq_len": 1, "precision": "fp32", "optimizer": "adamw-foreach"},
    {"model": RBT3, "batch": 96, "seq_len": 48, "sm": "10.0", "expandable": True},
    {"model": RBTL3, "precision": "bf16-amp", "sm": "10.0", "grad_accum": 5, "seq_len": 199},
    {"model": RBTL3, "precision": "pure-bf16", "optimizer": "adafactor-torch", "clip": False},
    {"model": E5_SMALL, "freeze_embeddings": True, "batch": 40, "seq_len": 72},
    {"model": E5_SMALL, "precision": "fp32", "checkpointing": True, "expandable": True},
    {"model": E5_SMALL, "optimizer": "none", "batch": 128, "seq_len": 333, "mask": "full"},
    {"model": ROBERTA_LARGE, "checkpointing": True, "batch": 12, "seq_len": 402, "sm": "8.9"},
    {"model": ROBERTA_LARGE, "freeze_layers": 18, "freeze_embeddings": True, "mask": "none"},
    {"model": ROBERTA_LARGE, "memory": 6 * GIB, "context": 400 << 20, "batch": 4},
    {"model": MDISTIL, "optimizer": "sgd-momentum", "grad_accum": 3, "seq_len": 256},
    {"model": MDISTIL, "attention": "eager", "precision": "bf16-amp", "batch": 21, "seq_len": 77},
    {"model": ALBERT_LARGE, "batch": 6, "seq_len": 384, "optimizer": "adamw-foreach"},
    {"model": ALBERT_LARGE, "precision": "fp32", "attention": "eager", "grad_accum": 2},
    {"model": ELECTRA_BASE, "task": "sequence", "num_labels": 3, "batch": 33, "seq_len": 65},
    {"model": ELECTRA_BASE, "precision": "pure-bf16", "sm": "12.0", "freeze_layers": 3},
    {"model": DEBERTA_SMALL, "attention": "eager", "batch": 7, "seq_len": 190},
    {"model": DEBERTA_SMALL, "attention": "eager", "optimizer": "none", "precision": "pure-fp16"},
    {"model": MODERN_LARGE, "precision": "bf16-amp", "batch": 2, "seq_len": 4096, "sm": "8.0"},
    {"model": MODERN_LARGE, "optimizer": "adafactor", "batch": 3, "seq_len": 700, "mask": "none"},
    {"model": RBT3, "batch": 24, "steps": 8, "seq_len": [300, 12, 511, 64, 64, 129, 257, 8]},
    {"model": E5_SMALL, "batch": 16, "steps": 8, "memory": 3 * GIB, "context": 300 << 20,
     "seq_len": [40, 480, 88, 500, 20, 512, 256, 31]},
    {"model": MDISTIL, "batch": 4, "seq_len": 128, "memory": 2 * GIB, "context": 300 << 20},
    {"model": TINY_BERT, "batch": 3, "seq_len": 9, "optimizer": "sgd", "sm": "7.5", "clip": False},
    {"model": CAUSAL_BERT, "task": "sequence", "num_labels": 200, "batch": 5, "seq_len": 191,
     "precision": "pure-bf16", "grad_accum": 5, "freeze_layers": 5, "memory": 646 << 20},
    {"model": WIDE_HEADS, "batch": 3, "seq_len": 2048, "mask": "none", "sm": "8.9"},
    {"model": WIDE_HEADS, "precision": "bf16-amp", "batch": 7, "seq_len": 777, "sm": "12.0"},
    {"model": GROUPED_ALBERT, "batch": 13, "seq_len": 333, "optimizer": "adafactor-torch"},
    {"model": MODERN_POOLED, "task": "sequence", "batch": 16, "seq_len": 257, "grad_accum": 3,
     "optimizer": "sgd-momentum", "memory": 2398 << 20, "context": 400 << 20},
    {"model": DEBERTA_ABSOLUTE, "attention": "eager", "batch": 19, "seq_len": 97},
    {"model": SINUSOIDAL, "batch": 333, "seq_len": 509, "precision": "bf16-amp"},
    {"model": MDISTIL, "attention": "eager", "optimizer": "none", "batch": 100, "seq_len": 511,
     "precision": "bf16-amp", "mask": "none", "expandable": True, "memory": 4270 << 20},
)  # fmt: skip


def run_case(case: dict) -> dict:
    """Inside the stub runtime: the card of a case, and the plain loop on it."""
    import measure

    os.environ.update(
        PHANTOM_SM=case["sm"],
        PHANTOM_MEMORY=str(case["memory"]),
        PHANTOM_CONTEXT=str(case["context"]),
        PHANTOM_BOOL=str(int(case["mask"] == "full")),
    )
    torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{case['expandable']}")
    return measure.run_one(case)


def card() -> Stub:
    """Start the stub runtime; each case brings its own card."""
    return Stub(__file__)


def measure_and_compare(number: int, stub: Stub) -> tuple[dict, dict]:
    """Measure a case on the stub runtime; return its row and what was measured."""
    import models

    case = {**PLAIN, **CASES[number]}
    truth = stub.run(case)
    if "failed" in truth:
        raise SystemExit(f"{case}: {truth['failed']}")
    row = memory_truth.compare(number, case, truth, models)
    print(memory_truth.describe(row), truth["attention_kernel"], flush=True)
    return row, {"case": case, "result": truth}


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        serve(run_case)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="numbers of cases, with commas")
    parser.add_argument("--json", type=Path, help="cases with their truth, as the table has them")
    args = parser.parse_args()
    stub, rows, found = card(), [], []
    for number in map(int, args.only.split(",")) if args.only else range(len(CASES)):
        row, truth = measure_and_compare(number, stub)
        rows.append(row)
        found.append(truth)
        if args.json:
            args.json.write_text(json.dumps({"cases": found}) + "\n")
    print(json.dumps(memory_truth.summarize(rows), indent=1))


if __name__ == "__main__":
    main()
