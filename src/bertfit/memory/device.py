"""The card a job is planned for: the one that is here, or one known by name or size.

torch and NVML are imported when a card is asked for, not before.
"""

import re
from dataclasses import dataclass, replace
from typing import Protocol, cast

from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.memory.cards import Card, context_bytes, find_card, match_card
from bertfit.memory.measurement import Measurement, remembered
from bertfit.types import DeviceSpec
from bertfit.units import GIB, format_bytes, parse_bytes

# Dense 16-bit matrix FLOP per clock and multiprocessor with fp32 accumulation, by the first compute
# capability that has it: for a card that the catalogue does not know. Source: cards.toml.
_TENSOR_RATES = {(7, 0): 1024, (7, 5): 512, (8, 0): 2048, (8, 6): 512, (9, 0): 4096, (12, 0): 512}
# fp32 units per multiprocessor: 64 on these, else 128; each does a multiply and an add per clock.
_HALF_WIDTH = ((6, 0), (7, 0), (7, 2), (7, 5), (8, 0))

# Stands for "a card of this size" where only a size was given: a small Ampere laptop card, whose
# multiprocessors and speed are at the low end of what has that much memory.
_GENERIC_BY_SIZE = (
    (5 * GIB, "rtx-3050-4gb"),
    (7 * GIB, "rtx-3060-laptop"),
    (9 * GIB, "rtx-3060-ti"),
    (13 * GIB, "rtx-3060-12gb"),
    (25 * GIB, "rtx-3090"),
    (49 * GIB, "a40"),
)
_GENERIC_LARGE = "a100-80gb"

# `--device sim:4GiB` counts memory as on a card of this machine's RAM; `--gpu` takes it as well.
SIMULATED = "sim:"


class CardProperties(Protocol):
    """What `torch.cuda.get_device_properties` gives; clocks only where the build has them."""

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProcess:
    """A program that holds memory of a card; `used_bytes` is None where the driver hides it."""

    pid: int
    name: str
    used_bytes: int | None


def resolve_device(text: str | None = None) -> DeviceSpec:
    """Give the card that a job is planned for.

    Args:
        text: None for the card of this machine, a catalogue name such as `rtx-3050-4gb`, or a size
            such as `4GiB` for a card of which only the memory is known; either may be spelt as
            `--device` spells it, `sim:4GiB`.

    Raises:
        ConfigError: no such card (with the nearest names), a size of less than 1 GiB or above
            1 PiB, or None on a machine without a card.
    """
    if text is None:
        here = present_device()
        if here is None:
            raise ConfigError(
                _(
                    "No CUDA card was found here. Name the card the job will run on, for example "
                    "--gpu rtx-3050-4gb or --gpu 4GiB."
                )
            )
        return here
    text = text.strip().removeprefix(SIMULATED)
    if re.fullmatch(r"\s*[0-9]*\.?[0-9]+\s*([kmgt]?i?b?)\s*", text, re.IGNORECASE):
        return generic_device(parse_bytes(text))
    return catalogue_device(find_card(text))


def catalogue_device(card: Card) -> DeviceSpec:
    """Turn a row of the catalogue into what the planner reads."""
    return DeviceSpec(
        name=card.slug,
        total_bytes=card.total_bytes,
        context_bytes=context_bytes(card.multiprocessors),
        compute_capability=card.compute_capability,
        multiprocessors=card.multiprocessors,
        peak_flops=card.tensor_flops,
        memory_bandwidth=card.memory_bandwidth,
        bf16=card.bf16,
        fp32_flops=card.fp32_flops,
    )


def generic_device(total_bytes: int) -> DeviceSpec:
    """Stand in for a card of which only the memory is known, as the driver would report it.

    All other figures are those of a slow card of about that size.

    Raises:
        ConfigError: less than 1 GiB, which no supported card has.
    """
    if total_bytes < GIB:
        raise ConfigError(
            _(
                "A card with {size} of memory is too small: the CUDA context alone takes about "
                "0.3 GiB. Give at least 1GiB, or the name of a card."
            ).format(size=format_bytes(total_bytes))
        )
    slug = next((slug for most, slug in _GENERIC_BY_SIZE if total_bytes <= most), _GENERIC_LARGE)
    like = find_card(slug)
    return replace(catalogue_device(like), name=format_bytes(total_bytes), total_bytes=total_bytes)


def present_device(index: int = 0) -> DeviceSpec | None:
    """Describe a card of this machine, or return None where torch sees none.

    What `bertfit doctor --measure` remembered of the card comes before the catalogue.
    """
    import torch

    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        return None
    properties = cast(CardProperties, torch.cuda.get_device_properties(index))
    return describe(
        properties,
        cuda=cuda_version(torch.version.cuda),
        measurement=remembered(properties.name, properties.total_memory),
    )


def describe(
    properties: CardProperties,
    *,
    cuda: tuple[int, int],
    measurement: Measurement | None = None,
) -> DeviceSpec:
    """Describe a card by its properties, a measurement, and the catalogue, in this order.

    Args:
        properties: what the driver says.
        cuda: version that torch was built with, for the size of the context.
        measurement: what `doctor --measure` found, if it ever ran.
    """
    capability = (properties.major, properties.minor)
    multiprocessors = properties.multi_processor_count
    known = match_card(properties.name, multiprocessors, properties.total_memory)
    if known is not None:
        flops, fp32, bandwidth = known.tensor_flops, known.fp32_flops, known.memory_bandwidth
    else:
        flops, fp32, bandwidth = _speeds(properties, capability)
    context = context_bytes(multiprocessors, cuda)
    if measurement is not None:
        context = measurement.context_bytes
        flops, fp32 = measurement.matmul_flops, measurement.fp32_flops
        bandwidth = measurement.memory_bandwidth
    return DeviceSpec(
        name=properties.name,
        total_bytes=properties.total_memory,
        context_bytes=context,
        compute_capability=capability,
        multiprocessors=multiprocessors,
        peak_flops=flops,
        memory_bandwidth=bandwidth,
        bf16=capability >= (8, 0),
        fp32_flops=fp32,
    )


def cuda_version(text: str | None) -> tuple[int, int]:
    """Read torch's `version.cuda`, such as `13.0`; a build without CUDA counts as the newest."""
    if not text:
        return (13, 0)
    major, minor = [*text.split("."), "0"][:2]
    return (int(major), int(minor))


def card_processes(index: int = 0) -> list[CardProcess]:
    """List the programs that hold memory of a card, by NVML; empty where there is no driver.

    A driver under Windows and some containers hide the sizes; the list is then without them.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        found = {}
        for ask in (
            pynvml.nvmlDeviceGetComputeRunningProcesses,
            pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            for process in ask(handle):
                found[process.pid] = process.usedGpuMemory
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()
    return [
        CardProcess(pid=pid, name=_program(pid), used_bytes=used)
        for pid, used in sorted(found.items(), key=lambda item: -(item[1] or 0))
    ]


def _program(pid: int) -> str:
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:  # ended meanwhile, or in another container
        return "?"


def _speeds(properties: CardProperties, capability: tuple[int, int]) -> tuple[float, float, float]:
    """Estimate 16-bit and fp32 FLOP/s and bytes/s of a card that the catalogue does not know.

    torch gives clocks in kHz and the bus in bits in newer builds; without them a middling 1.5 GHz
    and 300 GB/s stand in.
    """
    clock_hz = float(getattr(properties, "clock_rate", 0) or 1_500_000) * 1e3
    cycles = clock_hz * properties.multi_processor_count
    fp32 = cycles * (128 if capability in _HALF_WIDTH else 256)
    rates = [rate for first, rate in sorted(_TENSOR_RATES.items()) if capability >= first]
    flops = cycles * rates[-1] if rates else fp32
    memory_hz = float(getattr(properties, "memory_clock_rate", 0) or 0) * 1e3
    bus_bits = int(getattr(properties, "memory_bus_width", 0) or 0)
    bandwidth = 2 * memory_hz * bus_bits / 8  # double data rate
    return flops, fp32, bandwidth or 300e9
