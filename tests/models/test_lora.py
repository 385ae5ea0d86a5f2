"""Adapters: they begin as nothing, train beside a frozen encoder, and are gone once saved."""

from pathlib import Path

import pytest
import torch
from torch import nn

from bertfit.models.encoder import build_classifier
from bertfit.models.head import head_parameters
from bertfit.models.lora import add_lora, merged
from tiny_models import SCHEME, tiny_model

IDS = torch.tensor([[2, 5, 6, 7, 3], [2, 9, 3, 0, 0]])
FAMILIES = ("bert", "roberta", "distilbert", "electra", "albert", "deberta-v2")


def logits_of(model: nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(input_ids=IDS, attention_mask=(IDS > 0).long()).logits


def moved(model_type: str) -> nn.Module:
    """A model whose adapters say something."""
    model = tiny_model(model_type=model_type)
    add_lora(model, 4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_model_begins_as_it_was_and_trains_adapters_and_head_alone(model_type: str) -> None:
    model = tiny_model(model_type=model_type)
    before = logits_of(model)
    add_lora(model, 4)
    assert torch.equal(logits_of(model), before)
    head = {name for name, __ in head_parameters(model)}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert head <= trained and all("lora_" in name for name in trained - head)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_saved_model_is_an_ordinary_one_that_computes_the_same(
    model_type: str, tmp_path: Path
) -> None:
    from transformers import AutoModelForTokenClassification

    names = set(tiny_model(model_type=model_type).state_dict())
    model = moved(model_type)
    before = logits_of(model)
    with merged(model):
        assert set(model.state_dict()) == names
        model.save_pretrained(tmp_path)
    assert torch.equal(logits_of(model), before), "what is trained is as it was"
    loaded = AutoModelForTokenClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(logits_of(loaded), before, rtol=1e-5, atol=1e-6)
    plain = logits_of(tiny_model(model_type=model_type))
    assert not torch.allclose(before, plain, atol=1e-3)


def test_an_error_while_saving_leaves_the_adapters() -> None:
    model = moved("bert")
    before = logits_of(model)
    with pytest.raises(OSError, match="full"), merged(model):
        raise OSError("full")
    assert torch.equal(logits_of(model), before)


def test_a_model_without_bytes_gets_adapters_without_bytes() -> None:
    with torch.device("meta"):
        model = build_classifier({"model_type": "bert"}, SCHEME.tags)
    add_lora(model, 8)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    # Rank 8 beside 12 layers of query, key, value, output (768 x 768) and 768 x 3072 twice.
    adapters = sum(p.numel() for n, p in model.named_parameters() if "lora_" in n)
    assert adapters == 12 * 8 * (4 * (768 + 768) + 2 * (768 + 3072))
