"""bertfit's own step: what `bertfit.planning.estimate` says against the CUDA build of PyTorch.

`engine.step.train_step` and `forward` run on the stub CUDA runtime of ../shared/tools/phantom_gpu,
where every request for memory is PyTorch's own. Run through `memory_truth.py --own`.
"""

import os
import sys
from itertools import islice

import torch
import transformers

from bertfit.engine.fence import set_expandable_segments
from bertfit.planning import estimate, program
from bertfit.planning.levers import EmbedSettings, PredictSettings, TrainSettings
from bertfit.types import DeviceSpec
from stub import serve

NUM_TAGS = 9
ROUNDS = 3  # of the job's steps or batches; the peak is steady by then

MODELS = {
    "bert": ("Bert", dict(vocab_size=21128)),
    "bert-large": (
        "Bert",
        dict(
            vocab_size=21128,
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
        ),
    ),
    "distilbert": ("DistilBert", dict(vocab_size=30522)),
    "roberta": ("Roberta", dict(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)),
    "electra": (
        "Electra",
        dict(
            vocab_size=30522,
            embedding_size=128,
            hidden_size=256,
            num_attention_heads=4,
            intermediate_size=1024,
            num_hidden_layers=12,
        ),
    ),
    "modernbert": ("ModernBert", dict(vocab_size=50368, num_hidden_layers=8)),
    "canine": ("Canine", dict(num_hidden_layers=2)),
    "convbert": ("ConvBert", dict(num_hidden_layers=3)),
    "squeezebert": ("SqueezeBert", dict(num_hidden_layers=3)),
    "fnet": ("FNet", dict(num_hidden_layers=3)),
    "deberta-conv": (
        "DebertaV2",
        dict(
            num_hidden_layers=3,
            hidden_size=768,
            num_attention_heads=12,
            intermediate_size=3072,
            conv_kernel_size=3,
            relative_attention=True,
        ),
    ),
    "albert": (
        "Albert",
        dict(
            vocab_size=21128,
            num_hidden_layers=6,
            hidden_size=768,
            num_attention_heads=12,
            intermediate_size=3072,
        ),
    ),
}


# What `--allow` changes, at a shape where the optimizer decides and at one where activations do.
TRADE_OFFS = [
    (model, {"steps": [[[windows, 128]]], "precision": "bf16", **change})
    for change in (
        {"optimizer": "adamw-bf16"},
        {"optimizer": "adamw-8bit"},
        {"optimizer": "adafactor"},
        {"lora_rank": 8},
        {"lora_rank": 16, "optimizer": "adamw-8bit", "first_layers": 6},
        {"first_layers": 6, "frozen_layers": 2, "frozen_embeddings": True},
    )
    for model, windows in (("bert", 1), ("bert", 32), ("roberta", 8), ("modernbert", 4))
]


# State on the host, by precision, cut, optimizer and model.
HOST_STATE = [
    ("bert", {"precision": "fp16", "steps": [[[4, 128], [9, 61]], [[2, 300]]]}),
    ("bert", {"precision": "bf16", "steps": [[[8, 512]]], "checkpointed_layers": 12}),
    ("bert", {"steps": [[[4, 77], [8, 40]]], "max_grad_norm": 0.0, "padded": False}),
    ("bert", {"precision": "bf16", "expandable_segments": True, "used_rows": 4000}),
    # Few weights: the host makes the codes of 8 bits, and 102 million did not end in 150 s.
    ("bert", {"precision": "bf16", "optimizer": "adamw-8bit", "sm": "9.0", "first_layers": 2,
              "used_rows": 2000}),
    ("bert", {"precision": "bf16", "frozen_layers": 4, "frozen_embeddings": True}),
    ("roberta", {"precision": "fp16", "steps": [[[16, 100]]], "sm": "7.5"}),
    ("electra", {"precision": "bf16", "attention": "eager"}),
    ("modernbert", {"precision": "bf16", "steps": [[[4, 77], [8, 40]]], "sm": "12.0"}),
    ("albert", {"precision": "fp16", "lora_rank": 0}),
    ("distilbert", {"precision": "bf16", "checkpointed_layers": 3}),
    ("bert-large", {"precision": "fp16", "steps": [[[8, 512]], [[4, 512]]],
                    "checkpointed_layers": 24}),
]  # fmt: skip


# Rows, cache, number formats, optimizers and the other modes.
_BATCHES = [[32, 128], [5, 200], [60, 30]]
LEVERS = [
    ("bert", {"used_rows": 3000, "precision": "fp16"}),
    ("bert", {"autocast_cache": False, "checkpointed_layers": 12, "precision": "bf16"}),
    ("distilbert", {"optimizer": "adamw-foreach", "steps": [[[2, 32]]]}),
    ("roberta", {"optimizer": "adafactor", "steps": [[[4, 90], [11, 40]]]}),
    ("electra", {"optimizer": "sgd", "precision": "bf16"}),
    ("roberta", {"pure_16bit": True, "precision": "bf16", "steps": [[[40, 100]]]}),
    ("albert", {"pure_16bit": True, "precision": "fp16", "used_rows": 700}),
    ("modernbert", {"attn_implementation": "eager", "precision": "bf16"}),
    ("bert", {"kind": "predict", "batches": _BATCHES, "pure_16bit": True, "precision": "fp16"}),
    ("electra", {"kind": "predict", "batches": _BATCHES, "padded": False, "precision": "bf16"}),
    ("bert", {"kind": "embed", "batches": _BATCHES, "precision": "fp16"}),
    ("roberta", {"kind": "embed", "batches": _BATCHES, "layers": [2, 5], "every_token": True}),
    ("distilbert", {"kind": "embed", "batches": _BATCHES, "sm": "8.0", "precision": "bf16"}),
]

# Where cuDNN would compute if a step allowed it: attention without dropout on new cards, and
# convolutions.
_EAGER = {"attention": "eager"}
_PREDICT = {"kind": "predict", "batches": _BATCHES}
NO_CUDNN = [
    ("bert", {**_PREDICT, "sm": "9.0", "precision": "bf16"}),
    ("bert", {**_PREDICT, "sm": "10.0", "precision": "fp16", "padded": False}),
    ("albert", {**_PREDICT, "sm": "10.0", "precision": "bf16"}),
    ("albert", {"sm": "9.0", "precision": "bf16", "steps": [[[4, 77], [8, 40]]], "padded": False}),
    ("modernbert", {**_PREDICT, "sm": "9.0", "precision": "fp16"}),
    ("modernbert", {**_PREDICT, "sm": "10.0", "precision": "bf16", "padded": False}),
    ("modernbert", {"sm": "9.0", "precision": "bf16", "steps": [[[4, 77], [8, 40]]]}),
    ("modernbert", {"sm": "10.0", "precision": "fp16", "padded": False, "checkpointed_layers": 4}),
    ("bert", {"kind": "embed", "batches": _BATCHES, "sm": "9.0", "precision": "bf16"}),
    ("canine", {**_EAGER, "precision": "fp16", "steps": [[[2, 300]], [[5, 77]]]}),
    ("canine", {**_EAGER, "kind": "embed", "batches": _BATCHES}),
    ("convbert", {**_EAGER, "steps": [[[4, 77], [8, 40]]]}),
    ("convbert", {**_EAGER, **_PREDICT, "precision": "fp16"}),
    ("squeezebert", {**_EAGER, "precision": "fp16", "steps": [[[1, 200], [8, 40]]]}),
    ("squeezebert", {**_EAGER, **_PREDICT, "pure_16bit": True, "precision": "bf16"}),
    ("deberta-conv", {**_EAGER, "precision": "bf16", "frozen_layers": 1}),
    (
        "deberta-conv",
        {**_EAGER, "precision": "fp16", "checkpointed_layers": 3, "steps": [[[3, 130]]]},
    ),
    ("deberta-conv", {**_EAGER, **_PREDICT, "sm": "12.0"}),
    # cuFFT in the same way.
    ("fnet", {**_EAGER, "precision": "fp16", "steps": [[[4, 77], [8, 40]]]}),
    ("fnet", {**_EAGER, "pure_16bit": True, "precision": "bf16", "checkpointed_layers": 2}),
    ("fnet", {**_EAGER, **_PREDICT, "sm": "9.0"}),
    ("fnet", {**_EAGER, "kind": "embed", "batches": _BATCHES, "precision": "bf16", "layers": [2]}),
]


def build(job):
    prefix, fields = MODELS[job["model"]]
    config = getattr(transformers, prefix + "Config")(num_labels=NUM_TAGS, **fields)
    config._attn_implementation = job.get("attention", "sdpa")
    with torch.device("meta"):
        return getattr(transformers, prefix + "ForTokenClassification")(config)


def settings_of(job):
    values = {name: job[name] for name in job if name not in ("model", "attention", "sm", "kind")}
    if job["kind"] == "train":
        values["steps"] = tuple(tuple(map(tuple, step)) for step in values["steps"])
        return TrainSettings(num_tags=NUM_TAGS, **values)
    values["batches"] = tuple(map(tuple, values["batches"]))
    if job["kind"] == "predict":
        return PredictSettings(num_tags=NUM_TAGS, **values)
    values["layers"] = tuple(values.get("layers", ()))
    return EmbedSettings(**values)


def jobs():
    """Every lever alone on bert, then mixtures on all models."""
    plain = {"kind": "train", "model": "bert", "sm": "8.6", "steps": [[[8, 128]]]}
    for change in (
        {},
        {"precision": "fp16"},
        {"precision": "bf16"},
        {"attention": "eager"},
        {"attention": "eager", "precision": "bf16"},
        {"padded": False},
        {"padded": False, "precision": "bf16"},
        {"max_grad_norm": 0.0},
        {"checkpointed_layers": 12},
        {"checkpointed_layers": 5, "precision": "fp16"},
        {"frozen_embeddings": True},
        {"frozen_layers": 4, "frozen_embeddings": True},
        {"expandable_segments": True},
        {"steps": [[[4, 128], [4, 128]]]},
        {"steps": [[[4, 128], [9, 61]], [[2, 300]], [[16, 33], [8, 50], [3, 171]]]},
        {"steps": [[[1, 8]]]},
        {"steps": [[[64, 64]]]},
        {"steps": [[[8, 512]]]},
        {"steps": [[[13, 301]]], "precision": "bf16"},
        {"sm": "7.5", "precision": "fp16"},
        {"sm": "9.0"},
        {"sm": "12.0", "precision": "bf16"},
        {"sm": "8.0"},
        {"sm": "8.9"},
    ):
        yield {**plain, **change}
    for model, change in TRADE_OFFS:
        yield {**plain, "model": model, **change}
    for model in ("distilbert", "roberta", "electra", "modernbert", "albert"):
        for change in (
            {"precision": "fp16", "steps": [[[16, 100]]]},
            {"steps": [[[4, 77], [8, 40]]], "max_grad_norm": 0.0},
            {"attention": "eager", "precision": "bf16", "sm": "8.0", "frozen_embeddings": True},
            {"kind": "predict", "batches": [[32, 128], [64, 40]], "precision": "fp16"},
        ):
            job = {**plain, "model": model, **change}
            if job["kind"] == "predict":
                del job["steps"]
            yield job
    for model, change in HOST_STATE:
        yield {**plain, "model": model, **change, "host_state": True}
    for model, change in (*LEVERS, *NO_CUDNN):
        job = {**plain, "model": model, **change}
        if job["kind"] != "train":
            del job["steps"]
        yield job


def run_one(job):
    """Inside the stub runtime: run the job and print the peaks."""
    os.environ["PHANTOM_SM"] = job["sm"]
    # What a card says of `attention_mask.all()`.
    os.environ["PHANTOM_BOOL"] = "0" if job.get("padded", True) else "1"
    settings = settings_of(job)
    set_expandable_segments(settings.expandable_segments)
    model, layers = program.prepare(build(job).to_empty(device="cpu"), settings)
    for _ in islice(program.run(model, layers, settings, torch.device("cuda")), ROUNDS):
        pass
    stats = torch.cuda.memory_stats()
    return {
        "max_memory_allocated": stats["allocated_bytes.all.peak"],
        "max_memory_reserved": stats["reserved_bytes.all.peak"],
        "max_requested": stats["requested_bytes.all.peak"],
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
    }


def compare(number, job, card):
    """Run a job on the stub runtime and predict it; returns a row as `memory_truth` has them."""
    truth = card.run(job)
    if "failed" in truth:
        raise RuntimeError(f"on the stub runtime: {truth['failed']}")
    device = DeviceSpec(
        name="phantom",
        total_bytes=1 << 38,
        context_bytes=0,
        compute_capability=tuple(map(int, job["sm"].split("."))),
        multiprocessors=truth["multiprocessors"],
        peak_flops=1.0,
        memory_bandwidth=1.0,
        bf16=True,
    )
    allocator = estimate.simulate(lambda: build(job), settings_of(job), device).allocator
    return {
        "number": number,
        "job": job,
        "oom": False,
        "verdict_wrong": False,
        "judged": True,
        "reserved": allocator.peak_reserved_bytes / truth["max_memory_reserved"] - 1,
        "allocated": allocator.peak_allocated_bytes / truth["max_memory_allocated"] - 1,
        "requested": allocator.peak_requested_bytes / truth["max_requested"] - 1,
    }


if __name__ == "__main__":
    assert sys.argv[1:] == ["--serve"], "run through memory_truth.py --own"
    serve(run_one)
