from bertfit.memory.kernels import (
    Chip,
    SizeRule,
    efficient_backward,
    flash_parts,
    flash_splits,
    layer_norm_blocks,
    padded_bytes,
    reduction,
)

AMPERE = Chip(compute_capability=(8, 6), multiprocessors=82)
A100 = Chip(compute_capability=(8, 0), multiprocessors=108)
TURING = Chip(compute_capability=(7, 5), multiprocessors=40)


def test_a_bias_gradient_over_1024_rows_stages_16_blocks_of_rows() -> None:
    # 32x4 threads of 4 columns: 6 blocks of columns, 256 values a thread, 256 / 16 = 16 blocks.
    assert reduction(AMPERE, kept=768, reduced=1024, fastest=768, fastest_reduced=False) == (
        4 * 768 * 16 * 32 * 4,
        4 * 6,
    )


def test_few_rows_are_summed_in_one_pass() -> None:
    assert reduction(AMPERE, kept=768, reduced=512, fastest=768, fastest_reduced=False) == ()


def test_the_blocks_of_a_reduction_follow_the_multiprocessors() -> None:
    wide = {"kept": 64, "reduced": 1 << 20, "fastest": 64, "fastest_reduced": False}
    assert reduction(TURING, **wide) != reduction(AMPERE, **wide)


def test_attention_backward_keeps_tiles_of_the_query_gradient() -> None:
    kernel = efficient_backward(AMPERE, head=64, half=False, dropout=True)
    size = kernel.workspace_bytes(batch=8, heads=12, queries=128, keys=128, head=64, value_head=64)
    assert size == 8 * 12 * 2 * (64 * 64 + 4) * 4 == 3148800  # as PyTorch 2.14 asked


def test_attention_backward_stages_key_gradients_for_heads_beyond_the_registers() -> None:
    kernel = efficient_backward(AMPERE, head=80, half=True, dropout=True)
    assert (kernel.queries, kernel.keys, kernel.keeps_output) == (64, 64, False)
    size = kernel.workspace_bytes(batch=3, heads=4, queries=300, keys=300, head=80, value_head=80)
    assert size == 5900160  # as PyTorch 2.14 asked


def test_flash_attention_spreads_few_blocks_over_the_card() -> None:
    # 164 places: 120 blocks leave 27% idle and 240 as much in two rounds, so they stay as they are.
    assert flash_splits(AMPERE, blocks=120, key_blocks=2) == 1
    assert flash_splits(AMPERE, blocks=60, key_blocks=2) == 2
    # 3 parts of 4 blocks would be 2 parts; 4 fill 200 of 328 places, no more than 100 of 164.
    assert flash_splits(AMPERE, blocks=50, key_blocks=4) == 2
    assert flash_splits(AMPERE, blocks=132, key_blocks=64) == 1


def test_the_parts_of_flash_attention_have_sums_and_outputs_of_their_own() -> None:
    def parts(batch: int, length: int) -> tuple[int, ...]:
        return flash_parts(chip=A100, heads=12, head=64, batch=batch, length=length, keys=length)

    assert parts(1, 512) == (2 * 12 * 512 * 4, 2 * 12 * 512 * 64 * 4)
    assert parts(1, 256) == parts(8, 512) == ()


def test_cards_with_more_shared_memory_take_larger_blocks() -> None:
    assert efficient_backward(A100, head=80, half=True, dropout=True).queries == 128
    assert efficient_backward(AMPERE, head=80, half=True, dropout=False).most_head == 96
    assert efficient_backward(TURING, head=80, half=True, dropout=True).keys == 64


def test_layer_norm_splits_rows_only_beyond_65536_of_them() -> None:
    assert layer_norm_blocks(AMPERE, rows=65536, width=320) == 0
    assert layer_norm_blocks(AMPERE, rows=80000, width=320) == 2500
    assert layer_norm_blocks(AMPERE, rows=80000, width=4096) == 0


def test_a_rule_gives_sizes_for_other_numbers() -> None:
    rule = SizeRule(padded_bytes, (("multiple", 32),), (("rows", 2), ("length", 33)))
    assert rule.sizes() == (2 * 64 * 4,)
    assert rule.sizes([("rows", 1), ("length", 7)]) == (32 * 4,)
