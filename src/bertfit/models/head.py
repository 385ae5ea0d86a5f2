"""The layers above the encoder, which say a tag for each token; and rows of a saved one."""

from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

HEAD_DEVIATION = 0.02  # BERT's initializer_range
# The last layer of transformers' token classification heads: one row per tag.
_TAG_LAYERS = ("classifier", "score")


def head_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters outside the encoder, with their names."""
    prefix = str(getattr(model, "base_model_prefix", "")) + "."
    return [(name, p) for name, p in model.named_parameters() if not name.startswith(prefix)]


def take_head_rows(
    folder: Path, model: nn.Module, old_tags: list[str], tags: tuple[str, ...]
) -> tuple[str, ...]:
    """Copy the rows of the saved head for tags that are wanted again.

    Args:
        folder: the model's, with its safetensors.
        model: with a new head; changed in place.
        old_tags: of the saved head, by id.
        tags: wanted now, by id.

    Returns:
        The tags whose rows were taken.
    """
    if tuple(old_tags) == tags:
        return tags  # loaded whole already
    shared = [tag for tag in tags if tag in old_tags]
    rows = torch.tensor([tags.index(tag) for tag in shared], dtype=torch.int64)
    old_rows = torch.tensor([old_tags.index(tag) for tag in shared], dtype=torch.int64)
    taken = False
    for name, parameter in head_parameters(model):
        if name.split(".")[0] not in _TAG_LAYERS:
            continue
        saved = _saved_tensor(folder, name)
        if saved is None or saved.shape[0] != len(old_tags):
            continue
        with torch.no_grad():
            # As many tags as before: the old rows were loaded under the new tags' names.
            parameter.normal_(0.0, HEAD_DEVIATION).mul_(parameter.ndim > 1)
            parameter[rows] = saved[old_rows].to(parameter)
        taken = True
    return tuple(shared) if taken else ()


def _saved_tensor(folder: Path, name: str) -> torch.Tensor | None:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if name in file.keys():  # noqa: SIM118 (not a dict)
                tensor: torch.Tensor = file.get_tensor(name)
                return tensor
    return None
