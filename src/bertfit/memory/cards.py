"""The catalogue of cards: what is published about a card that is not here.

The figures are in `cards.toml`, each with its source. Where the memory that the driver reports, or
the bytes of the CUDA context, are not published, the rules of that file estimate them.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.units import MIB

CARDS_FILE = Path(__file__).with_name("cards.toml")

# CUDA 11.7 brought lazy loading of kernels; torch asks for it from 1.13 on (pytorch PR 86509).
_FIRST_LAZY_CUDA = (11, 7)
# Compute capability 8.0 has bf16 matrix units; torch emulates the type below it.
_FIRST_BF16 = (8, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One row of the catalogue; see the head of `cards.toml` for the meaning of the figures.

    `total_bytes` is what torch sees on Linux (the lowest that was found, so that a plan is never
    over); `is_estimated` says that no report of it was found and a rule stands in.
    """

    slug: str
    name: str
    aliases: tuple[str, ...]
    kind: str
    marketed_bytes: int
    total_bytes: int
    is_estimated: bool
    reported_by: str
    windows_bytes: int | None
    multiprocessors: int
    compute_capability: tuple[int, int]
    tensor_flops: float
    fp32_flops: float
    memory_bandwidth: float
    last_torch: str | None
    source: str

    @property
    def bf16(self) -> bool:
        """Whether the card has bf16 matrix units of its own."""
        return self.compute_capability >= _FIRST_BF16


@lru_cache(maxsize=1)
def cards() -> tuple[Card, ...]:
    """Return every card of the catalogue, in the order of the file."""
    document = _document()
    shares = document["rule"]["reported"]
    return tuple(_card(row, shares) for row in document["card"])


def find_card(name: str) -> Card:
    """Find a card by what a user would call it: `rtx-3050-4gb`, `NVIDIA GeForce RTX 4090`, `T4`.

    Raises:
        ConfigError: no card has that name; the message lists the nearest ones.
    """
    names = _names()
    wanted = _normal(name)
    if wanted in names:
        return names[wanted]
    nearest = _nearest(wanted)
    raise ConfigError(
        _(
            "There is no card '{name}' in the catalogue. The nearest names: {nearest}. "
            "Or give its memory, for example 4GiB."
        ).format(name=name, nearest=", ".join(nearest))
    )


def match_card(name: str, multiprocessors: int, total_bytes: int) -> Card | None:
    """Find the catalogue's row for a card that is here, by what the driver says of it.

    One driver name can stand for several cards (`NVIDIA GeForce GTX 1650`, `... RTX 3080`), so the
    multiprocessors and then the memory decide.
    """
    rows = [card for card in cards() if _normal(card.name) == _normal(name)]
    rows = [card for card in rows if card.multiprocessors == multiprocessors] or rows
    return min(rows, key=lambda card: abs(card.total_bytes - total_bytes), default=None)


def context_bytes(multiprocessors: int, cuda: tuple[int, int] = (13, 0)) -> int:
    """Estimate the bytes of a CUDA context with the kernels of a training step loaded.

    Source: the measured contexts of `cards.toml` and the rule fitted to them. It aims to be over;
    `bertfit doctor --measure` replaces it by the card's own value.

    Args:
        multiprocessors: of the card.
        cuda: the version that torch was built with; before 11.7 all kernels are loaded at once.
    """
    rule: Mapping[str, float] = _document()["rule"]["context"]
    if cuda < _FIRST_LAZY_CUDA:
        return int(rule["eager_mib"]) * MIB
    lazy = rule["lazy_base_mib"] + rule["lazy_per_multiprocessor_mib"] * multiprocessors
    lazy = max(rule["lazy_floor_mib"], min(rule["lazy_ceiling_mib"], lazy))
    return int(lazy) * MIB


def _card(row: Mapping[str, object], shares: Mapping[str, float]) -> Card:
    reported = cast(list[int] | None, row.get("reported_mib"))
    memory_gib = cast(float, row["memory_gib"])
    windows = cast(int | None, row.get("windows_mib"))
    major, minor = str(row["compute_capability"]).split(".")
    share = shares[_share(str(row["memory_type"]), str(row["kind"]), memory_gib)]
    return Card(
        slug=str(row["slug"]),
        name=str(row["name"]),
        aliases=tuple(cast(list[str], row.get("aliases", []))),
        kind=str(row["kind"]),
        marketed_bytes=int(memory_gib * 1024) * MIB,
        total_bytes=(reported[0] if reported else int(memory_gib * 1024 * share)) * MIB,
        is_estimated=reported is None,
        reported_by=str(row.get("reported_by", "")),
        windows_bytes=windows * MIB if windows else None,
        multiprocessors=cast(int, row["multiprocessors"]),
        compute_capability=(int(major), int(minor)),
        tensor_flops=cast(float, row["tensor_tflops"]) * 1e12,
        fp32_flops=cast(float, row["fp32_tflops"]) * 1e12,
        memory_bandwidth=cast(float, row["bandwidth_gb_s"]) * 1e9,
        last_torch=cast(str | None, row.get("last_torch")),
        source=str(row["source"]),
    )


def _share(memory_type: str, kind: str, memory_gib: float) -> str:
    if memory_type.startswith("HBM"):
        return "hbm"
    if kind == "data-centre":
        return "gddr_ecc"
    if memory_gib <= 8:
        return "gddr_up_to_8_gib"
    return "gddr_up_to_16_gib" if memory_gib <= 16 else "gddr_above_16_gib"


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    with CARDS_FILE.open("rb") as file:
        return tomllib.load(file)


@lru_cache(maxsize=1)
def _names() -> dict[str, Card]:
    # A slug comes before an alias, and both before a driver's name, which can stand for two cards.
    names = {card.slug: card for card in cards()}
    for card in cards():
        for alias in card.aliases:
            names.setdefault(alias, card)
    for card in cards():
        names.setdefault(_normal(card.name), card)
    return names


def _normal(name: str) -> str:
    """Write a name as slugs are written, so that `GeForce RTX 3050 Laptop GPU` is found too."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    slug = re.sub(r"\b(nvidia|geforce|tesla|gpu|generation)\b-?", "", slug).strip("-")
    # rtx3050, gtx1650: people leave the space out.
    return re.sub(r"^(rtx|gtx|mx)-?(?=[a-z]?\d)", r"\1-", slug)


def _nearest(wanted: str) -> list[str]:
    """Compare with every name a card has, since an alias is often the shortest."""
    names = _names()
    parts = [name for name in names if wanted and wanted in name]
    close = difflib.get_close_matches(wanted, list(names), n=10, cutoff=0.6)
    slugs = dict.fromkeys(names[name].slug for name in [*close, *parts])
    return list(slugs)[:5] or ["rtx-3060-12gb", "rtx-4090", "t4"]
