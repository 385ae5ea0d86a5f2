"""Which families of transformers the estimator can trace: training steps and a prediction of each.

    python benchmarks/model_families.py [--only TYPE,TYPE] [--json] [--stub]

Every family that `AutoModelForTokenClassification` knows, with its default configuration but two
layers where the configuration allows it. With --stub each is run too, on the stub runtime of
../shared/tools/phantom_gpu, and the bytes are compared.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES

from bertfit.errors import BertfitError
from bertfit.memory.device import resolve_device
from bertfit.models.encoder import build_classifier
from bertfit.models.model_config import config_fields
from bertfit.planning import program
from bertfit.planning.estimate import simulate
from bertfit.planning.levers import PredictSettings, TrainSettings
from stub import Stub, serve

SHAPE = (4, 64)
NUM_TAGS = 9
CARD = "rtx-3090"
ROUNDS = 3
TRAIN = TrainSettings(steps=((SHAPE,),), num_tags=NUM_TAGS, precision="bf16")
PREDICT = PredictSettings(batches=(SHAPE,), num_tags=NUM_TAGS, precision="bf16")
JOBS = {
    "train": TRAIN,
    "train without mask": replace(TRAIN, padded=False),
    "predict": PREDICT,
    "predict without mask": replace(PREDICT, padded=False),
}
# What a family's default configuration leaves open, and its published ones say.
NEEDED = {
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "xmod": {"default_language": "en_XX"},
}
# What the stub runtime answers to every question: is the mask full? Longformer asks for its global
# tokens in place of that. It finds no rows of a mask, so X-MOD's adapters get none there.
ANSWERS = {"longformer": "0"}
# They mix types under autocast, which torch refuses.
IN_FP32 = ("deberta", "xmod", "yoso")
# Every fourth layer is the first with attention.
LAYERS = {"qwen3_5": 4, "qwen3_next": 4}


def job(kind, name):
    """Return the settings of a job of a family."""
    return replace(JOBS[name], precision="fp32") if kind in IN_FP32 else JOBS[name]


def builder(kind):
    """Return what builds a small model of a family on `meta`."""
    config = transformers.CONFIG_MAPPING[kind](**NEEDED.get(kind, {}))
    text = config.get_text_config()
    whole, few = getattr(text, "num_hidden_layers", None), LAYERS.get(kind, 2)
    for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"):
        with contextlib.suppress(Exception):
            if isinstance(getattr(text, name, None), int):
                setattr(text, name, few)
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == whole:  # one for each layer
            setattr(text, name, value[:few])
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)  # as a hub holds it, each family with its own names
        found = config_fields(Path(folder))

    def build():
        with torch.device("meta"):
            model = build_classifier(found, tuple(map(str, range(NUM_TAGS))))
        return model.to("meta")

    return build


def trace(kind, card):
    """Trace the jobs of a family.

    Args:
        kind: the family.
        card: the stub runtime to compare with, or None.

    Returns:
        What went wrong, or None, and for each job the errors of reserved and allocated bytes.
    """
    errors = {}
    try:
        build = builder(kind)
        for name in JOBS:
            found = simulate(build, job(kind, name), resolve_device(CARD)).allocator
            if card is not None:
                truth = card.run({"kind": kind, "name": name})
                errors[name] = truth.get("failed") or [
                    found.peak_reserved_bytes / truth["reserved"] - 1,
                    found.peak_allocated_bytes / truth["allocated"] - 1,
                ]
    except BertfitError as error:
        return str(error), errors
    except Exception as error:  # noqa: BLE001 (a family's own faults are what is counted)
        place = error.__traceback__
        while place.tb_next is not None:
            place = place.tb_next
        where = f"{place.tb_frame.f_code.co_filename.rpartition('/')[2]}:{place.tb_lineno}"
        reason = f"{type(error).__name__} at {where}: {' '.join(str(error).split())[:300]}"
        return reason, errors
    return None, errors


def run_one(asked):
    """Inside the stub runtime: run a job of a family and return the peaks."""
    settings = job(asked["kind"], asked["name"])
    full = str(int(not settings.padded))
    os.environ["PHANTOM_BOOL"] = ANSWERS.get(asked["kind"], full)
    model = builder(asked["kind"])().to_empty(device="cpu")
    model.tie_weights()  # to_empty has given each of them tensors of its own
    model, layers = program.prepare(model, settings)
    for _round in islice(program.run(model, layers, settings, torch.device("cuda")), ROUNDS):
        pass
    stats = torch.cuda.memory_stats()
    return {
        "reserved": stats["reserved_bytes.all.peak"],
        "allocated": stats["allocated_bytes.all.peak"],
    }


def main():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    if sys.argv[1:] == ["--serve"]:
        serve(run_one)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="model types, by commas")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stub", action="store_true", help="compare with the stub runtime")
    options = parser.parse_args()
    kinds = (
        options.only.split(",") if options.only else MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES
    )
    card = Stub(__file__, PHANTOM_SM="8.6", PHANTOM_MEMORY="256GiB") if options.stub else None
    faults, errors = {}, {}
    for kind in kinds:
        begun = time.perf_counter()
        faults[kind], errors[kind] = trace(kind, card)
        seconds = time.perf_counter() - begun
        print(f"{kind:24} {seconds:5.1f} s  {faults[kind] or 'ok'}", file=sys.stderr, flush=True)
        for name, row in errors[kind].items():
            if row != [0.0, 0.0]:
                print(f"{'':24} {name}: {row}", file=sys.stderr, flush=True)
    known = sum(fault is None for fault in faults.values())
    if options.json:
        summary = {"families": len(faults), "traced": known, "faults": faults, "errors": errors}
        print(json.dumps(summary))
    else:
        print(f"{known} of {len(faults)} families can be traced")


if __name__ == "__main__":
    main()
