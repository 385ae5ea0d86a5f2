"""Other libraries in torch's place: the same logits and entities, and 8 bits only where they pay."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from bertfit.data.batches import pad
from bertfit.data.formats import ReadOptions, read
from bertfit.engine.backends import Forward, no_graph
from bertfit.engine.onnx_backend import has_onnx, onnx_tagger
from bertfit.engine.openvino_backend import has_openvino, openvino_tagger
from bertfit.errors import ConfigError, ModelError
from bertfit.jobs import predict
from bertfit.jobs.backend_choice import backend_of, other_backends
from bertfit.jobs.int8 import load_int8
from bertfit.jobs.predict import Predictor, load
from bertfit.models.encoder import load_classifier, load_tokenizer, save_pretrained
from bertfit.types import Example, Window
from jobs.test_predict import TAGS, texts
from jobs.tiny_taggers import save_tiny_tagger
from shared import shared

CPU = torch.device("cpu")
OTHERS = [
    pytest.param(
        name, marks=pytest.mark.skipif(not installed, reason=f"{name} is not installed here")
    )
    for name, installed in (("openvino", has_openvino()), ("onnx", has_onnx()))
]
needs_onnx = pytest.mark.skipif(not has_onnx(), reason="ONNX Runtime is not installed here")
FAMILIES = ("bert", "roberta", "distilbert", "electra")


def entities(predictor: Predictor, some: list[str]) -> list[list[tuple[int, int, str]]]:
    return [[(e.start, e.end, e.label) for e in found] for found in predictor.entities(some)]


def windows_of(predictor: Predictor, some: list[str]) -> list[Window]:
    examples = (Example(id=str(i), text=text) for i, text in enumerate(some))
    return [window for chunk in predictor.chunks(examples) for window in chunk.windows]


@pytest.mark.parametrize("backend", OTHERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_entities_are_those_of_torch(tmp_path: Path, family: str, backend: str) -> None:
    folder = save_tiny_tagger(tmp_path / "m", TAGS, model_type=family)
    ours = load(str(folder), device="cpu", precision="fp32")
    other = load(str(folder), device="cpu", precision="fp32", backend=backend_of(backend))
    some = texts(40)
    assert sum(map(len, entities(ours, some))) > 20
    assert entities(other, some) == entities(ours, some)
    found = windows_of(ours, some)
    for part in (found[:1], found[:7], found):  # one row, and others of other shapes
        batch = pad(part, 0)
        real = np.ones_like(batch.input_ids)
        real = (real if batch.attention_mask is None else batch.attention_mask).astype(bool)
        with torch.inference_mode():
            expected, got = ours.forward(batch), other.forward(batch)
        torch.testing.assert_close(got[real], expected[real], atol=2e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def real_tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """E5-small under a head of random rows, which tells tokens apart all the same."""
    models = os.environ.get("BERTFIT_TEST_MODELS")
    if models is None or not (Path(models) / "e5" / "model.safetensors").exists():
        pytest.skip("set BERTFIT_TEST_MODELS to a folder that holds e5/model.safetensors")
    torch.manual_seed(0)
    model, __ = load_classifier(Path(models) / "e5", TAGS)
    folder = tmp_path_factory.mktemp("real")
    save_pretrained(model, load_tokenizer(Path(models) / "e5").fast, folder)
    return folder


@pytest.mark.parametrize("backend", OTHERS)
def test_entities_of_real_weights_are_those_of_torch(real_tagger: Path, backend: str) -> None:
    some = [e.text for e in read(shared("data", "cluener", "dev.json"), ReadOptions())][:40]
    ours = load(str(real_tagger), device="cpu", precision="fp32")
    other = load(str(real_tagger), device="cpu", precision="fp32", backend=backend_of(backend))
    expected = entities(ours, some)
    assert sum(map(len, expected)) > 40
    assert entities(other, some) == expected


def test_auto_measures_what_is_installed_and_says_so(tmp_path: Path) -> None:
    if not (has_onnx() or has_openvino()):
        pytest.skip("neither ONNX Runtime nor OpenVINO is installed here")
    folder = save_tiny_tagger(tmp_path / "m", TAGS)
    said: list[str] = []
    sample = [Example(id=str(i), text=text) for i, text in enumerate(texts(20))]
    fastest = load(
        str(folder), device="cpu", precision="fp32", backend="auto", sample=sample, say=said.append
    )
    (message,) = said
    assert "torch" in message
    assert ("onnx" in message, "openvino" in message) == (has_onnx(), has_openvino())
    assert entities(fastest, texts(10)) == entities(load(str(folder), device="cpu"), texts(10))


def test_auto_without_texts_is_torch(tmp_path: Path) -> None:
    folder = save_tiny_tagger(tmp_path / "m", TAGS)
    said: list[str] = []
    load(str(folder), device="cpu", backend="auto", say=said.append)
    assert not said


@pytest.mark.parametrize(
    ("backend", "device", "asked", "words"),
    [
        ("onnx", "cpu", "bf16", "computes in fp32"),
        ("onnx", "cuda", None, "on the processor only"),
        ("openvino", "cuda", None, "on the processor only"),
    ],
)
def test_what_a_backend_cannot_do_is_refused(
    backend: str, device: str, asked: str | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        other_backends(backend_of(backend), torch.device(device), asked, "bf16")  # type: ignore[arg-type]


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="auto, torch, openvino, onnx"):
        backend_of("tensorflow")


def annotated(path: Path, predictor: Predictor, some: list[str]) -> Path:
    """Write what the model itself says as the truth: its F1 is 1."""
    with path.open("w", encoding="utf-8") as file:
        for text, found in zip(some, predictor.entities(some), strict=True):
            spans = [{"start": e.start, "end": e.end, "label": e.label} for e in found]
            file.write(json.dumps({"text": text, "entities": spans}, ensure_ascii=False) + "\n")
    return path


@needs_onnx
def test_8_bits_are_refused_where_they_cost_more_than_allowed(tmp_path: Path) -> None:
    folder = save_tiny_tagger(tmp_path / "m", TAGS)
    some = [text for text in texts(40) if text.strip()]
    dev = annotated(tmp_path / "dev.jsonl", load(str(folder), device="cpu", precision="fp32"), some)
    said: list[str] = []
    # Random weights are close to a tie at every token, so rounding changes many tags.
    rounded = load_int8(str(folder), [dev], max_f1_loss=1.0, say=said.append)
    f1 = float(said[-1].split(" is ")[1].split(",")[0])
    assert 0 < f1 < 1
    assert "1.0000 in fp32" in said[-1]
    assert any(rounded.entities(some))
    with pytest.raises(ConfigError, match=f"falls from 1.0000 to {f1:.4f}, by more than"):
        load_int8(str(folder), [dev], max_f1_loss=(1 - f1) / 2)


@pytest.mark.parametrize("loss", [float("nan"), -0.1, 1.5])
def test_an_f1_loss_that_is_none_is_refused(loss: float) -> None:
    with pytest.raises(ConfigError, match=r"--max-f1-loss .*: say 0 to 1"):
        load_int8("no/model", ["dev.jsonl"], max_f1_loss=loss)


@needs_onnx
def test_8_bits_are_refused_where_there_is_no_f1_to_lose(tmp_path: Path) -> None:
    folder = save_tiny_tagger(tmp_path / "m", TAGS)
    dev = tmp_path / "dev.jsonl"
    entity = {"start": 0, "end": 2, "label": "NEVER"}
    dev.write_text(json.dumps({"text": "ab cd", "entities": [entity]}) + "\n")
    with pytest.raises(ConfigError, match="is 0 before anything is rounded") as raised:
        load_int8(str(folder), [dev], max_f1_loss=1.0)
    assert "PER" in str(raised.value)


@needs_onnx
@pytest.mark.parametrize(
    ("kind", "more"), [("fnet", {}), ("longformer", {"attention_window": 8, "pad_token_id": 1})]
)
def test_a_model_that_no_graph_expresses_is_refused_by_name(
    kind: str, more: dict[str, object]
) -> None:
    """FNet's transform has no operator; Longformer's loop is traced for one length."""
    config = transformers.CONFIG_MAPPING[kind](
        vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, **more
    )
    model = transformers.AutoModelForTokenClassification.from_config(config)
    with pytest.raises(ModelError, match=r"--backend onnx: .* --backend torch"):
        onnx_tagger(model)
    if kind == "longformer" and has_openvino():
        with pytest.raises(ModelError, match=r"--backend openvino: .* --backend torch"):
            openvino_tagger(model, "fp32")


def test_auto_leaves_out_what_cannot_compute_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: nn.Module) -> Forward:
        raise no_graph("onnx", RuntimeError("a loop"))

    monkeypatch.setattr(predict, "other_backends", lambda *asked: {"onnx": refuse})
    folder = str(save_tiny_tagger(tmp_path / "m", TAGS))
    said: list[str] = []
    sample = [Example(id=str(i), text=text) for i, text in enumerate(texts(3))]
    found = load(folder, device="cpu", backend="auto", sample=sample, say=said.append)
    assert said == ["--backend auto: onnx cannot compute this model."]
    assert len(entities(found, texts(3))) == 3
    with pytest.raises(ModelError, match="a loop"):
        load(folder, device="cpu", backend="onnx")
