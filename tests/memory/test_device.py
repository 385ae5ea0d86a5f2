"""Cards by name, by size and by what a driver says; measurements and their memory."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertfit.errors import ConfigError
from bertfit.memory.cards import CARDS_FILE, cards, context_bytes, find_card, match_card
from bertfit.memory.device import (
    cuda_version,
    describe,
    generic_device,
    resolve_device,
)
from bertfit.memory.measurement import (
    Measurement,
    measure_card,
    measurements_file,
    remember,
    remembered,
)
from bertfit.units import GIB, MIB

# cudaDeviceProp of an RTX 3050 laptop on Linux, as torch shows it.
RTX_3050 = SimpleNamespace(
    name="NVIDIA GeForce RTX 3050 Laptop GPU",
    total_memory=3902 * MIB,
    major=8,
    minor=6,
    multi_processor_count=16,
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFIT_CACHE", str(tmp_path))


def test_the_catalogue_has_fifty_cards_and_every_kind() -> None:
    kinds = Counter(card.kind for card in cards())
    assert len(cards()) >= 50
    assert set(kinds) == {"laptop", "desktop", "workstation", "data-centre"}
    assert kinds["laptop"] >= 15


def test_every_name_of_a_card_leads_to_one_card() -> None:
    names = [name for card in cards() for name in (card.slug, *card.aliases)]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    for card in cards():
        for name in (card.slug, *card.aliases):
            assert find_card(name) is card


@pytest.mark.parametrize("card", cards(), ids=lambda card: card.slug)
def test_a_row_is_plausible_and_has_its_source(card) -> None:
    assert card.source.startswith("https://")
    # Nothing reports more than it has, and no driver keeps more than a tenth.
    assert 0.9 * card.marketed_bytes < card.total_bytes < card.marketed_bytes
    if card.windows_bytes is not None:
        assert card.total_bytes <= card.windows_bytes <= card.marketed_bytes
    assert card.is_estimated or card.reported_by
    assert 1e12 < card.fp32_flops <= card.tensor_flops < 3e15
    assert 5e10 < card.memory_bandwidth < 1e13
    assert 1 < card.multiprocessors < 200
    # torch 2.14 is the last with kernels below 7.5 (pytorch issue 190385).
    assert (card.last_torch is not None) == (card.compute_capability < (7, 5))


@pytest.mark.parametrize(
    ("slug", "flops"),
    [  # dense 16-bit products with fp32 accumulation, from NVIDIA's sheets
        ("v100-16gb", 125e12),
        ("t4", 65e12),
        ("a100-40gb", 312e12),
        ("a10", 125e12),
        ("rtx-3090", 71e12),
        ("rtx-4090", 165.2e12),
        ("rtx-a6000", 154.8e12),
        ("rtx-5090", 209.5e12),
    ],
)
def test_peak_rates_are_those_of_the_makers_sheets(slug: str, flops: float) -> None:
    assert find_card(slug).tensor_flops == pytest.approx(flops, rel=0.01)


def test_the_memory_of_a_t4_is_what_drivers_report() -> None:
    assert 14.57 * GIB <= find_card("t4").total_bytes <= 14.76 * GIB


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("rtx-3050-4gb", "rtx-3050-4gb"),
        ("RTX3050", "rtx-3050-4gb"),
        ("NVIDIA GeForce RTX 3050 Laptop GPU", "rtx-3050-4gb"),
        ("GeForce RTX 4090 D", "rtx-4090-d"),
        ("Tesla T4", "t4"),
        ("nvidia h20", "h20"),
        ("a100", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("gtx1650", "gtx-1650"),
    ],
)
def test_a_card_is_found_by_what_people_call_it(text: str, slug: str) -> None:
    assert resolve_device(text).name == slug


@pytest.mark.parametrize(
    ("text", "nearest"),
    [("rtx-3055", "rtx-3050-4gb"), ("rtx 4090 x", "rtx-4090"), ("tesla t5", "t4"), ("", "t4")],
)
def test_an_unknown_card_is_refused_with_the_nearest_names(text: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match="nearest names") as caught:
        resolve_device(text)
    assert nearest in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_size_stands_for_a_card_of_that_size() -> None:
    spec = resolve_device("4GiB")
    assert spec.total_bytes == 4 * GIB
    assert spec.compute_capability == (8, 6)
    assert resolve_device("3.82 GiB").total_bytes == int(3.82 * GIB)
    assert resolve_device("80GB").multiprocessors == 108


@pytest.mark.parametrize("text", ["4GiB", "rtx-3050-4gb"])
def test_a_card_may_be_spelt_as_device_spells_it(text: str) -> None:
    assert resolve_device(f"sim:{text}") == resolve_device(text)


@pytest.mark.parametrize("text", ["0", "12", "900MiB", "sim:", "sim:99999999999999999999TiB"])
def test_a_size_that_no_card_has_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        resolve_device(text)


@settings(deadline=None)
@given(st.integers(min_value=GIB, max_value=512 * GIB))
def test_a_card_of_any_size_keeps_its_size(size: int) -> None:
    spec = generic_device(size)
    assert spec.total_bytes == size
    assert 0 < spec.context_bytes < size


def test_without_a_card_the_user_is_asked_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertfit.memory.device.present_device", lambda: None)
    with pytest.raises(ConfigError, match="--gpu rtx-3050-4gb"):
        resolve_device()


def test_a_context_is_within_what_was_published() -> None:
    assert context_bytes(16) == 300 * MIB
    # The bare contexts that were measured: RTX 3090 (82) and RTX 6000 Ada (142).
    assert 256 * MIB < context_bytes(82, (12, 8)) < 430 * MIB
    assert 426 * MIB < context_bytes(142, (13, 0)) <= 560 * MIB
    # A V100 with CUDA 11.2, all kernels loaded at once.
    assert context_bytes(80, (11, 2)) == 1343 * MIB


@pytest.mark.parametrize(
    ("text", "version"), [("13.0", (13, 0)), ("11.8", (11, 8)), ("12", (12, 0)), (None, (13, 0))]
)
def test_the_cuda_version_is_read(text: str | None, version: tuple[int, int]) -> None:
    assert cuda_version(text) == version


def test_a_present_card_takes_size_from_the_driver_and_speed_from_the_catalogue() -> None:
    spec = describe(RTX_3050, cuda=(13, 0))
    assert spec.total_bytes == 3902 * MIB
    assert spec.peak_flops == find_card("rtx-3050-4gb").tensor_flops
    assert spec.bf16


def test_one_driver_name_with_two_cards_is_told_apart_by_multiprocessors() -> None:
    name = "NVIDIA GeForce GTX 1650"
    laptop, desktop = match_card(name, 16, 4 * GIB), match_card(name, 14, 4 * GIB)
    assert laptop is not None and laptop.slug == "gtx-1650-laptop"
    assert desktop is not None and desktop.slug == "gtx-1650"
    big = match_card("NVIDIA GeForce RTX 4060 Ti", 34, 16_000 * MIB)
    assert big is not None and big.slug == "rtx-4060-ti-16gb"


def test_an_unknown_card_is_described_by_its_clocks() -> None:
    card = SimpleNamespace(
        name="NVIDIA Something",
        total_memory=8 * GIB,
        major=8,
        minor=9,
        multi_processor_count=10,
        clock_rate=2_000_000,  # kHz
        memory_clock_rate=8_000_000,
        memory_bus_width=128,
    )
    spec = describe(card, cuda=(13, 0))
    assert spec.peak_flops == 10 * 2e9 * 512
    assert spec.fp32_flops == 10 * 2e9 * 256
    assert spec.memory_bandwidth == 2 * 8e9 * 128 / 8


class FakeProbe:
    """A card with a 400 MiB context, 100 MiB held by others, 10 TFLOP/s and 200 GB/s."""

    name = RTX_3050.name
    total_bytes = RTX_3050.total_memory
    torch = "2.14.1"
    driver = "580.1"

    def __init__(self) -> None:
        self.is_warm = False

    def used_bytes(self) -> int:
        return (100 + (400 + 64) * self.is_warm) * MIB

    def warm(self) -> None:
        self.is_warm = True

    def reserved_bytes(self) -> int:
        return 64 * MIB

    def matmul_seconds(self, rows: int, inner: int, columns: int, *, half: bool) -> float:
        assert self.is_warm
        return 2 * rows * inner * columns / (10e12 if half else 5e12)

    def copy_seconds(self, size_bytes: int) -> float:
        return 2 * size_bytes / 200e9


def test_a_measurement_takes_the_allocator_and_other_programs_off_the_context() -> None:
    measured = measure_card(FakeProbe())
    assert measured.context_bytes == 400 * MIB
    assert measured.matmul_flops == pytest.approx(10e12)
    assert measured.fp32_flops == pytest.approx(5e12)
    assert measured.memory_bandwidth == pytest.approx(200e9)


def test_a_measurement_is_remembered_and_comes_before_the_catalogue() -> None:
    assert remembered(RTX_3050.name, RTX_3050.total_memory) is None
    first = measure_card(FakeProbe())
    remember(first)
    path = remember(first)
    assert path == measurements_file() and len(json.loads(path.read_text())) == 1
    again = remembered(RTX_3050.name, RTX_3050.total_memory)
    assert again == first
    spec = describe(RTX_3050, cuda=(13, 0), measurement=again)
    assert (spec.context_bytes, spec.peak_flops) == (400 * MIB, first.matmul_flops)
    assert remembered(RTX_3050.name, 8 * GIB) is None


def test_cards_of_other_names_are_kept_apart() -> None:
    first = measure_card(FakeProbe())
    other = Measurement(
        **{**{name: getattr(first, name) for name in first.__slots__}, "name": "Tesla T4"}
    )
    remember(first)
    remember(other)
    assert remembered("Tesla T4", first.total_bytes) == other
    assert remembered(first.name, first.total_bytes) == first


@pytest.mark.parametrize("text", ["{", "[{}]", "[1]", "7"])
def test_a_damaged_file_of_measurements_is_named(text: str) -> None:
    path = measurements_file()
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"cards\.json"):
        remembered("x", 1)


def test_looking_up_a_card_loads_no_torch() -> None:
    program = (
        "import sys; from bertfit.memory.device import resolve_device;"
        "resolve_device('t4'); assert 'torch' not in sys.modules and 'pynvml' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_catalogue_says_how_every_figure_was_come_by() -> None:
    text = CARDS_FILE.read_text(encoding="utf-8")
    assert text.count("[[card]]") == len(cards())
    assert text.count("\nsource = ") >= len(cards())
    assert "[rule.reported]" in text and "[rule.context]" in text
