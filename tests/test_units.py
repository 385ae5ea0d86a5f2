import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertfit.errors import ConfigError
from bertfit.units import GIB, KIB, MIB, format_bytes, format_floor, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 << 30),
        ("4 GB", 4_000_000_000),
        ("4G", 4 << 30),
        ("512MiB", 512 << 20),
        ("3.82GiB", int(3.82 * (1 << 30))),
        ("1024", 1024),
        (1024, 1024),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "4 GiX", "-4GiB", "0", "4,5GiB", "four"])
def test_what_is_no_size_is_refused_with_the_way_to_write_it(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["1025TiB", "9" * 20 + "TiB", "9" * 5000, 1 << 51, 10**400])
def test_a_size_above_a_pebibyte_is_refused_on_one_short_line(text: str | int) -> None:
    with pytest.raises(ConfigError, match="more than 1 PiB") as caught:
        parse_bytes(text)
    assert len(str(caught.value)) < 140


@given(st.integers(1, 1 << 47))
def test_a_floor_that_is_read_back_is_enough_and_not_far_above(size: int) -> None:
    read = parse_bytes(format_floor(size))
    assert 0 <= read - size < (MIB if size < GIB else GIB // 100 + 1)


def test_a_pebibyte_is_the_largest_size() -> None:
    assert parse_bytes("1024TiB") == 1 << 50


@given(st.integers(1, 1 << 42))
def test_a_written_size_reads_back_within_its_rounding(size: int) -> None:
    half = next((u * s / 2 for u, s in ((GIB, 0.01), (MIB, 1), (KIB, 1)) if size >= u), 0)
    written = format_bytes(size)
    assert abs(parse_bytes(written.replace(" ", "")) - size) <= half + 1


def test_durations() -> None:
    assert [format_seconds(s) for s in (5.25, 65, 7500)] == ["5.2 s", "1 min 05 s", "2 h 05 min"]
