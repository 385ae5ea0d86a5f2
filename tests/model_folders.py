"""A small model folder, and ways to break it.

Not in `tests/models`: a module of that name is the shared one, which the truth of memory needs.
"""

import json
import struct
from pathlib import Path

import torch

from bertfit.models.encoder import build_classifier, load_tokenizer, save_pretrained
from bertfit.models.tiny import save_tokenizer, tiny_encoder

TAGS = ("O", "B-X", "I-X")


def make_folder(tmp_path: Path) -> Path:
    """A small checkpoint with its tokenizer."""
    path = tmp_path / "home" / "model"
    tiny = tiny_encoder(["anna lives in rome ."] * 2)
    save_tokenizer(tiny, tmp_path / "tokenizer")
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    torch.manual_seed(0)
    save_pretrained(build_classifier(tiny.config, TAGS), tokenizer.fast, path)
    return path


def change_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def rewrite(
    folder: Path, header: object, data: bytes | None = None, length: int | None = None
) -> None:
    """Replace the header of the weights, or claim a length of it that is not so."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    (old,) = struct.unpack("<Q", content[:8])
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = content[8 + old :] if data is None else data
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)


def header_of(folder: Path) -> dict[str, dict[str, object]]:
    content = (folder / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header: dict[str, dict[str, object]] = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    return header
