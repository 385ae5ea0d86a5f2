"""Questions to `estimate` and `capacity` that cannot be answered: one line, exit 2 (or 3)."""

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertfit.cli import main

FIELDS: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
CARD = ["--gpu", "rtx-3050-4gb"]
SHAPE = ["--batch-size", "2", "--max-length", "16"]
MOST_MORE_BYTES = 300e6  # over a question that is answered

Model = Callable[[bytes], str]
Refused = Callable[..., None]


@pytest.fixture(scope="module", autouse=True)
def libraries(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Answer a question once, so that what libraries take counts for no case."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "config.json").write_text(json.dumps(FIELDS))
    assert main(["estimate", "--model", str(folder), *CARD, *SHAPE, "--json"]) == 0


@pytest.fixture
def model(tmp_path: Path) -> Model:
    def write(config: bytes) -> str:
        (tmp_path / "config.json").write_bytes(config)
        return str(tmp_path)

    return write


def changed(**fields: object) -> bytes:
    return json.dumps({**FIELDS, **fields}).encode()


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    def check(argv: list[str], reason: str) -> None:
        capsys.readouterr()
        before = peak_bytes()
        assert main(argv) == 2
        more = peak_bytes() - before
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")
        assert reason in err
        assert more < MOST_MORE_BYTES

    return check


def peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("hidden_size", value) for value in (-32, 0, "32", 32.5, True, None, [32], 10**9)),
        *(("num_hidden_layers", value) for value in (0, -1, "3", 10**9)),
        *(("vocab_size", value) for value in (0, -1, 10**9, 10**30)),
        *(("num_attention_heads", value) for value in (5, 0, -4, "4")),
        *(("intermediate_size", value) for value in (-64, "64", 10**12)),
        *(("max_position_embeddings", value) for value in (-5, 0, "64")),
        *(("model_type", value) for value in (5, None, "nothing", "whisper", "clip")),
        *(("hidden_act", value) for value in ("nothing", 5)),
        *(("hidden_dropout_prob", value) for value in (7, "x")),
        *(("pad_token_id", value) for value in (1000, -1000)),
        *(("architectures", value) for value in (5, "x")),
        ("type_vocab_size", -1),
        ("layer_norm_eps", "x"),
        ("id2label", []),
        ("torch_dtype", "nothing"),
        ("chunk_size_feed_forward", 5),
    ],
)
def test_a_config_with_a_value_that_no_model_has(
    field: str, value: object, model: Model, refused: Refused
) -> None:
    reason = "'model_type'" if field == "model_type" and not isinstance(value, str) else ""
    refused(["estimate", "--model", model(changed(**{field: value})), *CARD, *SHAPE], reason)


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "num_hidden_layers", "model_type"])
def test_a_config_without_a_field(field: str, model: Model, refused: Refused) -> None:
    text = json.dumps({name: value for name, value in FIELDS.items() if name != field})
    refused(["estimate", "--model", model(text.encode()), *CARD, *SHAPE], field)


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b"5"])
def test_a_config_that_is_none(text: bytes, model: Model, refused: Refused) -> None:
    refused(["estimate", "--model", model(text), *CARD, *SHAPE], "config.json")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        *(
            ([flag, "1000000000"], f"{flag} 1000000000: must be ")
            for flag in ("--batch-size", "--max-length", "--num-tags", "--accumulation")
        ),
        *(
            ([flag, "0"], f"{flag} 0: must be 1 or more")
            for flag in (
                "--batch-size",
                "--num-tags",
                "--accumulation",
                "--first-layers",
                "--used-rows",
            )
        ),
        *(
            (["--batch-size", value], f"--batch-size {value}: must be")
            for value in ("-1", "1.5", "x", "²", "1e3", "9" * 5000)
        ),
        *(
            ([flag, ""], f"{flag} is given with nothing behind it")
            for flag in ("--batch-size", "--max-length", "--precision", "--gpu", "--model")
        ),
        (["--max-length", "1"], "--max-length 1: must be 2 or more"),
        (["--max-length", "65"], "ends at 64 tokens"),
        (["--batch-size", "2000000", "--max-length", "64"], "more than 67108864 tokens"),
        (["--first-layers", "4"], "4 layers were asked for, but the encoder has 3"),
        (["--first-layers", "99"], "99 layers were asked for, but the encoder has 3"),
        (["--frozen-layers", "4"], "4 layers were asked for, but the encoder has 3"),
        (["--checkpointed-layers", "4"], "4 layers were asked for, but the encoder has 3"),
        (["--used-rows", "101"], "the model's vocabulary has 100"),
        (["--lora-rank", "-1"], "--lora-rank -1: must be 0 or more"),
        (["--max-grad-norm", "nan"], "--max-grad-norm nan: must be"),
        (["--precision", "int4"], "'fp32', 'bf16', 'fp16'"),
        (["--optimizer", "adam"], "'adamw', "),
        (["--mode", "predict", "--optimizer", "sgd"], "means nothing with --mode predict"),
        (["--mode", "embed", "--first-layers", "2"], "means nothing with --mode embed"),
        (["--every-token"], "means nothing with --mode train"),
        (["--pure-16bit", "--precision", "fp32"], "need a 16-bit precision"),
        (["--gpu", "rtx-3050-5gb"], "rtx-3050-4gb"),
        (["--gpu", "t4", "--precision", "bf16"], "t4 has no bfloat16"),
        (["--gpu", "0GiB"], "0GiB"),
        (["--gpu", "-4GiB"], "-4GiB"),
        (["--gpu", "nanGiB"], "nanGiB"),
        (["--gpu", "300MiB"], "too small"),
        (["--model", "bert-base-chinse"], "google-bert/bert-base-chinese"),
        (["--model", "x" * 2000], "no name of a model"),
        (["--model", "a\x00b"], "no name of a model"),
        (["--model", "a\nb"], "no name of a model"),
        (["--model", "/dev/null"], "no model folder"),
    ],
)
def test_flags_of_an_estimate(
    flags: list[str], reason: str, model: Model, refused: Refused
) -> None:
    refused(["estimate", "--model", model(changed()), *CARD, *flags], reason)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        *(
            (["--lengths", value], f"--lengths {value}: write whole numbers")
            for value in ("", "²²", "1", "0", "-5", "1.5", "x", "16,,32", "9999999999")
        ),
        (["--lengths", "32,65"], "--lengths 65: the position table"),
        (["--precisions", ""], "--precision"),
        (["--precisions", "fp32,"], "--precision"),
        (["--precisions", "int4"], "int4"),
        (["--precisions", "fp32", "--precision", "fp32"], "give one of them"),
        (["--precision", ""], "--precision is given with nothing behind it"),
        (["--first-layers", "99"], "99 layers were asked for, but the encoder has 3"),
        (["--batch-size", "4"], "no option --batch-size"),
        (["--gpu", "nothing"], "The nearest names"),
        (["--model", "bert-base-chinse"], "google-bert/bert-base-chinese"),
    ],
)
def test_flags_of_a_capacity(flags: list[str], reason: str, model: Model, refused: Refused) -> None:
    refused(["capacity", "--model", model(changed()), *CARD, *flags], reason)


@pytest.mark.parametrize("flags", [["--batch-size", "65536"], ["--lora-rank", "10000000"]])
def test_what_does_not_fit_is_no_fault(
    flags: list[str], model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    question = ["--model", model(changed()), *CARD, "--max-length", "64", *flags]
    capsys.readouterr()
    before = peak_bytes()
    assert main(["estimate", *question]) == 3
    assert peak_bytes() - before < MOST_MORE_BYTES
    out, err = capsys.readouterr()
    assert "does not fit" in " ".join(out.split()) and err == ""
