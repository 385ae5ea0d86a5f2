"""The catalogue of trade-offs: complete, in levers, and each needs less than the job without it."""

from typing import Any, get_args

import pytest

from bertfit.config import TradeOff
from bertfit.planning.estimate import estimate_memory
from bertfit.planning.levers import TrainSettings
from bertfit.planning.tradeoffs import CATALOGUE, entry, in_words, with_trade_offs
from planning.test_estimate import CARD, bert

NAMES: tuple[TradeOff, ...] = get_args(TradeOff)
LEVERS = [name for name in NAMES if name not in ("cut-vocabulary", "shorter-windows")]
PLAIN = TrainSettings(steps=(((4, 64), (4, 64)),), num_tags=9)


def test_the_catalogue_has_every_name_that_can_be_allowed_and_a_source_for_its_price() -> None:
    assert {row.name for row in CATALOGUE} == {*NAMES, "smaller-model"}
    for row in CATALOGUE:
        assert row.source.startswith(("https://", "docs/")), row.name


def test_numbers_and_their_defaults_reach_the_levers() -> None:
    made = with_trade_offs(PLAIN, {"lora": 16, "first-layers": None, "8bit-adamw": None}, 11)
    assert (made.lora_rank, made.first_layers, made.optimizer) == (16, 6, "adamw-8bit")
    made = with_trade_offs(PLAIN, {"first-layers": 7, "frozen-layers": None}, 12)
    assert (made.first_layers, made.frozen_layers, made.frozen_embeddings) == (7, 3, True)
    assert with_trade_offs(PLAIN, {}, 12) == PLAIN


@pytest.mark.parametrize("name", LEVERS)
@pytest.mark.parametrize("host_state", [False, True])
def test_a_trade_off_needs_less_than_the_job_without_it(name: TradeOff, host_state: bool) -> None:
    def need(made: dict[TradeOff, Any]) -> Any:
        plain = TrainSettings(
            steps=PLAIN.steps, num_tags=9, precision="bf16", host_state=host_state
        )
        return estimate_memory(bert(), with_trade_offs(plain, made, 3), CARD)

    less, plain = need({name: None}), need({})
    if host_state:
        assert less.host_bytes <= plain.host_bytes
        assert less.peak_allocated_bytes <= plain.peak_allocated_bytes * 1.001
    else:
        assert less.peak_allocated_bytes < plain.peak_allocated_bytes


def test_what_is_made_is_said_with_its_number_price_and_source() -> None:
    (line,) = in_words({"lora": 4})
    assert line.startswith("Allowed, and made: lora=4 (") and entry("lora").source in line
    assert "(rank 8)" not in line and "rank 8 unless a number is said" in line
