"""What a model folder may not do, looked at before anything of it is loaded.

Weights are only ever read from safetensors files of the folder itself: no name in an index and no
link leads out of it. Knows nothing of transformers.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertfit.errors import ModelError
from bertfit.language import _

INDEX_FILE = "model.safetensors.index.json"


def check_files(folder: Path) -> None:
    """Refuse a folder whose files lead out of it, or whose index names files that are not there.

    Raises:
        ModelError: with the file and where it leads.
    """
    root = folder.resolve()
    # The hub's cache: snapshots/<revision>/<name> links to blobs/<checksum> two folders up.
    blobs = root.parent.parent / "blobs"
    for path in sorted(folder.iterdir()):
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
        if not isinstance(label, str) or not label:
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
