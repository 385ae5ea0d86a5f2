"""What a card really takes and does: measured once by `bertfit doctor --measure`, and remembered.

The measuring itself is behind `Probe`, so that it can be tried without a card.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.units import MIB

# bert-base's feed-forward product over 4,096 tokens: the shape that a step spends its time in.
_MATMUL = (4096, 768, 3072)
_COPY_BYTES = 256 * MIB
_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was measured on one card, with the build and driver it was measured under.

    `matmul_flops` is the best rate of a 16-bit product of a BERT layer's shape, so the planner's
    times start from what the card gives and not from the maker's sheet.
    """

    name: str
    total_bytes: int
    torch: str
    driver: str
    context_bytes: int
    matmul_flops: float
    fp32_flops: float
    memory_bandwidth: float
    measured_at: str


class Probe(Protocol):
    """A card that can be measured; every call is finished when it returns."""

    name: str
    total_bytes: int
    torch: str
    driver: str

    def used_bytes(self) -> int:
        """Bytes of the card in use by all programs; must not create a context."""

    def warm(self) -> None:
        """Create the context and run what a training step runs."""

    def reserved_bytes(self) -> int:
        """Bytes that torch's allocator holds."""

    def matmul_seconds(self, rows: int, inner: int, columns: int, *, half: bool) -> float:
        """Time one product (rows, inner) x (inner, columns), in 16 bits or in fp32."""

    def copy_seconds(self, size_bytes: int) -> float:
        """Time one copy of a tensor of that size on the card."""


def measure_card(probe: Probe) -> Measurement:
    """Measure context, matrix products and bandwidth; takes a few seconds.

    The context is what the card holds more after a training step than before, less what torch's
    allocator took; another program that starts or ends meanwhile would spoil it, so the larger of
    zero and the difference is kept and the caller is told to close other programs.

    Args:
        probe: the card; nothing may have used it in this process before.
    """
    before = probe.used_bytes()
    probe.warm()
    context = max(0, probe.used_bytes() - before - probe.reserved_bytes())
    flop = 2.0 * _MATMUL[0] * _MATMUL[1] * _MATMUL[2]
    half = min(probe.matmul_seconds(*_MATMUL, half=True) for _round in range(_ROUNDS))
    full = min(probe.matmul_seconds(*_MATMUL, half=False) for _round in range(_ROUNDS))
    copied = min(probe.copy_seconds(_COPY_BYTES) for _round in range(_ROUNDS))
    return Measurement(
        name=probe.name,
        total_bytes=probe.total_bytes,
        torch=probe.torch,
        driver=probe.driver,
        context_bytes=context,
        matmul_flops=flop / half,
        fp32_flops=flop / full,
        memory_bandwidth=2 * _COPY_BYTES / copied,  # read once, written once
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def measurements_file() -> Path:
    """Return the file measurements are remembered in: `BERTFIT_CACHE`, else the user's cache."""
    chosen = os.environ.get("BERTFIT_CACHE")
    if chosen:
        return Path(chosen) / "cards.json"
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "bertfit" / "cards.json"


def remember(measurement: Measurement) -> Path:
    """Keep a measurement for later plans, in place of an older one of the same card.

    Returns:
        The file it was written to.

    Raises:
        ConfigError: the file cannot be written, or an older one cannot be read.
    """
    path = measurements_file()
    kept = [
        old
        for old in _read(path)
        if (old.name, old.total_bytes) != (measurement.name, measurement.total_bytes)
    ]
    text = json.dumps([asdict(item) for item in [*kept, measurement]], indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise ConfigError(
            _("{path} cannot be written: {reason}. Set BERTFIT_CACHE to another folder.").format(
                path=path, reason=error.strerror
            )
        ) from None
    return path


def remembered(name: str, total_bytes: int) -> Measurement | None:
    """Return what was measured on a card of that name and size, or None.

    Raises:
        ConfigError: the file of measurements is damaged.
    """
    for measurement in _read(measurements_file()):
        if (measurement.name, measurement.total_bytes) == (name, total_bytes):
            return measurement
    return None


def _read(path: Path) -> list[Measurement]:
    if not path.exists():
        return []
    try:
        return [Measurement(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        raise ConfigError(
            _(
                "{path}, where measurements of cards are remembered, cannot be read. "
                "Delete it and run bertfit doctor --measure again."
            ).format(path=path)
        ) from None
