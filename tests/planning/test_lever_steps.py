"""One step of each lever: the table comes for every question that has an answer."""

import json
from pathlib import Path

import pytest

from bertfit.cli import main
from bertfit.planning.lever_steps import lever_steps
from bertfit.planning.request import estimate
from bertfit.planning.request_config import EstimateConfig

SIZES = {
    "vocab_size": 500,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
}


def folder(at: Path, **more: object) -> str:
    at.mkdir(exist_ok=True)
    (at / "config.json").write_text(json.dumps({"model_type": "bert", **SIZES, **more}))
    return str(at)


def question(at: Path, more: dict[str, object] | None = None, **asked: object) -> EstimateConfig:
    given = {"gpu": "rtx-3090", "batch_size": 4, "max_length": 64, **asked}
    return EstimateConfig(model=folder(at, **(more or {})), **given)


def test_every_lever_of_training_has_a_row(tmp_path: Path) -> None:
    rows = set(lever_steps(question(tmp_path)))
    flags = {row.split(":")[0].split(",")[0] for row in rows}
    assert flags == {
        "--batch-size 2",
        "--max-length 32",
        "--checkpointed-layers 1",
        "--frozen-layers 1",
        "--frozen-embeddings",
        "--host-state",
        "--lora-rank 8",
        "--first-layers 2",
        "--optimizer adamw-foreach",
        "--optimizer adamw-bf16",
        "--optimizer adamw-8bit",
        "--optimizer adafactor",
        "--optimizer sgd",
        "--no-autocast-cache",
        "--expandable-segments",
        "--full-windows",
        "--pure-16bit",
        "--attn-implementation eager",
        "--precision fp32",
    }


@pytest.mark.parametrize("mode", ["predict", "embed"])
def test_other_modes_have_theirs(tmp_path: Path, mode: str) -> None:
    assert set(lever_steps(question(tmp_path, mode=mode))) == {
        "--batch-size 2",
        "--max-length 32",
        "--expandable-segments",
        "--full-windows",
        "--pure-16bit",
        "--attn-implementation eager",
        "--precision fp32",
    }


@pytest.mark.parametrize(
    ("more", "asked", "absent"),
    [
        ({}, {"checkpointed_layers": 3}, "--checkpointed-layers"),
        ({}, {"frozen_layers": 3}, "--frozen-layers"),
        ({}, {"first_layers": 1}, "--first-layers"),
        ({}, {"pure_16bit": True}, "--optimizer adamw-8bit"),
        ({}, {"pure_16bit": True}, "--precision"),
        ({}, {"precision": "fp32"}, "--precision"),
        ({}, {"gpu": "gtx-1080-ti"}, "--precision"),  # its own best is fp32
        ({}, {"gpu": "gtx-1080-ti"}, "--no-autocast-cache"),
        ({}, {"lengths": (32, 64), "max_length": 128}, "--max-length"),
        ({"model_type": "squeezebert", "embedding_size": 64}, {}, "--checkpointed-layers"),
        ({"model_type": "deberta-v2"}, {"attn_implementation": "eager"}, "--attn-impl"),
    ],
)
def test_a_lever_that_is_not_to_be_had_is_left_out(
    tmp_path: Path, more: dict[str, object], asked: dict[str, object], absent: str
) -> None:
    rows = lever_steps(question(tmp_path, more, **asked))
    assert "--expandable-segments" in rows
    assert not [row for row in rows if row.startswith(absent)]


def test_half_a_batch_is_made_up_for_by_twice_the_micro_batches(tmp_path: Path) -> None:
    rows = lever_steps(question(tmp_path, accumulation=3))
    half = estimate(question(tmp_path, batch_size=2, accumulation=6))[0]
    assert next(rows[row] for row in rows if row.startswith("--batch-size 2")) == half


@pytest.mark.parametrize("mode", ["train", "predict", "embed"])
def test_the_estimate_comes_before_the_levers(
    tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", folder(tmp_path), "--gpu", "rtx-3090", "--mode", mode, "--levers"]
    assert main(["estimate", *flags, "--batch-size", "4", "--max-length", "64"]) == 0
    printed = capsys.readouterr().out
    assert 0 < printed.index("required of") < printed.index("--expandable-segments")


def test_experts_that_run_together_are_asked_for_in_the_config(tmp_path: Path) -> None:
    """As the message of a model whose experts run one by one says."""
    fields = {"model_type": "openai_privacy_filter", "head_dim": 16, "num_local_experts": 4}
    fields |= {"pad_token_id": 0, "eos_token_id": 1, "num_experts_per_tok": 2}
    together = {**fields, "experts_implementation": "grouped_mm"}
    assert estimate(question(tmp_path, together, precision="fp32"))[0].required_bytes > 0
