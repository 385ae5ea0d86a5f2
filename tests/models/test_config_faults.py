"""Fields of a config.json that no model of its family can have: one line that says which and why."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers

from bertfit.cli import main
from bertfit.errors import ModelError
from bertfit.models.catalogue import known_config, known_models
from bertfit.models.config_faults import check_fields, check_parts
from bertfit.models.model_config import config_fields, read_config
from model_folders import change_config, make_folder

SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}

Config = Callable[..., Path]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    def write(kind: str, **changes: object) -> Path:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **SIZES, **changes}))
        return tmp_path

    return write


# Where the first is another name of a family for one of `SIZES`, the file has both.
SOME = [
    *(
        (kind, "num_attention_heads")
        for kind in ("bert", "roberta", "electra", "albert", "convbert")
    ),
    *(
        (kind, "num_attention_heads")
        for kind in ("deberta-v2", "mpnet", "mobilebert", "longformer")
    ),
    *(
        (kind, "intermediate_size")
        for kind in ("bert", "rembert", "roformer", "canine", "layoutlm")
    ),
    *((kind, "max_position_embeddings") for kind in ("bert", "roberta", "nystromformer", "esm")),
    *(("distilbert", name) for name in ("n_heads", "dim", "hidden_dim", "num_attention_heads")),
    *(("xlnet", name) for name in ("n_head", "d_inner")),
    ("funnel", "d_head"),
    ("electra", "embedding_size"),
    ("albert", "num_hidden_groups"),
    ("convbert", "head_ratio"),
    ("convbert", "num_groups"),
    ("convbert", "conv_kernel_size"),
    ("canine", "num_hash_functions"),
    ("squeezebert", "q_groups"),
    ("mobilebert", "num_feedforward_networks"),
    ("mpnet", "relative_attention_num_buckets"),
    ("big_bird", "block_size"),
]


@pytest.mark.parametrize("value", [-4, 0, 1.5, "x", True, [4, 0]])
@pytest.mark.parametrize(("kind", "name"), SOME)
def test_a_size_that_is_none_is_named(kind: str, name: str, value: object, config: Config) -> None:
    reason = rf"config\.json: {name} is .*; it must be a whole number of 1 or more"
    with pytest.raises(ModelError, match=reason):
        read_config(config(kind, **{name: value}))


@pytest.mark.parametrize(
    ("kind", "name", "value", "near"),
    [
        ("bert", "hidden_act", "gelux", "gelu"),
        ("bert", "hidden_act", "???", "gelu"),
        ("bert", "hidden_act", 5, "gelu"),
        ("roformer", "hidden_act", "Relu", "relu"),
        ("distilbert", "activation", "gelu_neww", "gelu_new"),
        ("xlnet", "ff_activation", "sillu", "silu"),
    ],
)
def test_an_unknown_activation_is_named_with_those_near_it(
    kind: str, name: str, value: object, near: str, config: Config
) -> None:
    says = re.escape(f"{name} is {value!r}, an activation that transformers does not know.")
    reason = rf"{says} Nearest: .*\b{near}\b"
    with pytest.raises(ModelError, match=reason):
        read_config(config(kind, **{name: value}))


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("bert", {"hidden_size": 30}, "num_attention_heads is 4, .* divide hidden_size 30"),
        # transformers builds these two, and they stop in their first product
        ("electra", {"hidden_size": 30}, "num_attention_heads is 4, .* divide hidden_size 30"),
        ("albert", {"num_attention_heads": 5}, "num_attention_heads is 5, .* hidden_size 32"),
        ("roformer", {"num_attention_heads": 5}, "num_attention_heads is 5, .* hidden_size 32"),
        ("distilbert", {"num_attention_heads": 5}, "num_attention_heads is 5, .* hidden_size 32"),
        ("convbert", {"num_groups": 3}, "num_groups is 3, .* hidden_size 32"),
        ("convbert", {"conv_kernel_size": 8}, "conv_kernel_size is 8, and a kernel .* is odd"),
        ("canine", {"num_hash_functions": 5}, "num_hash_functions is 5, .* hidden_size 32"),
        ("squeezebert", {"output_groups": 3}, "output_groups is 3, .* hidden_size 32"),
    ],
)
def test_sizes_that_do_not_go_together_are_named(
    kind: str, changes: dict[str, object], reason: str, config: Config
) -> None:
    with pytest.raises(ModelError, match=reason):
        read_config(config(kind, **changes))


def test_what_families_and_published_models_say_is_never_a_fault() -> None:
    for family in transformers.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING:
        made = family()
        check_fields(Path("config.json"), made.to_dict(), family)
        check_parts(Path("config.json"), made)
    for model in known_models():
        fields = known_config(model.id)
        family = transformers.CONFIG_MAPPING[fields["model_type"]]
        check_fields(Path("config.json"), fields, family)
        check_parts(Path("config.json"), family(**fields))


def test_a_field_that_the_family_does_not_have_says_nothing(config: Config) -> None:
    assert config_fields(config("bert", embedding_size=-1, conv_kernel_size=0))["hidden_size"] == 32


METHODS = [
    {"quant_method": "gptq", "bits": 4},
    {"quant_method": "bitsandbytes", "load_in_8bit": True},
    {"quant_method": "fp8"},
    {"quant_method": "compressed-tensors", "config_groups": {}},
    {"quant_method": "of tomorrow"},
    {},
    "int8",
]


@pytest.mark.parametrize("method", METHODS)
def test_quantized_weights_are_refused_by_name(method: object, tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    change_config(folder, quantization_config=method)
    name = method.get("quant_method", "?") if isinstance(method, dict) else method
    with pytest.raises(ModelError, match=re.escape(f"quantized (quantization_config: {name})")):
        read_config(folder)


def test_every_command_gives_the_same_answer_to_quantized_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path)
    change_config(folder, quantization_config={"quant_method": "fp8"})
    data = tmp_path / "data.conll"
    data.write_text("anna B-X\nlives O\n\n" * 4)
    card = ["--gpu", "rtx-3050-4gb"]
    answers = set()
    for command in (
        ["estimate", "--model", str(folder), *card],
        ["capacity", "--model", str(folder), *card],
        ["plan", "--model", str(folder), *card],
        ["plan", "--model", str(folder), *card, "--train-file", str(data)],
        [
            "train",
            "--model",
            str(folder),
            "--train-file",
            str(data),
            "--output-dir",
            str(tmp_path / "out"),
        ],
        ["predict", str(folder), str(data), "--device", "cpu"],
        ["embed", str(folder), str(data), "--output", str(tmp_path / "out.npy")],
    ):
        capsys.readouterr()
        assert main(command) == 2, command
        answers.add(capsys.readouterr().err.splitlines()[-1])
    assert len(answers) == 1
    assert "quantized (quantization_config: fp8)" in answers.pop()
