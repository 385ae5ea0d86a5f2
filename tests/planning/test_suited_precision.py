"""Families whose code does not run under autocast are asked about in fp32, unless 16 bits were asked."""

import json
from pathlib import Path

import pytest
import torch

from bertfit.cli import main
from bertfit.engine.precision import autocast
from bertfit.errors import ModelError
from bertfit.models.encoder import build_classifier
from bertfit.planning.request import estimate
from bertfit.planning.request_config import EstimateConfig

FAMILIES = {
    "deberta": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "yoso": {},
    "bert": {},
}


def fields(kind: str) -> dict[str, object]:
    return {
        "model_type": kind,
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        **FAMILIES[kind],
    }


@pytest.fixture(params=FAMILIES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def folder(tmp_path: Path, kind: str) -> str:
    (tmp_path / "config.json").write_text(json.dumps(fields(kind)))
    return str(tmp_path)


@pytest.mark.parametrize("mode", ["train", "predict", "embed"])
def test_fp32_is_taken_and_said_where_nothing_was_asked(
    tmp_path: Path, kind: str, mode: str
) -> None:
    said: list[str] = []
    asked = EstimateConfig(model=folder(tmp_path, kind), gpu="rtx-4090", max_length=16, mode=mode)
    runs = kind == "bert" or (kind, mode) in (("yoso", "predict"), ("yoso", "embed"))
    assert estimate(asked, said.append)[2].precision == ("bf16" if runs else "fp32")
    assert len(said) == (0 if runs else 1)
    if not runs:
        assert kind in said[0] and "fp32" in said[0]
        with pytest.raises(ModelError, match=f"--precision fp16: models of type '{kind}'"):
            estimate(asked.model_copy(update={"precision": "fp16"}))


@pytest.mark.parametrize("kind", ["deberta", "xmod"])
def test_they_still_stop_under_autocast(kind: str) -> None:
    model = build_classifier(fields(kind), ("O", "B-X"))
    mask = torch.tensor([[1] * 8, [1] * 4 + [0] * 4])
    with pytest.raises(RuntimeError), autocast("bf16", torch.device("cpu")):
        model(torch.ones(2, 8, dtype=torch.long), attention_mask=mask)


@pytest.mark.parametrize("command", ["estimate", "capacity", "plan"])
def test_commands_say_it_in_one_line(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [command, "--model", folder(tmp_path, "xmod"), "--gpu", "rtx-4090"]
    more = ["--lengths", "16"] if command == "capacity" else ["--max-length", "16"]
    assert main([*argv, *more, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.count("do not run in 16 bits: fp32 is taken") == 1
    assert '"precision": "fp32"' in out
    assert main([*argv, *more, "--precision", "bf16"]) == 2
    assert "--precision bf16: models of type 'xmod'" in capsys.readouterr().err
