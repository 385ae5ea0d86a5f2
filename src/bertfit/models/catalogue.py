"""The catalogue of encoders: configurations by name, without hub, weights or transformers.

The rows are in `models.toml`, each with its source. A plan asks here when a name is not a folder
and the hub's `config.json` is not at hand; training still needs the weights.
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bertfit.errors import ModelError
from bertfit.language import _

MODELS_FILE = Path(__file__).with_name("models.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedScore:
    """A figure that somebody published: the best run, and the mean where it is given."""

    task: str
    metric: str
    value: float
    mean: float | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """One row of the catalogue; see the head of `models.toml`.

    Attributes:
        id: on the Hugging Face hub.
        language: its code, or `multilingual`.
        parameters: of the encoder with its pooler, as model cards count.
        checked: what the sizes were compared with; empty if with nothing.
        config: what `AutoConfig` needs, `model_type` included.
    """

    id: str
    aliases: tuple[str, ...]
    language: str
    licence: str
    parameters: int
    checked: str
    note: str
    source: str
    scores: tuple[PublishedScore, ...]
    config: Mapping[str, object]


@lru_cache(maxsize=1)
def known_models() -> tuple[KnownModel, ...]:
    """Return every model of the catalogue, in the order of the file: Chinese ones first."""
    with MODELS_FILE.open("rb") as file:
        return tuple(_model(row) for row in tomllib.load(file)["model"])


def known_model(name: str) -> KnownModel:
    """Find a model by its hub id, an alias, or the part of the id after the slash.

    Case, and `_` for `-`, do not matter.

    Raises:
        ModelError: no model has that name; the message lists the nearest ones.
    """
    names = _names()
    wanted = _normal(name)
    if wanted in names:
        return names[wanted]
    raise ModelError(
        _(
            "'{name}' is no model folder, and the catalogue does not know it. The nearest names: "
            "{nearest}. Or give the folder of a model."
        ).format(name=name, nearest=", ".join(_nearest(wanted)))
    )


def known_config(name: str) -> dict[str, object]:
    """Return a catalogued model's configuration, a copy that the caller may change.

    `transformers.AutoConfig.for_model(**known_config(name))` builds the configuration object.

    Raises:
        ModelError: no model has that name.
    """
    return dict(known_model(name).config)


def _model(row: Mapping[str, Any]) -> KnownModel:
    return KnownModel(
        id=row["id"],
        aliases=tuple(row.get("aliases", ())),
        language=row["language"],
        licence=row["licence"],
        parameters=row["parameters"],
        checked=row["checked"],
        note=row.get("note", ""),
        source=row["source"],
        scores=tuple(PublishedScore(**{"mean": None, **score}) for score in row.get("scores", ())),
        config=row["config"],
    )


@lru_cache(maxsize=1)
def _names() -> dict[str, KnownModel]:
    names = {_normal(model.id): model for model in known_models()}
    for model in known_models():
        for alias in model.aliases:
            names.setdefault(_normal(alias), model)
    # The bare name, where it can only mean one model: bert-base-chinese.
    meanings: dict[str, set[str]] = {}
    for name, model in names.items():
        meanings.setdefault(_bare(name), set()).add(model.id)
    for name, model in list(names.items()):
        if len(meanings[_bare(name)]) == 1:
            names.setdefault(_bare(name), model)
    return names


def _normal(name: str) -> str:
    return name.strip().strip("/").lower().replace("_", "-")


def _bare(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _nearest(wanted: str) -> list[str]:
    """Compare bare names, since the part before the slash is what people leave out or mistake."""
    by_bare: dict[str, str] = {}
    for name, model in _names().items():
        by_bare.setdefault(_bare(name), model.id)
    bare = _bare(wanted)
    close = difflib.get_close_matches(bare, list(by_bare), n=8, cutoff=0.6)
    parts = [name for name in by_bare if bare and bare in name]
    found = dict.fromkeys(by_bare[name] for name in [*close, *parts])
    return list(found)[:5] or [model.id for model in known_models()[:5]]
