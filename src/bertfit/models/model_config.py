"""What a model's config.json says: its kind, its sizes, how long its sequences may be."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertfit.errors import ModelError
from bertfit.language import _
from bertfit.models.config_faults import check_fields, check_parts
from bertfit.models.safety import check_labels, check_sizes
from bertfit.models.transformers_log import log_held_back


@log_held_back()
def read_config(folder: Path, trust_remote_code: bool = False) -> Any:
    """Return the transformers configuration of a folder.

    Raises:
        ModelError: it is not JSON, of an unknown type, brings its own code, or holds what no model
            of its type can have.
    """
    import transformers

    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            _("{path}: cannot be read as JSON ({reason}).").format(path=path, reason=error)
        ) from None
    if not isinstance(raw, dict) or not isinstance(raw.get("model_type"), str):
        raise ModelError(
            _("{path}: has no 'model_type', so it is not a transformers model.").format(path=path)
        )
    check_sizes(path, raw)
    kinds = raw.get("architectures") or []
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise ModelError(_("{path}: its 'architectures' are no list of names.").format(path=path))
    if any("TokenClassification" in kind for kind in kinds):
        check_labels(path, raw)
    unknown = raw["model_type"] not in transformers.CONFIG_MAPPING
    if raw.get("auto_map") and unknown and not trust_remote_code:
        raise ModelError(
            _(
                "{path}: the model brings its own Python code, which bertfit does not run. If "
                "you trust it, say --trust-remote-code."
            ).format(path=path)
        )
    if not unknown:
        check_fields(path, raw, transformers.CONFIG_MAPPING[raw["model_type"]])
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # noqa: BLE001 (transformers checks with classes of its own)
        raise ModelError(
            _("{path}: transformers cannot use it: {reason}").format(
                path=path, reason=one_line(error)
            )
        ) from None
    check_parts(path, config)
    return config


def config_fields(folder: Path) -> dict[str, Any]:
    """Return the fields of a folder's config.json, from which a model without weights is built.

    Raises:
        ModelError: it cannot be read, or does not say how large the model is.
    """
    config = read_config(folder)
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    missing = _unsaid(raw, config)
    if missing:
        raise ModelError(
            _("{path}: lacks {fields}, so the size of the model is not known.").format(
                path=folder / "config.json", fields=", ".join(missing)
            )
        )
    return fields_of(config)


_EXPERTS = "experts_implementation"


def fields_of(config: Any) -> dict[str, Any]:
    """Return what a config.json says; transformers leaves out how experts are run."""
    fields: dict[str, Any] = config.to_dict()
    experts = getattr(config, f"_{_EXPERTS}", None)
    return fields if experts is None else {**fields, _EXPERTS: experts}


def keep_experts(model: Any, folder: Path) -> None:
    """Write into a saved config.json how experts are run, where transformers would choose another.

    Memory, and whether a model can be estimated, depend on it.
    """
    experts = getattr(model.config, f"_{_EXPERTS}", None)
    if experts is None or experts == model.get_correct_experts_implementation(None):
        return
    path = folder / "config.json"
    fields = {**json.loads(path.read_text(encoding="utf-8")), _EXPERTS: experts}
    text = json.dumps(fields, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    path.write_text(text, encoding="utf-8")


# What a config.json must say; transformers fills the rest with the defaults of the family.
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers")
_BLOCKS = "block_sizes"  # of Funnel: how many layers each has


def _unsaid(raw: Mapping[str, Any], config: Any) -> list[str]:
    """Name the sizes that a config.json leaves to the defaults, as its family calls them.

    A model of several parts (text and images, encoder and decoder) has a configuration for each,
    of which only what is not the default is stored.
    """
    aliases: dict[str, str] = config.attribute_map
    own = {size: aliases.get(size, size) for size in _SIZES}
    stored = config.to_dict()
    if _BLOCKS in stored:
        own["num_hidden_layers"] = _BLOCKS
    said = {aliases.get(name, name) for name in raw}
    missing = [name for name in own.values() if name in stored and name not in said]
    if own["hidden_size"] not in stored and not any(part in raw for part in config.sub_configs):
        missing += list(config.sub_configs)
    return missing


def max_positions(config: Any) -> int | None:
    """Return the longest sequence the position table allows; None where there is no table."""
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit <= 0:
        return None
    limit -= first_position(config)
    if config.model_type == "deberta-v2" and not getattr(config, "position_biased_input", True):
        return None
    return limit


def fewest_tokens(config: Any) -> int:
    """Return how short a sequence may be; CANINE reads the means of so many characters."""
    return int(config.downsampling_rate) if config.model_type == "canine" else 1


def first_position(config: Any) -> int:
    """Return the row of the position table that the first token of a sequence gets."""
    return (config.pad_token_id or 0) + 1 if config.model_type in _POSITIONS_AFTER_PADDING else 0


# transformers' create_position_ids_from_input_ids counts from padding_idx + 1 in these.
_POSITIONS_AFTER_PADDING = {
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "roberta-prelayernorm",
    "mpnet",
    "longformer",
    "data2vec-text",
    "xmod",
    "luke",
    "ibert",
    "esm",
}


def set_dropout(config: Any, dropout: float) -> None:
    """Set every dropout field of a transformers configuration."""
    for name in list(vars(config)):
        if "dropout" in name and isinstance(getattr(config, name), float):
            setattr(config, name, dropout)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout"):
        if hasattr(config, name):
            setattr(config, name, dropout)
    if getattr(config, "classifier_dropout", None) is None:
        config.classifier_dropout = dropout


def one_line(error: BaseException) -> str:
    """Return what an error of another library says, in one line of at most 300 letters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
