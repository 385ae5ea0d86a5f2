"""A tagger on disk and in memory: encoder, head, tags, and how its texts are cut.

On disk it is an ordinary Hugging Face checkpoint; what only bertfit knows lies in `bertfit.json`
beside `config.json`.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from torch import nn

from bertfit.errors import ModelError
from bertfit.language import _
from bertfit.models.encoder import (
    LoadedTokenizer,
    check_pieces,
    load_classifier,
    load_tokenizer,
    save_pretrained,
)
from bertfit.models.model_config import max_positions, read_config
from bertfit.types import Encoding, LabelScheme, Split, Task

FORMAT_VERSION = 1
DEFAULT_MAX_LENGTH = 512
INFO_FILE = "bertfit.json"


@dataclass(frozen=True, kw_only=True)
class Tagger:
    """A model that tags units of text.

    Attributes:
        model: a transformers token classifier, K tags.
        tokenizer: its fast tokenizer.
        scheme: the K tags.
        task: what the tags say.
        split: what gets a tag; None where the checkpoint does not say (by the text, then).
        max_length: longest window in tokens, special tokens counted.
        overlap: tokens shared by neighbouring windows.
        trade_offs: what may have cost quality when it was trained.
    """

    model: nn.Module
    tokenizer: LoadedTokenizer
    scheme: LabelScheme
    task: Task
    split: Split | None
    max_length: int
    overlap: int
    trade_offs: tuple[str, ...] = ()


def window_size(
    limit: int | None, max_length: int | None, overlap: int | None, source: str
) -> tuple[int, int]:
    """Return window length and overlap, in tokens.

    Args:
        limit: what the position table allows; None where there is no such limit.
        max_length: what the user asked for.
        overlap: likewise; None is a quarter of the window.
        source: the model, for the message.

    Raises:
        ModelError: `max_length` is beyond the position table.
    """
    if max_length is None:
        max_length = min(DEFAULT_MAX_LENGTH, limit or DEFAULT_MAX_LENGTH)
    elif limit is not None and max_length > limit:
        raise ModelError(
            _(
                "--max-length {length}: the position table of {model} ends at {limit} tokens. Use "
                "--max-length {limit} or less; longer texts are read in overlapping windows."
            ).format(length=max_length, model=source, limit=limit)
        )
    return max_length, max_length // 4 if overlap is None else overlap


def save_tagger(tagger: Tagger, folder: Path) -> None:
    """Write a tagger; the folder appears whole or not at all.

    Raises:
        ModelError: the disk is full or not writable; an older folder is still there then.
    """
    new = folder.with_name(folder.name + ".new")
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        save_pretrained(tagger.model, tagger.tokenizer.fast, new)
        info = {
            "format_version": FORMAT_VERSION,
            "task": tagger.task,
            "encoding": tagger.scheme.encoding,
            "labels": list(tagger.scheme.labels),
            "split": tagger.split,
            "max_length": tagger.max_length,
            "overlap": tagger.overlap,
            "trade_offs": list(tagger.trade_offs),
        }
        text = json.dumps(info, ensure_ascii=False, indent=2) + "\n"
        (new / INFO_FILE).write_text(text, encoding="utf-8")
        _sync(new)
        _replace(folder, new)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(new, ignore_errors=True)
        raise ModelError(
            _(
                "{folder}: the model cannot be written ({reason}). What was saved there before is "
                "whole. Make room, or name another --output-dir."
            ).format(folder=folder, reason=" ".join(str(error).split()))
        ) from None


def _sync(folder: Path) -> None:
    """Have all files on the disk: a name given before that could stand for an empty file."""
    for path in folder.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def _replace(folder: Path, new: Path) -> None:
    """Put a new folder in the place of an old one."""
    old = folder.with_name(folder.name + ".old")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)
    os.replace(new, folder)
    shutil.rmtree(old, ignore_errors=True)


def load_tagger(
    folder: Path,
    *,
    attn_implementation: Literal["sdpa", "eager"] | None = None,
    trust_remote_code: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tagger:
    """Load a tagger that bertfit or anyone else trained; the arguments are `load_classifier`'s.

    Raises:
        ModelError: it is no token classifier, or its files disagree.
    """
    config = read_config(folder, trust_remote_code)
    if not any("TokenClassification" in name for name in config.architectures or []):
        raise ModelError(
            _(
                "{folder}: is an encoder without a tagging head ({kind}). Train one first: bertfit "
                "train --model {folder} --train-file FILE"
            ).format(folder=folder, kind=", ".join(config.architectures or ["?"]))
        )
    tags = tuple(str(config.id2label[i]) for i in sorted(config.id2label))
    model, __ = load_classifier(
        folder,
        tags,
        attn_implementation=attn_implementation,
        trust_remote_code=trust_remote_code,
        dtype=dtype,
    )
    tokenizer = load_tokenizer(folder, trust_remote_code)
    check_pieces(folder, model, tokenizer)
    limit = max_positions(config)
    max_length, overlap = window_size(limit, None, None, str(folder))
    tagger = Tagger(
        model=model,
        tokenizer=tokenizer,
        scheme=LabelScheme(labels=(), encoding="none", tags=tags),
        task="ner",
        split=None,
        max_length=max_length,
        overlap=overlap,
    )
    path = folder / INFO_FILE
    if path.is_file():
        return _with_info(tagger, path, limit)
    return tagger


@dataclass(frozen=True, kw_only=True)
class _Info:
    """What `bertfit.json` holds."""

    format_version: int
    task: Task
    encoding: Encoding
    labels: tuple[str, ...]
    split: Split | None
    max_length: Annotated[int, Field(ge=1)]
    overlap: Annotated[int, Field(ge=0)]

    def fault(self, tags: Sequence[str], limit: int | None) -> str | None:
        """Say what in it cannot be, for a model of these tags and so many positions."""
        num_tags = {"none": 0, "bio": 2, "bioes": 4}[self.encoding] * len(self.labels) + 1
        if len(tags) != (len(self.labels) if self.encoding == "none" else num_tags):
            return _("its labels are not those of config.json")
        if limit is not None and self.max_length > limit:
            return _("max_length {length} is beyond the {limit} positions of the model").format(
                length=self.max_length, limit=limit
            )
        if self.overlap >= self.max_length:
            return _("overlap {overlap} is not below max_length {length}").format(
                overlap=self.overlap, length=self.max_length
            )
        return None


def _with_info(tagger: Tagger, path: Path, limit: int | None) -> Tagger:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        version = stored["format_version"]
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise ModelError(
                _(
                    "{path}: written by a newer bertfit (format {version}, this one reads "
                    "{known}). Update bertfit."
                ).format(path=path, version=version, known=FORMAT_VERSION)
            )
        info = TypeAdapter(_Info).validate_python(stored)
        fault = info.fault(tagger.scheme.tags, limit)
    except ValidationError as error:
        places = (".".join(map(str, each["loc"])) for each in error.errors())
        fault = _("{names} hold what they never do").format(names=", ".join(sorted(set(places))))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        fault = " ".join(f"{type(error).__name__} {error}".split())
    if fault is not None:
        raise ModelError(_("{path}: cannot be used ({reason}).").format(path=path, reason=fault))
    return replace(
        tagger,
        scheme=LabelScheme(labels=info.labels, encoding=info.encoding, tags=tagger.scheme.tags),
        task=info.task,
        split=info.split,
        max_length=info.max_length,
        overlap=info.overlap,
    )
