"""What a user asks by name, and the table of largest batches."""

import json
from pathlib import Path

import pytest

from bertfit.cli import main
from bertfit.errors import ConfigError, ModelError
from bertfit.memory.device import resolve_device
from bertfit.planning.capacity import capacity
from bertfit.planning.estimate import estimate_memory
from bertfit.planning.lever_steps import lever_steps
from bertfit.planning.request import estimate, model_builder, settings_of
from bertfit.planning.request_config import EstimateConfig

SMALL = {"model": "hfl/rbt3", "gpu": "rtx-3050-4gb", "max_length": 64, "batch_size": 4}


def asked(**values: object) -> EstimateConfig:
    return EstimateConfig.model_validate({**SMALL, **values})


def test_the_answer_is_that_of_the_estimator() -> None:
    question = asked()
    device = resolve_device("rtx-3050-4gb")
    direct = estimate_memory(model_builder(question), settings_of(question, device), device)
    found, card, settings = estimate(question)
    assert found == direct and card == device and settings.precision == "bf16"


@pytest.mark.parametrize(
    ("card", "precision"), [("rtx-3050-4gb", "bf16"), ("t4", "fp16"), ("gtx-1080", "fp32")]
)
def test_the_precision_is_what_the_card_does_best(card: str, precision: str) -> None:
    assert settings_of(asked(gpu=card), resolve_device(card)).precision == precision


def test_memory_grows_with_batch_and_length() -> None:
    sizes = [estimate(asked(batch_size=b))[0].required_bytes for b in (1, 4, 16)]
    assert sizes == sorted(set(sizes))
    sizes = [estimate(asked(max_length=n))[0].required_bytes for n in (16, 64, 256)]
    assert sizes == sorted(set(sizes))


def test_every_lever_moves_in_its_direction() -> None:
    base = estimate(asked(batch_size=32, max_length=128))[0].required_bytes
    steps = lever_steps(asked(batch_size=32, max_length=128))
    for change, smaller in (
        ("--max-length 64", True),
        ("--frozen-embeddings", True),
        ("--frozen-layers 1", True),
        ("--checkpointed-layers 1", True),
        ("--attn-implementation eager", False),
        ("--precision fp32", False),
    ):
        found = next(e for text, e in steps.items() if text.startswith(change))
        assert (found.required_bytes < base) == smaller, change


@pytest.mark.parametrize("length", [32, 96])
def test_capacity_is_the_last_batch_that_fits(length: int) -> None:
    question = asked(gpu="2GiB", precision="fp32")
    (cell,), device = capacity(question, [length])
    fits = estimate(
        asked(gpu="2GiB", precision="fp32", batch_size=cell.batch_size, max_length=length)
    )
    over = estimate(
        asked(gpu="2GiB", precision="fp32", batch_size=cell.batch_size + 1, max_length=length)
    )
    assert fits[0].required_bytes == cell.required_bytes <= device.total_bytes
    assert over[0].required_bytes > device.total_bytes


def test_capacity_is_zero_where_not_even_one_window_fits() -> None:
    (cell,), device = capacity(
        asked(model="bert-large-uncased", gpu="2GiB", precision="fp32"), [64]
    )
    assert cell.batch_size == 0 and cell.required_bytes > device.total_bytes


def test_a_folder_with_a_config_is_enough(tmp_path: Path) -> None:
    fields = {
        "model_type": "bert",
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 80,
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert estimate(asked(model=str(tmp_path)))[0].peak_reserved_bytes > 0
    with pytest.raises(ModelError, match="ends at 80"):
        estimate(asked(model=str(tmp_path), max_length=81))
    del fields["hidden_size"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ModelError, match="lacks hidden_size"):
        estimate(asked(model=str(tmp_path)))


@pytest.mark.parametrize(("positions", "lengths"), [(60, [60]), (64, [64]), (80, [64, 80])])
def test_lengths_that_nobody_gave_end_where_the_model_does(
    positions: int, lengths: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {
        "model_type": "bert",
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": positions,
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    flags = ["--model", str(tmp_path), "--gpu", "1GiB"]
    question = EstimateConfig(model=str(tmp_path), gpu="1GiB")
    explicit = EstimateConfig(model=str(tmp_path), gpu="1GiB", max_length=positions)
    assert estimate(question) == estimate(explicit)
    assert f"--max-length {positions // 2}" in lever_steps(question) or positions < 64
    assert main(["estimate", *flags]) == 0
    assert f"up to {positions} tokens" in " ".join(capsys.readouterr().out.split())
    assert main(["estimate", *flags, "--max-length", "128"]) == 2
    assert f"--max-length 128: the position table of {tmp_path}" in capsys.readouterr().err
    assert main(["capacity", *flags, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert [cell["max_length"] for cell in row["cells"]] == lengths
    assert main(["capacity", *flags, "--lengths", "32,128"]) == 2
    assert "--lengths 128: the position table" in capsys.readouterr().err


def test_unknown_names_are_answered_with_near_ones() -> None:
    with pytest.raises(ModelError, match="bert-base-chinese"):
        estimate(asked(model="bert-base-chinse"))
    with pytest.raises(ConfigError, match="rtx-3050"):
        estimate(asked(gpu="rtx-3050-5gb"))


def test_the_command_says_whether_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "hfl/rbt3", "--max-length", "64", "--batch-size", "4"]
    assert main(["estimate", *flags, "--gpu", "rtx-3050-4gb", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    parts = sum(part["size_bytes"] for part in document["parts"])
    assert document["fits"] and parts == document["estimate"]["required_bytes"]
    assert main(["estimate", *flags, "--gpu", "1GiB", "--batch-size", "512"]) == 3
    assert main(["estimate", *flags, "--gpu", "nothing"]) == 2
    assert main(["estimate", *flags, "--batch-size", "0", "--precision", "int4"]) == 2
    error = capsys.readouterr().err
    assert "--batch-size 0" in error and "--precision int4" in error


def test_the_capacity_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "hfl/rbt3", "--gpu", "2GiB", "--lengths", "32,64", "--precisions"]
    assert main(["capacity", *flags, "fp32,fp16", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["precision"] for row in rows] == ["fp32", "fp16"]
    for row in rows:
        short, long = (cell["batch_size"] for cell in row["cells"])
        assert short > long > 0
    assert main(["capacity", *flags, "fp32"]) == 0
    assert "hfl/rbt3" in capsys.readouterr().out
    assert main(["capacity", "--model", "hfl/rbt3", "--gpu", "2GiB", "--lengths", "a,b"]) == 2


def test_levers_that_a_mode_does_not_have_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "hfl/rbt3", "--gpu", "2GiB", "--max-length", "32", "--batch-size", "2"]
    assert main(["estimate", *flags, "--mode", "predict", "--optimizer", "sgd"]) == 2
    error = capsys.readouterr().err
    assert "--optimizer" in error and "--mode predict" in error
    assert main(["estimate", *flags, "--every-token"]) == 2
    assert main(["estimate", *flags, "--mode", "embed", "--every-token", "--json"]) == 0


def test_the_answer_says_what_the_host_holds(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "hfl/rbt3", "--gpu", "4GiB", "--max-length", "32", "--batch-size", "2"]
    assert main(["estimate", *flags]) == 0
    printed = capsys.readouterr().out
    assert "On the host" in printed and "--used-rows" in printed
    assert main(["estimate", *flags, "--used-rows", "3000"]) == 0
    assert "--used-rows" not in capsys.readouterr().out


def test_a_number_format_that_the_card_lacks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "hfl/rbt3", "--gpu", "t4", "--precision", "bf16", "--max-length", "16"]
    assert main(["estimate", *flags]) == 2
    assert "no bfloat16" in capsys.readouterr().err


_SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_XMOD = {"languages": ["en_XX", "zh_CN"], "default_language": "en_XX"}


@pytest.mark.parametrize(
    ("fields", "levers", "reason"),
    [
        (
            {"model_type": "fnet"},
            {"attn_implementation": "sdpa"},
            "FNetForTokenClassification has no 'sdpa' attention; it has 'eager'",
        ),
        ({"model_type": "canine"}, {"used_rows": 9}, "no embedding whose rows are pieces"),
        ({"model_type": "xmod", **_XMOD}, {"precision": "fp16"}, "do not run in 16 bits"),
        ({"model_type": "xmod", **_XMOD}, {"precision": "bf16"}, "do not run in 16 bits"),
    ],
)
def test_a_lever_that_a_family_lacks_is_refused_by_name(
    tmp_path: Path, fields: dict[str, object], levers: dict[str, object], reason: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**_SIZES, **fields}))
    with pytest.raises((ConfigError, ModelError), match=reason):
        estimate(asked(model=str(tmp_path), **levers))


def test_the_tables_of_a_model_that_hashes_characters_can_be_frozen(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**_SIZES, "model_type": "canine"}))
    sizes = [
        estimate(asked(model=str(tmp_path), frozen_embeddings=frozen))[0].peak_allocated_bytes
        for frozen in (False, True)
    ]
    assert sizes[1] < sizes[0]
