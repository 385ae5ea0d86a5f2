"""Sizes in bytes and durations in seconds, read from and written for people."""

import re
from dataclasses import dataclass

from bertfit.errors import ConfigError
from bertfit.language import _

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
MOST_BYTES = 1 << 50  # of a card or a budget: a slip of the unit, not a machine

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1 << 40,
}


def parse_bytes(text: str | int) -> int:
    """Read a size such as `3.82GiB`, `4 GB`, `512MiB` or a plain number of bytes.

    `GiB` counts 2**30 and `GB` 10**9, as their standards say; a bare `G` is read as `GiB`.

    Raises:
        ConfigError: an unknown unit, no number, or a size that is not positive or above 1 PiB.
    """
    if isinstance(text, int):
        size: float = text
    else:
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", text)
        unit = match.group(2).lower() if match else ""
        if match is None or unit not in _UNITS:
            raise ConfigError(
                _(
                    "'{text}' is not a size. Write a number and a unit: 512MiB, 3.82GiB, 4GB, "
                    "or a plain number of bytes."
                ).format(text=text)
            )
        size = float(match.group(1)) * _UNITS[unit]
    if size > MOST_BYTES:
        raise ConfigError(
            _(
                "'{text}' is more than 1 PiB, which no machine has. Write a size such as 4GiB."
            ).format(text=_shortened(str(text)))
        )
    if size < 1:
        raise ConfigError(_("'{text}' is not a size above zero.").format(text=text))
    return int(size)


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def format_bytes(size_bytes: float) -> str:
    """Write a size the way the tools of graphics cards do: `512 MiB`, `3.82 GiB`."""
    if abs(size_bytes) >= GIB:
        return f"{size_bytes / GIB:.2f} GiB"
    if abs(size_bytes) >= MIB:
        return f"{size_bytes / MIB:.0f} MiB"
    if abs(size_bytes) >= KIB:
        return f"{size_bytes / KIB:.0f} KiB"
    return f"{size_bytes:.0f} B"


def format_floor(size_bytes: int) -> str:
    """Write the least that is enough, rounded up: given back as a budget it still is."""
    if size_bytes < GIB:
        return format_bytes(-(-size_bytes // MIB) * MIB)
    return f"{-(-100 * size_bytes // GIB) / 100:.2f} GiB"


def format_seconds(seconds: float) -> str:
    """Write a duration as `12.3 s`, `4 min 05 s` or `2 h 07 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """How often something happens: every so many steps or seconds; both None is never."""

    steps: int | None = None
    seconds: float | None = None


_SECONDS = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600}


def parse_interval(text: str | int) -> Interval:
    """Read `10min`, `30s`, `2h`, `500` or `500steps`, or `never`.

    Raises:
        ConfigError: anything else, or an interval of nothing.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*", str(text).lower())
    if str(text).strip().lower() == "never":
        return Interval()
    if match is not None and float(match[1]) > 0:
        if match[2] in _SECONDS:
            return Interval(seconds=float(match[1]) * _SECONDS[match[2]])
        if match[2] in ("", "step", "steps") and match[1].isdigit():
            return Interval(steps=int(match[1]))
    raise ConfigError(
        _(
            "'{text}' is not an interval. Write a time or a number of steps: 10min, 30s, 2h, "
            "500steps, or never."
        ).format(text=text)
    )
