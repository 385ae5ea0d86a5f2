"""Encoders by name; every row is built on the meta device and counted."""

import subprocess
import sys
from collections import Counter

import pytest

from bertfit.errors import ModelError
from bertfit.models.catalogue import KnownModel, known_config, known_model, known_models


def test_there_are_forty_models_and_the_chinese_ones_come_first() -> None:
    models = known_models()
    assert len(models) >= 40
    languages = [model.language for model in models]
    chinese = [language in ("zh", "zh-Hant", "lzh") for language in languages]
    assert sum(chinese) >= 40
    assert chinese == sorted(chinese, reverse=True)


def test_ids_and_aliases_name_one_model_each() -> None:
    names = [name.lower() for model in known_models() for name in (model.id, *model.aliases)]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    for model in known_models():
        for name in (model.id, *model.aliases):
            assert known_model(name) is model


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("bert-base-chinese", "google-bert/bert-base-chinese"),
        ("google-bert/bert-base-chinese", "google-bert/bert-base-chinese"),
        ("chinese-roberta-wwm-ext", "hfl/chinese-roberta-wwm-ext"),
        ("hfl/chinese_macbert_base", "hfl/chinese-macbert-base"),
        ("XLM-RoBERTa-base", "FacebookAI/xlm-roberta-base"),
        ("ernie-3.0-base-zh", "nghuyong/ernie-3.0-base-zh"),
        ("albert_chinese_tiny", "voidful/albert_chinese_tiny"),
        ("ModernBERT-base", "answerdotai/ModernBERT-base"),
        ("cl-tohoku/bert-base-japanese-v3", "tohoku-nlp/bert-base-japanese-v3"),
        ("distilbert-base-uncased", "distilbert/distilbert-base-uncased"),
    ],
)
def test_a_model_is_found_by_what_people_call_it(name: str, id: str) -> None:
    assert known_model(name).id == id


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("bert-base-chinse", "google-bert/bert-base-chinese"),
        ("hfl/chinese-macbert-bas", "hfl/chinese-macbert-base"),
        ("someone/chinese-roberta-wwm-ex", "hfl/chinese-roberta-wwm-ext"),
        ("", "google-bert/bert-base-chinese"),
        ("deberta", "microsoft/deberta-v3-base"),
    ],
)
def test_an_unknown_model_is_refused_with_the_nearest_names(name: str, nearest: str) -> None:
    with pytest.raises(ModelError, match="nearest names") as caught:
        known_model(name)
    assert nearest in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_configuration_is_a_copy() -> None:
    known_config("bert-base-chinese")["vocab_size"] = 1
    assert known_config("bert-base-chinese")["vocab_size"] == 21128


@pytest.mark.parametrize("model", known_models(), ids=lambda model: model.id)
def test_a_row_is_complete(model: KnownModel) -> None:
    assert model.source == f"https://huggingface.co/{model.id}"
    assert model.licence and model.language
    assert {"model_type", "vocab_size", "max_position_embeddings"} <= set(model.config)
    for score in model.scores:
        assert score.source.startswith("https://")
        assert 0 < score.value <= 100
        assert score.mean is None or 0 < score.mean <= score.value


@pytest.mark.parametrize("model", known_models(), ids=lambda model: model.id)
def test_the_encoder_has_as_many_parameters_as_the_row_says(model: KnownModel) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModel

    with torch.device("meta"):
        encoder = AutoModel.from_config(AutoConfig.for_model(**model.config))
    assert sum(parameter.numel() for parameter in encoder.parameters()) == model.parameters


@pytest.mark.parametrize(
    ("name", "millions"),
    [  # as the papers and model pages round them
        ("bert-base-chinese", 102),
        ("chinese-roberta-wwm-ext-large", 326),
        ("chinese-electra-180g-small", 12),
        ("rbt3", 38),
        ("xlm-roberta-base", 278),
        ("xlm-roberta-large", 560),
        ("distilbert-base-uncased", 66),
        ("albert-base-v2", 12),
        ("ModernBERT-large", 395),
        ("deberta-v3-base", 184),
    ],
)
def test_parameters_are_those_that_were_published(name: str, millions: int) -> None:
    assert round(known_model(name).parameters / 1e6) == millions


def test_nearly_all_sizes_were_compared_with_a_second_source() -> None:
    checked = [model for model in known_models() if model.checked]
    assert len(checked) >= 0.75 * len(known_models())


def test_looking_up_a_model_loads_neither_torch_nor_transformers() -> None:
    program = (
        "import sys; from bertfit.models.catalogue import known_config; known_config('rbt3');"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
