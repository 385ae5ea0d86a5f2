"""Which families of transformers the estimator can trace: a training step and a prediction of each.

    python benchmarks/model_families.py [--only TYPE,TYPE] [--json]

Every family that `AutoModelForTokenClassification` knows, with its default configuration but a
small vocabulary and two layers where the configuration allows it.
"""

import argparse
import contextlib
import json
import sys
import time
import warnings

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES

from bertfit.errors import BertfitError
from bertfit.memory.device import resolve_device
from bertfit.planning.estimate import estimate_memory
from bertfit.planning.levers import PredictSettings, TrainSettings

SHAPE = (4, 64)
NUM_TAGS = 9
# What a family's default configuration leaves open, and its published ones say.
NEEDED = {
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128},
    "xmod": {"default_language": "en_XX"},
}
# Every fourth layer is the first with attention.
LAYERS = {"qwen3_5": 4, "qwen3_next": 4}


def builder(kind):
    """Return what builds a small model of a family on `meta`."""
    config = transformers.CONFIG_MAPPING[kind](**NEEDED.get(kind, {}))
    text = config.get_text_config()
    for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"):
        with contextlib.suppress(Exception):
            if isinstance(getattr(text, name, None), int):
                setattr(text, name, LAYERS.get(kind, 2))
    if isinstance(getattr(text, "layer_types", None), list):
        text.layer_types = text.layer_types[: LAYERS.get(kind, 2)]
    config.num_labels = NUM_TAGS

    def build():
        with torch.device("meta"):
            return transformers.AutoModelForTokenClassification.from_config(config)

    return build


def trace(kind):
    """Return what went wrong with a family, or None."""
    device = resolve_device("rtx-3090")
    try:
        build = builder(kind)
        for settings in (
            TrainSettings(steps=((SHAPE,),), num_tags=NUM_TAGS, precision="bf16"),
            PredictSettings(batches=(SHAPE,), num_tags=NUM_TAGS, precision="bf16"),
        ):
            estimate_memory(build, settings, device)
    except BertfitError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 (a family's own faults are what is counted)
        place = error.__traceback__
        while place.tb_next is not None:
            place = place.tb_next
        where = f"{place.tb_frame.f_code.co_filename.rpartition('/')[2]}:{place.tb_lineno}"
        return f"{type(error).__name__} at {where}: {' '.join(str(error).split())[:300]}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="model types, by commas")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    kinds = (
        options.only.split(",") if options.only else MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES
    )
    faults = {}
    for kind in kinds:
        begun = time.perf_counter()
        faults[kind] = trace(kind)
        seconds = time.perf_counter() - begun
        print(f"{kind:24} {seconds:5.1f} s  {faults[kind] or 'ok'}", file=sys.stderr, flush=True)
    known = sum(fault is None for fault in faults.values())
    if options.json:
        print(json.dumps({"families": len(faults), "traced": known, "faults": faults}))
    else:
        print(f"{known} of {len(faults)} families can be traced")


if __name__ == "__main__":
    main()
