"""The parts of an estimate add up, and the tables show them in both languages."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertfit.cli.memory_tables import heat, print_capacity, print_effects, print_parts
from bertfit.diagnose.explain import compare, explain
from bertfit.language import use_language
from bertfit.types import MemoryEstimate
from bertfit.units import MIB


def estimate(reserved: int = 2000, context: int = 300, **sizes: int) -> MemoryEstimate:
    """An estimate in MiB."""
    margin = 23
    return MemoryEstimate(
        peak_allocated_bytes=sum(sizes.values()) * MIB,
        peak_reserved_bytes=reserved * MIB,
        context_bytes=context * MIB,
        margin_bytes=margin * MIB,
        required_bytes=(reserved + context + margin) * MIB,
        host_bytes=0,
        pinned_bytes=0,
        by_category={kind: size * MIB for kind, size in sizes.items()},
        peak_phase="backward",
        peak_module="bert.embeddings",
    )


BERT = estimate(parameter=388, gradient=388, optimizer_state=776, activation=300, workspace=16)


def test_parts_are_named_and_sorted_with_the_fixed_ones_last() -> None:
    assert [part.kind for part in explain(BERT)] == [
        "optimizer_state",
        "parameter",
        "gradient",
        "activation",
        "workspace",
        "fragmentation",
        "context",
        "margin",
    ]
    fragmentation = explain(BERT)[5]
    assert fragmentation.size_bytes == (2000 - 388 - 388 - 776 - 300 - 16) * MIB


SIZES = st.integers(min_value=0, max_value=5000)


@settings(deadline=None)
@given(
    sizes=st.dictionaries(
        st.sampled_from(["parameter", "gradient", "optimizer_state", "activation", "input"]), SIZES
    ),
    gaps=SIZES,
    context=SIZES,
)
def test_parts_always_add_up_to_what_is_required(sizes, gaps: int, context: int) -> None:
    whole = estimate(reserved=sum(sizes.values()) + gaps, context=context, **sizes)
    parts = explain(whole)
    assert sum(part.size_bytes for part in parts) == whole.required_bytes
    assert sum(part.share for part in parts) == pytest.approx(1)
    assert all(part.size_bytes >= 0 for part in parts)


def test_changes_are_sorted_by_what_they_save() -> None:
    effects = compare(
        BERT,
        {
            "batch 16": estimate(reserved=2300),
            "checkpointing": estimate(reserved=1800),
            "clipping": estimate(reserved=2000),
        },
    )
    assert [(effect.change, effect.difference_bytes // MIB) for effect in effects] == [
        ("checkpointing", -200),
        ("clipping", 0),
        ("batch 16", 300),
    ]


def test_the_tables_show_sizes_shares_and_differences(capsys) -> None:
    print_parts(explain(BERT), BERT.peak_phase)
    print_effects(compare(BERT, {"checkpointing": estimate(reserved=1800)}))
    out = capsys.readouterr().out
    assert "776 MiB" in out and "33%" in out and "2.27 GiB" in out
    assert "-200 MiB" in out and "backward" in out


def test_the_tables_speak_chinese(capsys) -> None:
    use_language("zh")
    print_parts(explain(BERT), "")
    out = capsys.readouterr().out
    assert "梯度" in out and "碎片" in out


def test_capacity_shows_every_length_and_a_dash_where_nothing_fits(capsys) -> None:
    print_capacity({64: {"fp32": 64, "bf16": 96}, 512: {"fp32": 0, "bf16": 4}}, title="rtx")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "rtx"
    assert lines[1].split() == ["tokens", "fp32", "bf16"]
    assert lines[2].split() == ["64", "64", "96"]
    assert lines[3].split() == ["512", "-", "4"]


def test_heat_rises_with_the_batch() -> None:
    shades = [heat(count, 64) for count in (0, 1, 4, 16, 64)]
    assert len(set(shades)) == 5
    assert heat(64, 64) == heat(1, 1)
