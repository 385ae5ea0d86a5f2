"""Model folders that were made to do harm, or that are broken: refused with a reason, unread.

A canary file proves that nothing of them ran.
"""

import contextlib
import json
import struct
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from bertfit.errors import ModelError
from bertfit.jobs.predict import load
from bertfit.models.encoder import (
    load_classifier,
    load_tokenizer,
)
from bertfit.models.safety import check_files
from bertfit.models.tagger import load_tagger
from model_folders import TAGS, change_config, header_of, make_folder, rewrite


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small checkpoint with its tokenizer."""
    return make_folder(tmp_path)


def with_index(folder: Path, name: str) -> None:
    """Let an index send the readers of the weights to `name`."""
    weights = load_file(folder / "model.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_the_sound_folder_is_taken(folder: Path) -> None:
    assert load_tagger(folder).scheme.tags == TAGS


def test_a_sound_index_is_taken(folder: Path) -> None:
    part = "model-00001-of-00001.safetensors"
    (folder / "model.safetensors").rename(folder / part)
    weights = load_file(folder / part)
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, part)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert load_tagger(folder).scheme.tags == TAGS


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "../../etc/passwd",
        "/etc/passwd",
        "a/../../secret.safetensors",
        "..\\secret.safetensors",
        "part/model.safetensors",
        "pytorch_model.bin",
        "",
    ],
)
def test_an_index_cannot_lead_out_of_the_folder(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder.parent / "secret.safetensors")
    with pytest.raises(ModelError, match=r"index\.json: names '"):
        with_index_of(folder, name)
        load_classifier(folder, TAGS)


def with_index_of(folder: Path, name: str) -> None:
    index = {"metadata": {}, "weight_map": {"a": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_an_index_of_files_that_are_not_there(folder: Path) -> None:
    with_index(folder, "model-00001-of-00002.safetensors")
    with pytest.raises(ModelError, match="which is not there"):
        load_classifier(folder, TAGS)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": null}', "[" * 10_000]
)
def test_an_index_that_is_none(folder: Path, content: str) -> None:
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match="no index of weights"):
        load_classifier(folder, TAGS)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_links_out_of_the_folder_are_not_followed(folder: Path, name: str) -> None:
    outside = folder.parent / f"secret-{name}"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    with pytest.raises(ModelError, match=r"is a link to .*secret"):
        load_tagger(folder)


def test_links_inside_the_folder_and_of_the_hubs_cache_are_followed(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "model.safetensors").rename(folder / "w.safetensors")
    (folder / "model.safetensors").symlink_to("w.safetensors")
    check_files(folder)
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot = tmp_path / "models--a--b" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in [path for path in folder.iterdir() if not path.is_symlink()]:
        path.rename(blobs / f"sha-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/sha-{path.name}")
    (snapshot / "w.safetensors").rename(snapshot / "model.safetensors")
    assert load_tagger(snapshot).scheme.tags == TAGS


# ---- safetensors files ------------------------------------------------------------------------


def refuse(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot be loaded|other shapes|are missing"):
        load_classifier(folder, TAGS)


def test_tensors_that_overlap_are_refused(folder: Path) -> None:
    header = header_of(folder)
    first, second, *__ = sorted(header, key=lambda n: header[n]["data_offsets"])  # type: ignore[arg-type, return-value]
    header[second]["data_offsets"] = header[first]["data_offsets"]
    header[second]["shape"] = header[first]["shape"]
    rewrite(folder, header)
    refuse(folder)


def test_a_header_longer_than_the_file_is_refused(folder: Path) -> None:
    rewrite(folder, header_of(folder), length=1 << 40)
    refuse(folder)


def test_a_header_of_more_than_100_mb_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    size = 101_000_000
    with path.open("wb") as file:  # a sparse file: nothing is written
        file.write(struct.pack("<Q", size) + b"{")
        file.truncate(size + 8)
    refuse(folder)


@pytest.mark.parametrize("offsets", [[0, 1 << 60], [-8, 8], [8, 0], [0.5, 8], "all", [0]])
def test_offsets_that_cannot_be_are_refused(folder: Path, offsets: object) -> None:
    header = header_of(folder)
    header[next(iter(header))]["data_offsets"] = offsets
    rewrite(folder, header)
    refuse(folder)


@pytest.mark.parametrize("shape", [[1 << 40, 1 << 40], [-1], [0], "x", [[1]]])
def test_shapes_that_cannot_be_are_refused(folder: Path, shape: object) -> None:
    header = header_of(folder)
    header[next(iter(header))]["shape"] = shape
    rewrite(folder, header)
    refuse(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a":' * 10_000])
def test_a_header_that_is_none_is_refused(folder: Path, text: bytes) -> None:
    rewrite(folder, text)
    refuse(folder)


def test_data_behind_the_last_tensor_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"#!/bin/sh\n")
    refuse(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_by_name(folder: Path, value: float) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["classifier.weight"][0, 0] = value
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"classifier\.weight holds numbers that are not finite"):
        load_tagger(folder)


# ---- labels -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id2label", "label2id", "reason"),
    [
        (
            {"0": "O", "1": "B-X", "2": "I-X"},
            {"O": 0, "B-X": 2, "I-X": 1},
            'B-X" at 1, label2id at 2',
        ),
        ({"0": "O", "1": "B-X", "2": "I-X"}, {"O": 0, "B-X": 1}, 'I-X" at 2, label2id at null'),
        ({"0": "O", "1": "B-X", "2": "I-X"}, {"O": 0, "B-X": 1, "I-X": 2, "Y": 3}, 'alone has "Y"'),
        ({"0": "O", "1": "O", "2": "I-X"}, None, "a label has two ids"),
        ({"0": "O", "1": "B-X", "3": "I-X"}, None, "ids are not 0 to 2"),
        ({"0": "O", "1": "B-X", "two": "I-X"}, None, "ids are not 0 to 2"),
        ({"0": "O", "1": 7, "2": "I-X"}, None, "7 is no label"),
        ({"0": "O", "1": "", "2": "I-X"}, None, "is no label"),
        ({}, None, "is no table"),
        (["O", "B-X", "I-X"], None, "is no table"),
        ({"0": "O", "1": "B-X", "2": "I-X"}, ["O"], "label2id is no table"),
    ],
)
def test_label_tables_that_disagree_are_refused(
    folder: Path, id2label: object, label2id: object, reason: str
) -> None:
    change_config(folder, id2label=id2label, label2id=label2id)
    with pytest.raises(ModelError, match=reason):
        load_tagger(folder)


def test_more_labels_than_the_head_has_rows_are_refused(folder: Path) -> None:
    labels = {"0": "O", "1": "B-X", "2": "I-X", "3": "B-Y"}
    change_config(folder, id2label=labels, label2id={v: int(k) for k, v in labels.items()})
    with pytest.raises(ModelError, match="other shapes"):
        load_tagger(folder)


def test_a_tagger_without_its_head_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = {n: t for n, t in load_file(path).items() if not n.startswith("classifier")}
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"are missing from its safetensors.*"):
        load_tagger(folder)


# ---- code -------------------------------------------------------------------------------------


def test_code_of_a_tokenizer_is_not_run(folder: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w')\n")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["tokenizer_class"] = "EvilTokenizer"
    config["auto_map"] = {"AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"]}
    path.write_text(json.dumps(config))
    with contextlib.suppress(ModelError):
        load_tokenizer(folder)
    assert not canary.exists()


def test_code_of_a_known_architecture_is_not_run(folder: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w')\n")
    change_config(
        folder,
        auto_map={
            "AutoConfig": "evil.Config",
            "AutoModelForTokenClassification": "evil.Model",
        },
    )
    with contextlib.suppress(ModelError):
        load(str(folder), device="cpu")
    assert not canary.exists()


def test_pickles_beside_safetensors_are_not_opened(folder: Path, tmp_path: Path) -> None:
    import pickle

    canary = tmp_path / "canary"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return (Path.touch, (canary,))

    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "rng_state.pth"):
        (folder / name).write_bytes(pickle.dumps(Bomb()))
    load_tagger(folder)
    assert not canary.exists()
