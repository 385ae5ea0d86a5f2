"""Steps of lengths that change: one question for all of them."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from bertfit.cli import main
from bertfit.errors import ModelError
from bertfit.planning.capacity import capacity
from bertfit.planning.request import estimate
from bertfit.planning.request_config import EstimateConfig

FIELDS = {
    "model_type": "bert",
    "vocab_size": 5000,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": 512,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("small")
    (folder / "config.json").write_text(json.dumps(FIELDS))
    return str(folder)


def peak(model: str, **asked: object) -> int:
    config = EstimateConfig(model=model, gpu="rtx-3090", batch_size=6, **asked)
    return estimate(config)[0].peak_reserved_bytes


@pytest.mark.parametrize("mode", ["train", "predict", "embed"])
def test_steps_of_one_length_are_that_length(model: str, mode: str) -> None:
    one = peak(model, mode=mode, max_length=200)
    assert peak(model, mode=mode, lengths=(200,)) == one
    assert peak(model, mode=mode, lengths=(200, 200)) == one


@pytest.mark.parametrize("lengths", [(64, 500), (500, 64), (256, 64, 192, 128)])
def test_lengths_in_turn_need_what_the_longest_needs(model: str, lengths: tuple[int, ...]) -> None:
    """Blocks of the others lie between; more than all of them together they never take."""
    alone = [peak(model, max_length=length) for length in lengths]
    assert max(alone) <= peak(model, lengths=lengths) <= sum(alone)


def test_the_command_takes_lengths_by_commas(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", model, "--gpu", "rtx-3090", "--accumulation", "2", "--json"]
    assert main(["estimate", *flags, "--batch-size", "6", "--lengths", "256, 64"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings["steps"] == [[[6, 256]] * 2, [[6, 64]] * 2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("256,x", "write whole numbers by commas"),
        (",", "write whole numbers by commas"),
        ("64,1", "greater than or equal to 2"),
        (["7"] * 1001, "at most 1000 items"),
        ((1 << 26,), "which no card holds"),
    ],
)
def test_lengths_that_make_no_sense_are_refused(model: str, given: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EstimateConfig(model=model, lengths=given)


def test_both_kinds_of_length_are_refused(model: str) -> None:
    with pytest.raises(ValidationError, match="give one of them"):
        EstimateConfig(model=model, lengths=(64,), max_length=64)


def test_a_length_beyond_the_positions_is_named(model: str) -> None:
    with pytest.raises(ModelError, match="--lengths 513: the position table"):
        estimate(EstimateConfig(model=model, gpu="rtx-3090", lengths=(64, 513)))


def test_a_length_below_what_a_model_reads_is_refused(tmp_path: Path) -> None:
    canine = {**FIELDS, "model_type": "canine", "num_hash_buckets": 64}
    (tmp_path / "config.json").write_text(json.dumps(canine))
    for lengths in ({"max_length": 3}, {"lengths": (64, 3)}):
        flag = "--lengths" if "lengths" in lengths else "--max-length"
        with pytest.raises(ModelError, match=rf"{flag} 3: .*\(canine\) puts 4 tokens together"):
            peak(str(tmp_path), **lengths)
    asked = EstimateConfig(model=str(tmp_path), gpu="rtx-3090")
    with pytest.raises(ModelError, match="--lengths 2: "):
        capacity(asked, (64, 2))
    assert peak(str(tmp_path), max_length=4) > 0
