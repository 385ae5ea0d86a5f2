"""A cut vocabulary: kept text gives the same numbers to the bit, other text is still read."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from bertfit.data.tags import label_scheme
from bertfit.data.windows import windows
from bertfit.errors import ModelError
from bertfit.jobs.predict import text_tokenizer
from bertfit.models.encoder import build_classifier, load_tokenizer
from bertfit.models.tagger import Tagger, load_tagger, save_tagger
from bertfit.models.vocabulary_cut import cut_vocabulary
from bertfit.types import Example
from data.tiny_tokenizers import SENTENCES, TINY, backend

SCHEME = label_scheme(["PER"], "bio")
LEARNT = SENTENCES[: len(SENTENCES) // 2]


def tagger_of(name: str, folder: Path, model_type: str = "bert") -> Tagger:
    """A tagger with random weights around a tokenizer, loaded as anybody's would be."""
    tokenizer = backend(name)
    special = {"cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "pad": "[PAD]"}
    if name == "e5":
        special = {"cls": "<s>", "sep": "</s>", "unk": "<unk>", "pad": "<pad>"}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer.to_str()),
        **{f"{kind}_token": piece for kind, piece in special.items()},
    ).save_pretrained(folder)
    loaded = load_tokenizer(folder)
    torch.manual_seed(0)
    model = build_classifier(
        {
            "model_type": model_type,
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 96,
            "pad_token_id": loaded.pad_id,
            "bos_token_id": None,
            "eos_token_id": None,
            "architectures": ["BertForTokenClassification"],
        },
        SCHEME.tags,
    )
    return Tagger(
        model=model.eval(),
        tokenizer=loaded,
        scheme=SCHEME,
        task="ner",
        split="words",
        max_length=64,
        overlap=8,
    )


def ids_of(tagger: Tagger, texts: "tuple[str, ...] | list[str]") -> list[list[int]]:
    examples = [Example(id=str(i), text=text, entities=()) for i, text in enumerate(texts)]
    made = windows(
        examples,
        text_tokenizer(tagger.tokenizer),
        scheme=None,
        max_length=tagger.max_length,
        overlap=tagger.overlap,
        split="words",
    )
    return [window.input_ids.tolist() for window in made]


def logits_of(tagger: Tagger, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return tagger.model.eval()(input_ids=torch.tensor([ids])).logits


@pytest.mark.parametrize("name", [*TINY, "minilm", "e5"])
@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_kept_text_gives_the_same_logits_to_the_bit_also_after_reload(
    name: str, model_type: str, tmp_path: Path
) -> None:
    tagger = tagger_of(name, tmp_path / "old", model_type)
    if model_type == "roberta" and tagger.tokenizer.pad_id > 30:
        pytest.skip("positions begin behind the padding id")
    old_ids = ids_of(tagger, LEARNT)
    before = [logits_of(tagger, ids) for ids in old_ids]
    size = tagger.model.config.vocab_size
    cut, new_ids = cut_vocabulary(tagger, {i for ids in old_ids for i in ids})
    assert cut.model.config.vocab_size == len(new_ids)
    assert len(new_ids) < size or name == "prepend-bpe"  # which has nothing to spare
    save_tagger(cut, tmp_path / "new")
    for loaded in (cut, load_tagger(tmp_path / "new")):
        again = ids_of(loaded, LEARNT)
        assert again == [[new_ids[i] for i in ids] for ids in old_ids]
        for ids, logits in zip(again, before, strict=True):
            assert torch.equal(logits_of(loaded, ids), logits)


@pytest.mark.parametrize("name", TINY)
@settings(max_examples=30)
@given(data=st.data())
def test_any_text_of_kept_pieces_is_read_as_before(name: str, data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tagger = tagger_of(name, Path(folder))
        words = sorted({word for text in LEARNT for word in text.split()})
        chosen = data.draw(st.lists(st.sampled_from(words), min_size=1, max_size=12))
        text = " ".join(chosen)
        # All words one by one, and each at a beginning, which is another piece to some.
        seen = {i for ids in ids_of(tagger, [*words, " ".join(words)]) for i in ids}
        old = ids_of(tagger, [text])
        cut, new_ids = cut_vocabulary(tagger, seen)
        kept = {i for ids in old for i in ids} <= seen
        if kept:
            assert ids_of(cut, [text]) == [[new_ids[i] for i in ids] for ids in old]


@pytest.mark.parametrize("name", [*TINY, "minilm", "e5"])
def test_other_text_is_read_in_smaller_pieces_and_no_more_is_unknown(
    name: str, tmp_path: Path
) -> None:
    tagger = tagger_of(name, tmp_path)
    others = SENTENCES[len(SENTENCES) // 2 :]
    old = ids_of(tagger, others)
    unknown = tagger.tokenizer.unk_id
    seen = {i for ids in ids_of(tagger, LEARNT) for i in ids}
    cut, new_ids = cut_vocabulary(tagger, seen)
    new = ids_of(cut, others)
    assert all(0 <= i < len(new_ids) for ids in new for i in ids)
    was = sum(i == unknown for ids in old for i in ids)
    assert sum(i == cut.tokenizer.unk_id for ids in new for i in ids) <= was


def test_the_padding_of_roberta_keeps_its_number(tmp_path: Path) -> None:
    tagger = tagger_of("wordpiece", tmp_path, "roberta")
    pad = tagger.tokenizer.pad_id
    cut, __ = cut_vocabulary(tagger, {5})
    assert cut.tokenizer.pad_id == pad == cut.model.config.pad_token_id
    assert cut.model.get_input_embeddings().padding_idx == pad


def test_transformers_alone_reads_the_saved_tokenizer(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tagger = tagger_of("wordpiece", tmp_path / "old")
    cut, new_ids = cut_vocabulary(tagger, np.unique(np.concatenate(ids_of(tagger, LEARNT))))
    save_tagger(cut, tmp_path / "new")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "new")
    assert len(theirs) == len(new_ids) == cut.model.config.vocab_size
    assert theirs(LEARNT[0])["input_ids"] == ids_of(cut, [LEARNT[0]])[0]
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "bertfit.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    tagger = tagger_of("wordpiece", tmp_path / "a")
    words = Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1, "a": 2}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]"
    ).save_pretrained(tmp_path / "b")
    import dataclasses

    other = dataclasses.replace(tagger, tokenizer=load_tokenizer(tmp_path / "b"))
    with pytest.raises(ModelError, match=r"\(WordLevel\) cannot be cut"):
        cut_vocabulary(other, {2})
