"""What cannot be in a model's config.json: looked at before a model is made of it.

What is looked at are the fields that its family declares in transformers, so that each family has
its own names and defaults; what a file holds beside them says nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from bertfit.errors import ModelError
from bertfit.language import _

# Names of sizes and counts of which every model has one.
_SIZE = re.compile(
    r"d_\w+|dim|n_(embd|heads?|layers?|positions)|block_sizes|num_(layers|random_blocks)|chunk_size_\w+"
    r"|\w*(_size|_dim|_heads|_hidden_layers|_hidden_groups|_groups|_embeddings|_ratio|_rate"
    r"|_functions|_buckets|_networks|_landmarks|_reduction_factor)"
)
_MAY_BE_ZERO = ("num_random_blocks",)
# A field, and the sizes that it cuts into equal parts.
_PARTS = {
    "num_attention_heads": ("hidden_size",),
    "num_groups": ("hidden_size", "intermediate_size"),  # ConvBERT
    "num_hash_functions": ("hidden_size",),  # CANINE
    "q_groups": ("hidden_size",),  # SqueezeBERT, and those below
    "k_groups": ("hidden_size",),
    "v_groups": ("hidden_size",),
    "post_attention_groups": ("hidden_size",),
    "intermediate_groups": ("hidden_size", "intermediate_size"),
    "output_groups": ("hidden_size", "intermediate_size"),
}
# Families with one of these say how wide a head is.
_HEAD_SIZES = ("head_dim", "d_head", "d_kv", "attention_head_size", "true_hidden_size")


def check_fields(path: Path, raw: Mapping[str, Any], family: Any) -> None:
    """Refuse fields of a config.json that no model of its family can have.

    Args:
        path: of the file, for the message.
        raw: its content.
        family: the configuration class that transformers has for it.

    Raises:
        ModelError: with the first of them: quantized weights, a size that is none, an unknown
            activation.
    """
    _check_quantization(path, raw)
    renamed = getattr(family, "attribute_map", {})
    declared = {field.name: field for field in fields(family)} if is_dataclass(family) else {}
    for name, value in raw.items():
        field = declared.get(renamed.get(name, name))
        if field is None or (value is None and "None" in str(field.type)):
            continue
        if type(field.default) is int and "int" in str(field.type):
            if _SIZE.fullmatch(field.name):
                _check_size(path, name, value, 0 if field.name in _MAY_BE_ZERO else field.default)
        elif isinstance(field.default, str) and "act" in field.name:
            _check_activation(path, name, value)


def check_parts(path: Path, config: Any) -> None:
    """Refuse a configuration whose sizes do not go together.

    Raises:
        ModelError: with the two that do not divide, or a kernel without a middle.
    """
    for name, wholes in _PARTS.items():
        part = getattr(config, name, None)
        if not isinstance(part, int) or part < 1:
            continue
        if name == "num_attention_heads" and any(hasattr(config, size) for size in _HEAD_SIZES):
            continue
        for whole in wholes:
            size = getattr(config, whole, None)
            if isinstance(size, int) and size % part:
                raise ModelError(
                    _(
                        "{path}: {name} is {part}, which does not divide {whole} {size}. Correct "
                        "one of the two, or fetch the model again."
                    ).format(path=path, name=name, part=part, whole=whole, size=size)
                )
    kernel = getattr(config, "conv_kernel_size", None)
    if config.model_type == "convbert" and kernel is not None and kernel % 2 == 0:
        raise ModelError(
            _(
                "{path}: {name} is {value}, and a kernel that keeps the length of a text is odd. "
                "Correct it, or fetch the model again."
            ).format(path=path, name="conv_kernel_size", value=kernel)
        )


def _check_quantization(path: Path, raw: Mapping[str, Any]) -> None:
    # compressed-tensors wrote the second name.
    for name in ("quantization_config", "compression_config"):
        about = raw.get(name)
        if about is not None:
            method = about.get("quant_method", "?") if isinstance(about, dict) else about
            raise ModelError(
                _(
                    "{path}: its weights are quantized ({name}: {method}). bertfit computes with "
                    "weights of 16 or 32 bits: take the model that it was made from, or save it "
                    "again without {name} (dequantize() and save_pretrained() in transformers)."
                ).format(path=path, name=name, method=str(method)[:40])
            )


def _check_size(path: Path, name: str, value: object, default: int) -> None:
    least = min(1, default)
    if type(value) is int and value >= least:
        return
    if isinstance(value, list) and all(type(each) is int and each >= least for each in value):
        return  # whether it may be a list is the family's to say
    raise ModelError(
        _(
            "{path}: {name} is {value}; it must be a whole number of {least} or more. Correct it, "
            "or fetch the model again."
        ).format(path=path, name=name, value=repr(value)[:40], least=least)
    )


def _check_activation(path: Path, name: str, value: object) -> None:
    from transformers.activations import ACT2FN

    known = [str(each) for each in ACT2FN]
    if value in known:
        return
    near = get_close_matches(str(value), known, n=3, cutoff=0.4) or ["gelu", "relu", "silu"]
    raise ModelError(
        _(
            "{path}: {name} is {value}, an activation that transformers does not know. Nearest: "
            "{names}. Correct it, or fetch the model again."
        ).format(path=path, name=name, value=repr(value)[:40], names=", ".join(near))
    )
