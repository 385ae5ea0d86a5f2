"""Model folders that ask for too much, say what cannot be, or hold what is no file: refused."""

import json
import os
import struct
import sys
from pathlib import Path

import pytest

from bertfit.errors import ModelError
from bertfit.jobs.predict import load
from bertfit.models.model_config import config_fields
from bertfit.models.safety import MOST_LABELS
from model_folders import change_config, header_of, make_folder, rewrite


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small checkpoint with its tokenizer."""
    return make_folder(tmp_path)


def refused(folder: Path, reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        load(str(folder), device="cpu")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("hidden_size", value) for value in (10**9, 10**30, -1, 0, "64", 64.5, None, [64])),
        *(("num_hidden_layers", value) for value in (10**8, 20_000, 0, -3, "2")),
        *(("vocab_size", value) for value in (10**9, 10**30, 3, -1, "x")),
        ("intermediate_size", 10**9),
        *(("num_attention_heads", value) for value in (0, 7, "x")),
        ("max_position_embeddings", 10**10),
        ("num_labels", 10**8),
        ("pad_token_id", 10**9),
        *(("architectures", value) for value in (5, "TokenClassification", [{"a": 1}], [None])),
        ("model_type", "gpt2"),
    ],
)
def test_sizes_that_cannot_be_are_one_line(folder: Path, name: str, value: object) -> None:
    change_config(folder, **{name: value})
    refused(folder, ".")


@pytest.mark.parametrize("name", ["hidden_size", "vocab_size"])
def test_a_config_that_asks_for_more_than_is_there_takes_no_memory(folder: Path, name: str) -> None:
    change_config(folder, **{name: 1 << 20})
    refused(folder, r"asks for [0-9,]{9,} weights, and [0-9,]{5,8} are there")


@pytest.mark.parametrize("name", ["num_hidden_layers", "vocab_size", "num_labels"])
def test_an_estimate_of_it_is_refused(folder: Path, name: str) -> None:
    change_config(folder, **{name: 10**9})
    with pytest.raises(ModelError, match=rf"{name} is 1000000000, and no model has more than"):
        config_fields(folder)


def test_more_labels_than_tags_can_be_numbered(folder: Path) -> None:
    labels = {str(i): f"L{i}" for i in range(MOST_LABELS + 1)}
    change_config(folder, id2label=labels, label2id={v: int(k) for k, v in labels.items()})
    refused(folder, "id2label has 32768 entries")


def test_a_label_that_would_command_a_terminal_is_none(folder: Path) -> None:
    change_config(folder, id2label={"0": "O", "1": "B-\x1b[31m", "2": "I-X"}, label2id=None)
    refused(folder, "is no label")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
@pytest.mark.parametrize(
    "name",
    [
        *("model.safetensors", "tokenizer.json", "tokenizer_config.json", "bertfit.json"),
        *("special_tokens_map.json", "model.safetensors.index.json", "chat_template.jinja"),
    ],
)
def test_a_pipe_is_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    refused(folder, f"{name}: is neither a file nor a folder")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_links_to_themselves_and_to_nowhere(folder: Path, name: str) -> None:
    reason = "holds no config" if name == "config.json" else "is neither a file nor a folder"
    for target in (name, "other", "nowhere"):
        (folder / name).unlink()
        (folder / name).symlink_to(target)
        if target == "other":
            (folder / "other").symlink_to(name)
        refused(folder, reason)
        (folder / "other").unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("content", ["", "{}", "[]", "null", "[" * 100_000, "\x00", "7"])
def test_files_that_hold_nothing_of_use(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    refused(folder, ".")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_folder_in_the_place_of_a_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    refused(folder, ".")


def test_an_index_of_more_weights_than_a_model_has(folder: Path) -> None:
    weights = {f"a{i}": "model.safetensors" for i in range(200_001)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    refused(folder, "weight_map has 200001 entries")


def test_an_index_that_names_itself_through_a_link(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "x.safetensors"}}))
    (folder / "x.safetensors").symlink_to(index.name)
    refused(folder, "cannot be loaded")


@pytest.mark.parametrize("dtype", ["I32", "U32", "I8", "BOOL", "F64", "EVIL", 7, None])
def test_a_header_that_lies_about_what_the_numbers_are(folder: Path, dtype: object) -> None:
    header = header_of(folder)
    for about in header.values():
        about["dtype"] = dtype
    rewrite(folder, header)
    refused(folder, "cannot be loaded")


def test_weights_that_are_a_hole_of_200_gb(folder: Path) -> None:
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.write(struct.pack("<Q", 90_000_000))
        file.truncate(200 << 30)
    refused(folder, "cannot be loaded")


@pytest.mark.parametrize("highest", [28, 10**6, 2**32 - 1])
def test_a_tokenizer_that_gives_ids_without_a_row(folder: Path, highest: int) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    vocabulary[next(reversed(vocabulary))] = max(highest, rows)
    path.write_text(json.dumps(content))
    refused(folder, "its tokenizer gives ids up to")


INFO = {
    "format_version": 1,
    "task": "ner",
    "encoding": "bio",
    "labels": ["X"],
    "split": "words",
    "max_length": 32,
    "overlap": 8,
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"trade_offs": ["lora"], "of a later bertfit": 1}, None),
        ({"format_version": 2}, "newer bertfit"),
        ({"format_version": "1x"}, "format_version hold"),
        ({"task": "chess"}, "task hold"),
        ({"encoding": []}, "encoding hold"),
        ({"labels": ["X", "Y"]}, "not those of config.json"),
        ({"labels": []}, "not those of config.json"),
        ({"encoding": "bioes"}, "not those of config.json"),
        ({"split": "halves", "overlap": -1}, "overlap, split hold"),
        ({"max_length": 0}, "max_length hold"),
        ({"max_length": 10**12}, "beyond the [0-9]+ positions"),
        ({"overlap": 32}, "overlap 32 is not below max_length 32"),
    ],
)
def test_what_only_bertfit_knows_is_looked_at(
    folder: Path, change: dict[str, object], reason: str | None
) -> None:
    (folder / "bertfit.json").write_text(json.dumps({**INFO, **change}))
    if reason is None:
        assert load(str(folder), device="cpu").tagger.max_length == 32
    else:
        refused(folder, reason)


@pytest.mark.parametrize("content", ["", "[]", "7", "[" * 100_000, "{}"])
def test_what_only_bertfit_knows_is_no_json(folder: Path, content: str) -> None:
    (folder / "bertfit.json").write_text(content)
    refused(folder, r"bertfit\.json: cannot be used")
