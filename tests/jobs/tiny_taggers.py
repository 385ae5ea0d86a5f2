"""Taggers with random weights, saved as anybody's checkpoint would be."""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerFast

from bertfit.models.encoder import build_classifier, save_pretrained

_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?北京上海我爱住在天安门张三李四"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tiny_tokenizer(extra: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Letters, their continuations and a few ideographs."""
    pieces = [*SPECIAL, *extra, *_LETTERS, *(f"##{letter}" for letter in _LETTERS)]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        additional_special_tokens=list(extra),
    )


def save_tiny_tagger(
    folder: Path,
    tags: Sequence[str],
    *,
    seed: int = 0,
    markers: Sequence[str] = (),
    layers: int = 2,
    model_type: str = "bert",
    positions: int = 64,
) -> Path:
    """Write a checkpoint with random weights whose answers differ from token to token."""
    tokenizer = tiny_tokenizer(markers)
    torch.manual_seed(seed)
    model = build_classifier(
        {
            "model_type": model_type,
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "max_position_embeddings": positions,
            "pad_token_id": 0,
            "architectures": ["BertForTokenClassification"],
        },
        tuple(tags),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8.0)
    folder.mkdir(parents=True, exist_ok=True)
    save_pretrained(model.eval(), tokenizer, folder)
    return folder
