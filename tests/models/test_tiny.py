"""The tiny encoder: a vocabulary from the training text, and a shape that transformers knows."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertfit.data.demo import demo_examples
from bertfit.models.encoder import build_classifier
from bertfit.models.tiny import CLS_ID, PAD_ID, SEP_ID, TinyEncoder, save_tokenizer, tiny_encoder

TEXTS = ["北京的NBA球员", "北京 2031年", "Harwick lives in Harwick", "Hartley lives here"]


@pytest.fixture(scope="module")
def tiny() -> TinyEncoder:
    return tiny_encoder(TEXTS)


def tokens(tiny: TinyEncoder, text: str) -> list[str]:
    return tiny.tokenizer.encode(text, add_special_tokens=False).tokens


def test_every_ideograph_is_a_token(tiny: TinyEncoder) -> None:
    assert tokens(tiny, "京北球") == ["京", "北", "球"]


def test_every_digit_is_a_token(tiny: TinyEncoder) -> None:
    assert tokens(tiny, "1203") == ["1", "2", "0", "3"] or "[UNK]" not in tokens(tiny, "2031")
    assert tokens(tiny, "2031") == ["2", "0", "3", "1"]


def test_frequent_words_are_whole_and_others_come_in_pieces(tiny: TinyEncoder) -> None:
    assert tokens(tiny, "lives Harwick") == ["lives", "Harwick"]
    pieces = tokens(tiny, "Hartwick")
    assert len(pieces) > 1
    assert "".join(piece.removeprefix("##") for piece in pieces) == "Hartwick"


def test_case_is_kept(tiny: TinyEncoder) -> None:
    assert tokens(tiny, "Lives") != tokens(tiny, "lives")


def test_a_character_that_no_text_holds_is_unknown(tiny: TinyEncoder) -> None:
    assert tokens(tiny, "龘") == ["[UNK]"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_of_the_training_text_is_unknown(language: str) -> None:
    train, __ = demo_examples("zh" if language == "zh" else "en", num_train=300)
    tiny = tiny_encoder(example.text for example in train)
    assert [x.text for x in train if "[UNK]" in tokens(tiny, x.text)] == []


def test_sequences_are_framed_and_the_configuration_knows_the_frame(tiny: TinyEncoder) -> None:
    ids = tiny.tokenizer.encode("北京").ids
    assert (ids[0], ids[-1]) == (CLS_ID, SEP_ID)
    assert tiny.config["cls_token_id"] == CLS_ID == tiny.tokenizer.token_to_id("[CLS]")
    assert tiny.config["sep_token_id"] == SEP_ID == tiny.tokenizer.token_to_id("[SEP]")
    assert tiny.config["pad_token_id"] == PAD_ID == tiny.tokenizer.token_to_id("[PAD]")


def test_the_same_texts_give_the_same_vocabulary() -> None:
    vocabularies = [tiny_encoder(TEXTS).tokenizer.get_vocab() for __ in range(2)]
    assert vocabularies[0] == vocabularies[1]


def test_the_vocabulary_is_no_larger_than_allowed() -> None:
    train, __ = demo_examples("en", num_train=300)
    tiny = tiny_encoder((example.text for example in train), vocab_size=300)
    assert tiny.config["vocab_size"] == tiny.tokenizer.get_vocab_size() <= 300


def test_transformers_loads_the_saved_tokenizer(tiny: TinyEncoder, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    save_tokenizer(tiny, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.is_fast
    assert (loaded.pad_token, loaded.unk_token, loaded.model_max_length) == ("[PAD]", "[UNK]", 512)
    output = loaded("Harwick 北京")
    assert output["input_ids"] == tiny.tokenizer.encode("Harwick 北京").ids
    # ModernBERT takes no token types: model(**tokenizer(text)) must work.
    assert set(output) == {"input_ids", "attention_mask"}


def test_the_parts_make_a_model_that_ignores_padding(tiny: TinyEncoder) -> None:
    torch.manual_seed(0)
    model = build_classifier(tiny.config, ("O", "B-PER", "I-PER")).eval()
    ids = tiny.tokenizer.encode("Harwick lives in 北京").ids
    padded = torch.tensor([ids + [PAD_ID] * 5])
    mask = torch.tensor([[1] * len(ids) + [0] * 5])
    with torch.inference_mode():
        alone = model(input_ids=torch.tensor([ids])).logits
        among = model(input_ids=padded, attention_mask=mask).logits
    assert alone.shape == (1, len(ids), 3)
    torch.testing.assert_close(alone, among[:, : len(ids)], rtol=1e-4, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(max_size=40), max_size=5))
def test_any_text_gives_a_vocabulary(texts: list[str]) -> None:
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    tiny = tiny_encoder(texts)
    assert tiny.tokenizer.get_vocab_size() >= 5


def test_every_process_makes_the_same_vocabulary() -> None:
    code = (
        "import json; from bertfit.models.tiny import tiny_encoder;"
        f"print(json.dumps(tiny_encoder({TEXTS!r}).tokenizer.get_vocab(), sort_keys=True))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        for __ in range(3)
    }
    assert len(outputs) == 1
