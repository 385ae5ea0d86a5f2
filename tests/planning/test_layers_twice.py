"""Any number of layers computed twice, joined from none and all: equal to a trace of its own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bertfit.memory.device import resolve_device
from bertfit.models.encoder import build_classifier
from bertfit.planning.estimate import estimate_memory
from bertfit.planning.layers_twice import RETURNED, Event, twice_below
from bertfit.planning.levers import TrainSettings
from bertfit.planning.mixed_steps import StepFamily

CARD = resolve_device("rtx-3050-4gb")
STEPS = (((3, 48), (3, 48), (1, 17)),)
NUM_LAYERS = 4

FAMILIES: dict[str, dict[str, object]] = {
    "bert": {},
    "xlm-roberta": {"pad_token_id": 1},
    "distilbert": {"dim": 64, "n_layers": NUM_LAYERS, "n_heads": 2, "hidden_dim": 128},
    "electra": {"embedding_size": 32},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "modernbert": {"local_attention": 16, "global_attn_every_n_layers": 3},
    "ernie": {},
}


def builder(model_type: str) -> Callable[[], nn.Module]:
    fields: dict[str, object] = {
        "model_type": model_type,
        "vocab_size": 500,
        "hidden_size": 64,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "max_position_embeddings": 80,
        "pad_token_id": 0,
        **FAMILIES[model_type],
    }

    def build() -> nn.Module:
        with torch.device("meta"):
            return build_classifier(fields, ("O", "B-X", "I-X"))

    return build


def settings(count: int, **levers: Any) -> TrainSettings:
    values = {"precision": "bf16", "autocast_cache": False, **levers}
    return TrainSettings(steps=STEPS, num_tags=3, checkpointed_layers=count, **values)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_k_layers_twice_need_what_a_fresh_trace_says(model_type: str) -> None:
    build = builder(model_type)
    family = StepFamily(build, settings(0), CARD, longest=80)
    for count in range(1, NUM_LAYERS):
        fresh = estimate_memory(build, settings(count), CARD)
        assert family.estimate(STEPS, count) == fresh, count
    assert family.num_traces == 2, "both shapes at once, with none and with all"
    assert family.num_micro_batches == 8, "of each: the very first, the next first, and two later"


@pytest.mark.parametrize(
    "levers",
    [
        {"host_state": True},
        {"host_state": True, "precision": "fp16", "padded": False},
        {"autocast_cache": True, "expandable_segments": True},
        {"precision": "fp32", "frozen_layers": 1, "frozen_embeddings": True},
        {"optimizer": "adamw-8bit", "attn_implementation": "eager"},
    ],
    ids=["host", "host-fp16", "cached", "frozen", "8-bit"],
)
def test_with_other_levers_too(levers: dict[str, Any]) -> None:
    build = builder("bert")
    family = StepFamily(build, settings(0, **levers), CARD, longest=80)
    for count in (1, 3):
        assert family.estimate(STEPS, count) == estimate_memory(
            build, settings(count, **levers), CARD
        )


def events(*told: tuple[Any, str, int]) -> list[Event]:
    """Make events of (key, phase and layer as in `forward 0`, bytes)."""
    return [
        Event(key, size, "temporary", (place.split()[0], f"layer.{place.split()[1]}"))
        for key, place, size in told
    ]


def layer_of(module: str) -> int:
    return int(module.removeprefix("layer."))


NONE = events(
    (0, "forward 0", 10),
    (1, "forward 0", 5),
    (2, "forward 1", 10),
    (1, "forward 0", RETURNED),
    (3, "backward 1", 5),
    (2, "forward 1", RETURNED),
    (4, "backward 0", 1),
    (3, "backward 1", RETURNED),
    (0, "forward 0", RETURNED),
    (4, "backward 0", RETURNED),
)
EVERY = events(
    (7, "forward 0", 5),
    (8, "forward 1", 2),
    (8, "forward 1", RETURNED),
    (9, "backward 1", 10),
    (7, "forward 0", RETURNED),
    (5, "backward 1", 5),
    (9, "backward 1", RETURNED),
    (6, "backward 0", 10),
    (5, "backward 1", RETURNED),
    (6, "backward 0", RETURNED),
)


def sizes(found: list[Event] | None) -> list[int]:
    assert found is not None
    return [event.size_bytes for event in found]


def test_two_layers_joined_by_hand() -> None:
    assert sizes(twice_below(NONE, EVERY, 0, 2, layer_of)) == sizes(NONE)
    assert sizes(twice_below(NONE, EVERY, 2, 2, layer_of)) == sizes(EVERY)
    gone = RETURNED
    assert sizes(twice_below(NONE, EVERY, 1, 2, layer_of)) == [5, 10, gone, 5, gone, 10, gone, gone]


def test_a_layer_that_hands_on_more_does_not_join() -> None:
    more = [
        *EVERY[:1],
        *events((11, "forward 0", 3)),
        *EVERY[1:4],
        *events((11, "forward 0", RETURNED)),
        *EVERY[4:],
    ]
    assert twice_below(NONE, more, 1, 2, layer_of) is None


def test_a_layer_that_is_never_entered_does_not_join() -> None:
    assert twice_below(NONE, EVERY, 1, 3, layer_of) is None
