"""A model without the pieces of its vocabulary that a job never meets: same text, same numbers.

Kept are the pieces that occur, every single character, special tokens, and whatever the algorithm
needs to come to the same pieces again. A text of kept pieces gives the same embeddings, so the same
logits to the bit; another text is read in smaller pieces than before.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from bertfit.errors import ModelError
from bertfit.language import _
from bertfit.models.encoder import load_tokenizer
from bertfit.models.model_config import max_positions
from bertfit.models.tagger import Tagger

_META = "\u2581"  # SentencePiece's mark of a word's beginning
Pieces = dict[str, int]


def cut_vocabulary(tagger: Tagger, occurring: Iterable[int]) -> tuple[Tagger, dict[int, int]]:
    """Drop the pieces that do not occur from tokenizer, embedding and configuration.

    Args:
        tagger: its model is changed in place.
        occurring: ids of the pieces that are needed.

    Returns:
        The tagger with the smaller tokenizer, and new ids by old ones.

    Raises:
        ModelError: the tokenizer is of a kind that cannot be cut exactly, or the model has no
            embedding table.
    """
    model, config = tagger.model, tagger.model.config
    table = _table(model)
    state = json.loads(tagger.tokenizer.backend.to_str())
    needed = {*occurring, *_special_ids(tagger, state), *_fixed_ids(config)}
    kept = _closed(state["model"], needed)
    new_ids = {old: new for new, old in enumerate(sorted(i for i in kept if i < len(table.weight)))}
    _renumber(state, new_ids)

    with torch.no_grad():
        rows = torch.tensor(sorted(new_ids), dtype=torch.int64)
        padding = None if table.padding_idx is None else new_ids[table.padding_idx]
        smaller = nn.Embedding(len(rows), table.embedding_dim, padding, device="meta")
        smaller.weight = nn.Parameter(table.weight[rows].clone())
    model.set_input_embeddings(smaller)  # type: ignore[operator]
    config.vocab_size = len(rows)  # type: ignore[union-attr]
    for name, value in _id_fields(config).items():
        setattr(config, name, new_ids.get(value))
    return replace(tagger, tokenizer=_reloaded(tagger, state, new_ids)), new_ids


def _table(model: nn.Module) -> nn.Embedding:
    try:
        table = model.get_input_embeddings()  # type: ignore[operator]
    except NotImplementedError:
        table = None
    if not isinstance(table, nn.Embedding):
        raise ModelError(
            _("--allow cut-vocabulary: {model} has no table of pieces.").format(
                model=type(model).__name__
            )
        )
    return table


def _id_fields(config: Any) -> dict[str, int]:
    """Return the fields of a configuration that hold the id of a piece."""
    fields: Mapping[str, Any] = config.to_dict()
    return {
        name: value
        for name, value in fields.items()
        if name.endswith("_token_id") and isinstance(value, int)
    }


def _fixed_ids(config: Any) -> set[int]:
    """Return the ids that the configuration names, and those that must keep their number.

    RoBERTa and its kin count positions from the padding id, so nothing before it may go.
    """
    ids = set(_id_fields(config).values())
    limit, rows = max_positions(config), getattr(config, "max_position_embeddings", None)
    if limit is not None and rows is not None and limit < rows:
        ids.update(range(rows - limit))
    return ids


def _special_ids(tagger: Tagger, state: Mapping[str, Any]) -> set[int]:
    tokenizer = tagger.tokenizer
    added = {token["id"] for token in state["added_tokens"]}
    return {tokenizer.pad_id, tokenizer.unk_id, *tokenizer.prefix, *tokenizer.suffix, *added}


def _closed(model: Mapping[str, Any], needed: set[int]) -> set[int]:
    """Add what the algorithm needs to come to the needed pieces, and every single character."""
    kind, needed = model["type"], set(needed)
    if kind == "Unigram":
        scores = [score for __, score in model["vocab"]]
        pieces = {piece: number for number, (piece, __) in enumerate(model["vocab"])}
        # The score of an unknown character is counted from the lowest score there is.
        needed.add(scores.index(min(scores)))
    elif kind in ("WordPiece", "BPE"):
        pieces = model["vocab"]
    else:
        raise ModelError(
            _(
                "--allow cut-vocabulary: this tokenizer ({kind}) cannot be cut so that it reads as "
                "before; WordPiece, Unigram and BPE can."
            ).format(kind=kind)
        )
    if kind == "BPE" and (model.get("dropout") or model.get("continuing_subword_prefix")):
        raise ModelError(
            _(
                "--allow cut-vocabulary: a BPE tokenizer with dropout or marked continuations "
                "cannot be cut so that it reads as before."
            )
        )
    mark = model.get("continuing_subword_prefix") or _META
    needed.update(
        number
        for piece, number in pieces.items()
        # `<0x0A>`: SentencePiece's byte for what it has no character for.
        if len(piece.removeprefix(mark)) <= 1 or (piece.startswith("<0x") and len(piece) == 6)
    )
    return needed if kind != "BPE" else _with_parts(model, needed)


def _with_parts(model: Mapping[str, Any], needed: set[int]) -> set[int]:
    """Add the parts that pieces of BPE are merged of, their parts, and so on.

    With all merges that lead to kept pieces, every step that the whole vocabulary took on the way
    to one of them is taken again, since the steps that are gone led elsewhere.
    """
    pieces: Pieces = model["vocab"]
    merges: dict[int, list[tuple[int, int]]] = {}
    for left, right in _merges(model):
        merges.setdefault(pieces[left + right], []).append((pieces[left], pieces[right]))
    kept, waiting = set(needed), list(needed)
    while waiting:
        for pair in merges.get(waiting.pop(), ()):
            for part in pair:
                if part not in kept:
                    kept.add(part)
                    waiting.append(part)
    return kept


def _merges(model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right


def _renumber(state: dict[str, Any], new_ids: Mapping[int, int]) -> None:
    """Write new ids into the JSON of a tokenizer, and leave out what has none."""
    model = state["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [
            model["vocab"][old] for old in sorted(new_ids) if old < len(model["vocab"])
        ]
        if model.get("unk_id") is not None:
            model["unk_id"] = new_ids[model["unk_id"]]
    else:
        pieces: Pieces = model["vocab"]
        model["vocab"] = {p: new_ids[old] for p, old in pieces.items() if old in new_ids}
    if model["type"] == "BPE":
        model["merges"] = [
            [left, right] for left, right in _merges(model) if left + right in model["vocab"]
        ]
    for token in state["added_tokens"]:
        token["id"] = new_ids[token["id"]]
    if state.get("post_processor"):
        _renumber_frame(state["post_processor"], new_ids)


def _renumber_frame(step: dict[str, Any], new_ids: Mapping[int, int]) -> None:
    for inner in step.get("processors", ()):
        _renumber_frame(inner, new_ids)
    for name in ("sep", "cls"):  # BertProcessing and RobertaProcessing: (piece, id)
        if isinstance(step.get(name), list):
            step[name][1] = new_ids[step[name][1]]
    if step["type"] == "TemplateProcessing":
        for token in step["special_tokens"].values():
            token["ids"] = [new_ids[old] for old in token["ids"]]


def _reloaded(tagger: Tagger, state: Mapping[str, Any], new_ids: Mapping[int, int]) -> Any:
    """Load the changed tokenizer as anybody would from the folder of the saved model."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        tagger.tokenizer.fast.save_pretrained(folder)
        (folder / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
        settings = folder / "tokenizer_config.json"
        fields = json.loads(settings.read_text(encoding="utf-8"))
        fields.pop("added_tokens_decoder", None)  # old ids; tokenizer.json has the new ones
        # Other classes build their tokenizer anew from a vocabulary of their own format.
        fields["tokenizer_class"] = "PreTrainedTokenizerFast"
        fields.setdefault("model_input_names", list(tagger.tokenizer.fast.model_input_names))
        settings.write_text(json.dumps(fields, ensure_ascii=False), encoding="utf-8")
        for path in folder.iterdir():
            if path.name not in ("tokenizer.json", "tokenizer_config.json"):
                path.unlink()  # vocab.txt, sentencepiece.bpe.model, added_tokens.json: old ids
        return load_tokenizer(folder)
