"""What a model folder may not do, looked at before anything of it is loaded.

Weights are only ever read from safetensors files of the folder itself: no name in an index and no
link leads out of it. Knows nothing of transformers.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertfit.errors import ModelError
from bertfit.language import _

INDEX_FILE = "model.safetensors.index.json"
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
# Tags are numbered in 16 bits.
MOST_LABELS = 32_767
_MOST_WEIGHTS = 200_000
# Ends of names in config.json -> a size beyond that of any model.
_MOST = {
    "num_labels": MOST_LABELS,
    "layers": 10_000,
    "vocab_size": 1 << 28,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "embedding_size": 1 << 20,
    "position_embeddings": 1 << 28,
    "type_vocab_size": 1 << 20,
    "_dim": 1 << 22,
    "d_model": 1 << 20,
}
# safetensors 0.5, tensor.rs: MAX_HEADER_SIZE.
_MOST_HEADER_BYTES = 100_000_000


def check_files(folder: Path) -> None:
    """Refuse a folder whose files lead out of it or are none, or whose index names absent files.

    Raises:
        ModelError: with the file and where it leads.
    """
    root = folder.resolve()
    # The hub's cache: snapshots/<revision>/<name> links to blobs/<checksum> two folders up.
    blobs = root.parent.parent / "blobs"
    for path in sorted(folder.iterdir()):
        if not (os.path.isfile(path) or os.path.isdir(path)):
            raise ModelError(
                _(
                    "{path}: is neither a file nor a folder, but a pipe, a device, or a link that "
                    "leads nowhere. Take the model from where it was published."
                ).format(path=path)
            )
        target = path.resolve()
        if path.is_symlink() and not target.is_relative_to(root) and target.parent != blobs:
            raise ModelError(
                _(
                    "{path}: is a link to {target}, outside the model folder, which bertfit does "
                    "not follow. Put the file itself there."
                ).format(path=path, target=target)
            )
    _check_index(folder)


def _check_index(folder: Path) -> None:
    path = folder / INDEX_FILE
    if not path.is_file():
        return
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        names = {str(name) for name in index["weight_map"].values()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            _("{path}: is no index of weights ({reason}).").format(
                path=path, reason=f"{type(error).__name__} {error}"
            )
        ) from None
    if len(index["weight_map"]) > _MOST_WEIGHTS:
        raise ModelError(
            _("{path}: {name} has {value} entries, and no model has more than {most}.").format(
                path=path, name="weight_map", value=len(index["weight_map"]), most=_MOST_WEIGHTS
            )
        )
    for name in sorted(names):
        if name != Path(name).name or "\\" in name or not name.endswith(".safetensors"):
            raise ModelError(
                _(
                    "{path}: names '{name}', which is no safetensors file of this folder. bertfit "
                    "reads nothing else; take the model from where it was published."
                ).format(path=path, name=name)
            )
        if not (folder / name).is_file():
            raise ModelError(
                _("{path}: names '{name}', which is not there. Fetch the model again.").format(
                    path=path, name=name
                )
            )


def check_sizes(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a config.json with sizes that no model has: to build it would fill the memory.

    Args:
        path: of the file, for the message.
        config: its content.

    Raises:
        ModelError: with the first of them.
    """
    for name, value in config.items():
        most = next((most for end, most in _MOST.items() if name.endswith(end)), None)
        if isinstance(value, int) and most is not None and value > most:
            raise ModelError(
                _("{path}: {name} is {value}, and no model has more than {most}.").format(
                    path=path, name=name, value=str(value)[:40], most=most
                )
            )
    for name in ("id2label", "label2id"):
        labels = config.get(name)
        if isinstance(labels, dict) and len(labels) > MOST_LABELS:
            raise ModelError(
                _("{path}: {name} has {value} entries, and no model has more than {most}.").format(
                    path=path, name=name, value=len(labels), most=MOST_LABELS
                )
            )


def stored_weights(folder: Path) -> dict[str, int] | None:
    """Return how many numbers each weight in a folder is, as the headers of its files say.

    None where a header cannot be read: whoever reads the weights says why.

    Raises:
        ModelError: a weight of whole numbers, which says something else than it means.
    """
    names = ["model.safetensors"]
    found: dict[str, int] = {}
    try:
        if not (folder / names[0]).is_file():
            index = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
            names = sorted({str(name) for name in index["weight_map"].values()})
        for name in names:
            with (folder / name).open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                if size > _MOST_HEADER_BYTES:
                    return None
                header = json.loads(file.read(size))
            header.pop("__metadata__", None)
            for weight, about in header.items():
                if weight.endswith((".weight", ".bias")) and "F" not in about["dtype"]:
                    raise ModelError(
                        _("{name} holds whole numbers ({kind}).").format(
                            name=weight, kind=about["dtype"]
                        )
                    )
                found[weight] = math.prod(map(int, about["shape"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return found


def check_labels(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a config.json whose two tables of labels do not say the same.

    Args:
        path: of the file, for the message.
        config: its content.

    Raises:
        ModelError: with the first label that is in the way.
    """
    id2label, label2id = config.get("id2label"), config.get("label2id")
    if id2label is None:
        return
    reason = _id_fault(id2label)
    if reason is None and label2id is not None:
        reason = _pair_fault(id2label, label2id)
    if reason is not None:
        raise ModelError(
            _("{path}: its labels cannot be used: {reason}. Correct id2label and label2id.").format(
                path=path, reason=reason
            )
        )


def _id_fault(id2label: object) -> str | None:
    if not isinstance(id2label, dict) or not id2label:
        return _("id2label is no table")
    if set(id2label) != {str(number) for number in range(len(id2label))}:
        return _("the ids are not 0 to {last}").format(last=len(id2label) - 1)
    for label in id2label.values():
        if not isinstance(label, str) or not label or _CONTROL.search(label):
            return _("{label} is no label").format(label=json.dumps(label))
    if len(set(id2label.values())) < len(id2label):
        return _("a label has two ids")
    return None


def _pair_fault(id2label: Mapping[str, str], label2id: object) -> str | None:
    if not isinstance(label2id, dict):
        return _("label2id is no table")
    for number, label in id2label.items():
        if label2id.get(label) != int(number):
            return _("id2label has {label} at {number}, label2id at {other}").format(
                label=json.dumps(label, ensure_ascii=False),
                number=number,
                other=json.dumps(label2id.get(label)),
            )
    if len(label2id) > len(id2label):
        extra = next(label for label in label2id if label not in set(id2label.values()))
        return _("label2id alone has {label}").format(label=json.dumps(extra, ensure_ascii=False))
    return None
