"""Families whose code mixes number formats train, predict and embed in fp32 by themselves."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from bertfit.config import job_config
from bertfit.engine import precision
from bertfit.errors import ModelError
from bertfit.jobs.embed import load_encoder
from bertfit.jobs.predict import load
from bertfit.jobs.train import train
from bertfit.models.encoder import build_classifier, load_tokenizer, save_pretrained
from bertfit.models.tiny import save_tokenizer, tiny_encoder
from jobs.corpora import sentence, write_corpus
from model_folders import TAGS

FAMILIES: dict[str, dict[str, Any]] = {
    "deberta": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "bert": {},
}


@pytest.fixture(autouse=True)
def processor_with_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: True)


def model_of(kind: str, folder: Path) -> str:
    tiny = tiny_encoder(str(sentence(random.Random(n))["text"]) for n in range(99))
    save_tokenizer(tiny, folder / "tokenizer")
    torch.manual_seed(0)
    model = build_classifier({**tiny.config, **FAMILIES[kind], "model_type": kind}, TAGS)
    save_pretrained(model, load_tokenizer(folder / "tokenizer").fast, folder / "model")
    return str(folder / "model")


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("device", ["cpu", "sim:4GiB"])
def test_it_trains_predicts_and_embeds_and_says_so_once(
    kind: str, device: str, tmp_path: Path
) -> None:
    said: list[str] = []
    asked = {
        "model": model_of(kind, tmp_path),
        "train_file": write_corpus(tmp_path / "t.jsonl", 16),
        "output_dir": tmp_path / "run",
        "device": device,
        "num_train_epochs": 1,
    }
    report = train(job_config(asked), progress=False, say=said.append)
    plain = kind == "bert"
    assert sum("16 bits" in line and kind in line for line in said) == (0 if plain else 1)
    tagger = load(str(report.output_dir), device="cpu")
    assert tagger.precision == ("bf16" if plain else "fp32")
    assert list(tagger.entities(["Anna lives in Rome ."]))
    said.clear()
    embedder = load_encoder(str(report.output_dir), device="cpu", say=said.append)
    assert len(said) == (0 if plain else 1)
    assert embedder.precision == tagger.precision
    if plain:
        return
    with pytest.raises(ModelError, match=f"--precision bf16: models of type '{kind}'"):
        load(str(report.output_dir), device="cpu", precision="bf16")
    with pytest.raises(ModelError, match=f"--precision bf16: models of type '{kind}'"):
        train(job_config({**asked, "precision": "bf16", "overwrite": True}), progress=False)
