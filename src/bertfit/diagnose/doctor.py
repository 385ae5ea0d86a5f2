"""What the facts about a machine mean for bertfit: a list of findings, each with its cure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bertfit.diagnose.machine import CardState, Machine
from bertfit.language import _
from bertfit.units import GIB, format_bytes

# Weights, gradients and AdamW's state of bert-base pass through RAM once, beside Python and torch.
ENOUGH_RAM_BYTES = 4 * GIB
# A run keeps checkpoints of about 1.2 GB (bert-base with its optimizer state).
ENOUGH_DISK_BYTES = 5 * GIB
# Below this share of free memory the user should know who holds the rest.
BUSY_SHARE = 0.8

# Oldest Linux driver that runs a CUDA major version, from NVIDIA's table of CUDA compatibility:
# https://docs.nvidia.com/deploy/cuda-compatibility/
_DRIVERS = {11: "450", 12: "525", 13: "580"}
_FIRST_WITH_CUDA_13 = (7, 5)
_FIRST_BF16 = (8, 0)
_FIRST_FAST_FP16 = (7, 0)  # as `planning.request.card_precision` chooses
_FIRST_SUPPORTED = (5, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing worth knowing. A problem costs memory, speed or the card; a note does not.

    `kind` is a stable short name such as `no-kernels`.
    """

    kind: str
    severity: Literal["problem", "note"]
    message: str


def find_all(machine: Machine) -> list[Finding]:
    """Judge a machine; problems come first."""
    found = [*_torch_and_driver(machine), *_settings(machine)]
    for card in machine.cards:
        found += _card(card, machine)
    found += _host(machine)
    return sorted(found, key=lambda finding: finding.severity == "note")


def has_kernels(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Say whether a build runs on a card.

    Machine code for `sm_XY` runs on compute capability X.Z with Z >= Y; `compute_XY` is translated
    by the driver for any later card.
    Source: CUDA C++ programming guide, "binary compatibility" and "PTX compatibility".
    """
    for name in architectures:
        kind, number = name.split("_")
        built = divmod(int(number), 10)
        if kind == "compute" and capability >= built:
            return True
        if kind == "sm" and capability[0] == built[0] and capability[1] >= built[1]:
            return True
    return False


def _problem(kind: str, message: str) -> Finding:
    return Finding(kind=kind, severity="problem", message=message)


def _note(kind: str, message: str) -> Finding:
    return Finding(kind=kind, severity="note", message=message)


def _torch_and_driver(machine: Machine) -> Iterator[Finding]:
    build = machine.torch
    if not machine.cards:
        if not build.cuda_available:
            yield _note(
                "no-card",
                _(
                    "No NVIDIA card was found; bertfit works on the CPU. To plan for a card "
                    "elsewhere, name it: --gpu rtx-3050-4gb."
                ),
            )
        return
    if build.cuda is None:
        yield _problem(
            "cpu-build",
            _(
                "There is a card, but torch {version} is the build without CUDA. Install the other "
                "one: pip install --force-reinstall torch"
            ).format(version=build.version),
        )
        return
    major = int(build.cuda.split(".")[0])
    if machine.driver_cuda is not None and machine.driver_cuda[0] < major:
        yield _problem(
            "old-driver",
            _(
                "Driver {driver} knows CUDA up to {known}, but torch {version} was built with CUDA "
                "{cuda}. Install driver {needed} or newer, or a torch for CUDA {older}."
            ).format(
                driver=machine.driver,
                known=".".join(map(str, machine.driver_cuda)),
                version=build.version,
                cuda=build.cuda,
                needed=_DRIVERS.get(major, "?"),
                older=machine.driver_cuda[0],
            ),
        )
    elif not build.cuda_available and machine.environment.get("CUDA_VISIBLE_DEVICES") is None:
        yield _problem(
            "card-not-seen",
            _(
                "The driver shows {count} card(s), but torch sees none. In a container, start it "
                "with --gpus all; else reboot after a driver update."
            ).format(count=len(machine.cards)),
        )


def _settings(machine: Machine) -> Iterator[Finding]:
    given = machine.environment
    if machine.cards and given.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        yield _problem(
            "card-hidden",
            _(
                "CUDA_VISIBLE_DEVICES='{value}' hides every card from torch. Unset it to use them."
            ).format(value=given["CUDA_VISIBLE_DEVICES"]),
        )
    if given.get("CUDA_MODULE_LOADING", "LAZY").upper() == "EAGER":
        yield _problem(
            "eager-loading",
            _(
                "CUDA_MODULE_LOADING=EAGER loads every kernel of torch into the card's memory: the "
                "context grows by several hundred MiB. Unset it."
            ),
        )
    if given.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "0") not in ("", "0"):
        yield _problem(
            "no-caching",
            _(
                "PYTORCH_NO_CUDA_MEMORY_CACHING switches torch's allocator off: training becomes "
                "many times slower and no plan holds. Unset it."
            ),
        )
    if given.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        yield _problem(
            "blocking-launches",
            _("CUDA_LAUNCH_BLOCKING waits for every kernel; it is for debugging. Unset it."),
        )


def _card(card: CardState, machine: Machine) -> Iterator[Finding]:
    build, capability = machine.torch, card.compute_capability
    if build.cuda is not None and not has_kernels(capability, build.architectures):
        yield _problem("no-kernels", _no_kernels(card, machine))
    free = card.free_bytes / card.total_bytes
    if free < BUSY_SHARE:
        yield _problem(
            "card-busy",
            _("{card}: only {free} of {total} are free. {holders}").format(
                card=card.name,
                free=format_bytes(card.free_bytes),
                total=format_bytes(card.total_bytes),
                holders=_holders(card),
            ),
        )
    if capability < _FIRST_BF16:
        yield _note("no-bf16", _no_bf16(card))
    if card.measurement is None and build.cuda_available:
        yield _note(
            "not-measured",
            _(
                "{card} has not been measured; plans use published figures. "
                "bertfit doctor --measure takes a few seconds."
            ).format(card=card.name),
        )


def _no_bf16(card: CardState) -> str:
    values = {"card": card.name, "capability": _dotted(card.compute_capability)}
    if card.compute_capability >= _FIRST_FAST_FP16:
        return _(
            "{card} has no bf16 of its own (compute capability {capability}); bertfit uses "
            "fp16 with a loss scaler there."
        ).format(**values)
    return _(
        "{card} has no bf16 and only slow fp16 (compute capability {capability}); bertfit uses "
        "fp32 there."
    ).format(**values)


def _no_kernels(card: CardState, machine: Machine) -> str:
    capability, build = card.compute_capability, machine.torch
    values = {
        "card": card.name,
        "capability": _dotted(capability),
        "version": build.version,
        "built": ", ".join(build.architectures) or "-",
    }
    if capability < _FIRST_SUPPORTED:
        return _(
            "{card} (compute capability {capability}) is too old: no torch since 2.1 has kernels "
            "for it. Use the CPU, or another card."
        ).format(**values)
    if capability < _FIRST_WITH_CUDA_13:
        return _(
            "torch {version} has no kernels for {card} (compute capability {capability}; it has "
            "{built}). The CUDA 12.6 build has, up to torch 2.14: pip install 'torch<2.15' "
            "--index-url https://download.pytorch.org/whl/cu126"
        ).format(**values)
    return _(
        "torch {version} has no kernels for {card} (compute capability {capability}; it has "
        "{built}). Install a newer one: pip install --upgrade torch"
    ).format(**values)


def _holders(card: CardState) -> str:
    if not card.processes:
        return _("The driver does not say who holds the rest.")
    names = [
        f"{process.name} ({process.pid}) {_size(process.used_bytes)}"
        for process in card.processes[:5]
    ]
    return _("Held by {names}. Close what you can before the run.").format(names=", ".join(names))


def _size(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else format_bytes(size_bytes)


def _host(machine: Machine) -> Iterator[Finding]:
    if machine.ram_available_bytes < ENOUGH_RAM_BYTES:
        yield _problem(
            "little-ram",
            _("Only {free} of RAM are available; a bert-base job wants about {wanted}.").format(
                free=format_bytes(machine.ram_available_bytes),
                wanted=format_bytes(ENOUGH_RAM_BYTES),
            ),
        )
    if machine.disk_free_bytes < ENOUGH_DISK_BYTES:
        yield _problem(
            "little-disk",
            _(
                "Only {free} are free in {path}; a run with checkpoints wants about {wanted}."
            ).format(
                free=format_bytes(machine.disk_free_bytes),
                path=machine.disk_path,
                wanted=format_bytes(ENOUGH_DISK_BYTES),
            ),
        )
    if machine.hub_answers is False:
        yield _problem(
            "hub-unreachable",
            _(
                "{hub} does not answer. Set HF_ENDPOINT to a mirror (https://hf-mirror.com), "
                "or give the folder of a model that you have."
            ).format(hub=machine.hub),
        )


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
