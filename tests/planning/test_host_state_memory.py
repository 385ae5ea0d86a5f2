"""What state on the host leaves of a job on the card, and what it takes of the host."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from bertfit.engine.fence import snapshot_bytes
from bertfit.engine.host_state import held_bytes
from bertfit.engine.transfer import CARD_CHUNKS, CHUNK_BYTES, HOST_CHUNKS
from bertfit.engine.weights import stored_bytes
from bertfit.memory.device import resolve_device
from bertfit.planning import levers
from bertfit.planning.estimate import estimate_memory, simulate
from bertfit.planning.levers import TrainSettings
from bertfit.planning.mixed_steps import StepFamily
from bertfit.planning.shapes import ShapeFamily
from bertfit.types import MemoryEstimate

CARD = resolve_device("rtx-3050-4gb")


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=3000,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=512,
        num_labels=9,
    )
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        return transformers.BertForTokenClassification(config)


def settings(*shapes: tuple[int, int], **levers: Any) -> TrainSettings:
    values = {"precision": "bf16", "host_state": True, **levers}
    return TrainSettings(steps=(shapes or ((4, 32), (4, 32)),), num_tags=9, **values)


def need(*shapes: tuple[int, int], **levers: Any) -> MemoryEstimate:
    return estimate_memory(bert, settings(*shapes, **levers), CARD)


def test_the_card_has_weights_and_ways_out_and_no_optimizer_state() -> None:
    kinds = need().by_category
    weights = stored_bytes(bert(), "bf16")
    assert weights <= kinds["parameter"] < 1.05 * weights  # blocks of 512 bytes
    assert "optimizer_state" not in kinds and "gradient" not in kinds
    plain = need(host_state=False).by_category
    assert plain["optimizer_state"] > 2 * plain["parameter"] * 0.9


def test_what_the_lever_saves_counted_by_hand() -> None:
    held = simulate(bert, settings((1, 8)), CARD).allocator.peak_allocated_bytes
    plain = simulate(bert, settings((1, 8), host_state=False), CARD).allocator
    count = sum(p.numel() for p in bert().parameters())
    gone = 16 * count - stored_bytes(bert(), "bf16") - CARD_CHUNKS * CHUNK_BYTES
    # Blocks are rounded, and the largest gradient is there for a moment.
    assert plain.peak_allocated_bytes - held == pytest.approx(gone, abs=3000 * 128 * 4 + (1 << 20))


def test_host_and_pinned_bytes_are_counted() -> None:
    held, plain = need(), need(host_state=False)
    assert held.pinned_bytes == HOST_CHUNKS * CHUNK_BYTES and plain.pinned_bytes == 0
    weights = 4 * sum(p.numel() for p in bert().parameters())
    # The plain job takes the weights from the card once, to save them.
    assert held.host_bytes - plain.host_bytes == pytest.approx(
        held_bytes(bert()) - weights, rel=0.01
    )


@pytest.mark.parametrize("host_state", [False, True])
def test_a_job_that_writes_no_checkpoints_needs_no_copy_for_them(host_state: bool) -> None:
    saving, never = need(host_state=host_state), need(host_state=host_state, saves=False)
    # On the host the count of the steps, a number for each parameter, is not counted.
    counts = 4 * len(list(bert().parameters()))
    copied = saving.host_bytes - never.host_bytes
    assert copied == pytest.approx(snapshot_bytes(bert()), abs=counts if host_state else 0)
    assert replace(never, host_bytes=saving.host_bytes) == saving, "nothing else changes"


def after_the_forward(layers: int) -> int:
    """Return the bytes on the card when the first backward begins."""
    trace = simulate(bert, settings((8, 64), checkpointed_layers=layers), CARD).trace
    live = 0
    for entry in trace.stream:
        block = entry if entry >= 0 else ~entry
        if trace.places[block][0] == "backward":
            return live
        live += trace.sizes[block] if entry >= 0 else -trace.sizes[block]
    raise AssertionError("there is no backward")


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_inputs_of_layers_computed_twice_wait_on_the_host(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = 8 * 64 * 128 * 4
    without = after_the_forward(layers)
    pinned = need((8, 64), checkpointed_layers=layers).pinned_bytes
    assert pinned == need().pinned_bytes + {1: 1, 2: 2, 3: 4}[layers] * row  # a power of two
    monkeypatch.setattr(levers, "keep_inputs_on_host", lambda layers: None)
    assert after_the_forward(layers) - without == layers * row


@pytest.mark.parametrize("layers", [0, 3])
def test_a_family_of_shapes_knows_the_lever(layers: int) -> None:
    def at(shape: tuple[int, int]) -> TrainSettings:
        return settings(shape, shape, checkpointed_layers=layers)

    family = ShapeFamily(bert, at, CARD)
    assert family.estimate((3, 40)) == estimate_memory(bert, at((3, 40)), CARD)
    assert family.estimate((7, 56)) == estimate_memory(bert, at((7, 56)), CARD)


@pytest.mark.parametrize("layers", [0, 1, 2, 3])
def test_steps_of_any_shapes_know_the_lever(layers: int) -> None:
    job = settings((4, 32), (2, 40), (4, 32), checkpointed_layers=layers)
    assert StepFamily(bert, job, CARD).estimate(job.steps) == estimate_memory(bert, job, CARD)
