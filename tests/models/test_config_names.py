"""Every family's own names for its sizes: read as a hub holds them, asked for when one is not there."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES

from bertfit.errors import ModelError
from bertfit.models.model_config import config_fields
from bertfit.planning.request import estimate
from bertfit.planning.request_config import EstimateConfig

# Without a vocabulary: its table is of hashes.
NO_VOCABULARY = ("canine",)
# A configuration for each part, in which only what is not the default is stored.
IN_PARTS = {
    "modernvbert": "text_config",
    "qwen3_5": "text_config",
    "qwen3_asr": "text_config",
    "t5gemma": "encoder",
    "t5gemma2": "encoder",
    "ultravbert": "text_config",
}
SMALL: dict[str, dict[str, Any]] = {
    "xlnet": {"vocab_size": 50, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    "gpt2": {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "funnel": {"vocab_size": 50, "d_model": 32, "block_sizes": [1, 1], "n_head": 4, "d_inner": 64},
    "flaubert": {"n_words": 50, "emb_dim": 32, "n_layers": 2, "n_heads": 4},
    "bloom": {"vocab_size": 50, "hidden_size": 32, "n_layer": 2, "n_head": 4},
}


def stored(kind: str, folder: Path) -> dict[str, Any]:
    """Write the config.json of a family with its defaults, as a hub holds it; return its fields."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.CONFIG_MAPPING[kind]().save_pretrained(folder)
    fields: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return fields


@pytest.mark.parametrize("kind", sorted(MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES))
def test_a_family_is_read_by_its_own_names_and_no_size_is_made_up(
    kind: str, tmp_path: Path
) -> None:
    fields = stored(kind, tmp_path)
    assert config_fields(tmp_path)["model_type"] == fields["model_type"]
    known = transformers.CONFIG_MAPPING[kind].attribute_map
    names = [known.get(size, size) for size in ("vocab_size", "hidden_size", "num_hidden_layers")]
    if kind == "funnel":
        names[2] = "block_sizes"
    if kind in NO_VOCABULARY:
        names.remove("vocab_size")
    if kind in IN_PARTS:
        names = [IN_PARTS[kind]]
        parts = transformers.CONFIG_MAPPING[kind].sub_configs
        fields = {name: value for name, value in fields.items() if name not in parts}
    for name in names:
        less = {each: value for each, value in fields.items() if each != name}
        (tmp_path / "config.json").write_text(json.dumps(less))
        with pytest.raises(ModelError, match=rf"config.json: lacks .*\b{name}\b"):
            config_fields(tmp_path)


@pytest.mark.parametrize("kind", SMALL)
def test_sizes_by_other_names_are_those_that_are_estimated(kind: str, tmp_path: Path) -> None:
    def peak(**fields: object) -> int:
        (tmp_path / "config.json").write_text(
            json.dumps({"model_type": kind, **SMALL[kind], **fields})
        )
        asked = EstimateConfig(
            model=str(tmp_path), gpu="rtx-3090", mode="predict", batch_size=2, max_length=8
        )
        return estimate(asked)[0].by_category["parameter"]

    width = next(
        name for name in SMALL[kind] if name in ("d_model", "n_embd", "emb_dim", "hidden_size")
    )
    assert peak(**{width: 64}) > 1.9 * peak()
