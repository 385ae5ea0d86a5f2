"""The facts about a machine that decide what bertfit can do on it.

Only collects; what the facts mean is for `doctor`. Probes the hub only when asked.
"""

import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bertfit.memory.device import CardProcess, card_processes
from bertfit.memory.measurement import Measurement, remembered

# Set by the user, and able to change where work runs or how much memory it takes.
ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MODULE_LOADING",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_LAUNCH_BLOCKING",
    "OMP_NUM_THREADS",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
)
PACKAGES = ("bertfit", "torch", "transformers", "tokenizers", "safetensors", "numpy")

# What speeds up 16-bit and wide products on a CPU, as Linux names it (x86, then ARM).
CPU_FEATURES = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "asimd",
    "sve",
    "bf16",
    "i8mm",
)
HUB = "https://huggingface.co"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardState:
    """A card that is here, as the driver sees it."""

    index: int
    name: str
    compute_capability: tuple[int, int]
    total_bytes: int
    free_bytes: int
    processes: tuple[CardProcess, ...] = ()
    measurement: Measurement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """The torch that is installed.

    `cuda` is the version it was built with, None for a CPU build. `architectures` are the cards
    it has kernels for: `sm_86` machine code, `compute_90` code that newer cards can translate.
    """

    version: str
    cuda: str | None
    architectures: tuple[str, ...]
    cuda_available: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything that was found out."""

    system: str
    python: str
    packages: Mapping[str, str]
    torch: TorchBuild
    driver: str | None
    driver_cuda: tuple[int, int] | None
    cards: tuple[CardState, ...]
    cpu: str
    cpu_cores: int
    cpu_features: tuple[str, ...]
    ram_bytes: int
    ram_available_bytes: int
    disk_path: Path
    disk_free_bytes: int
    environment: Mapping[str, str] = field(default_factory=dict)
    hub: str = HUB
    hub_answers: bool | None = None


def collect(*, hub: bool = False, reach: Callable[[str], bool] | None = None) -> Machine:
    """Find out what this machine is.

    Args:
        hub: ask the model hub whether it answers; without it no network is touched.
        reach: how to ask, for tests.
    """
    import psutil

    driver, driver_cuda, cards = _driver()
    cards = cards or _cards_of_torch()
    address = os.environ.get("HF_ENDPOINT") or HUB
    memory = psutil.virtual_memory()
    limit, used = _container_memory()
    here = Path.cwd()
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        packages=_packages(),
        torch=_torch(),
        driver=driver,
        driver_cuda=driver_cuda,
        cards=cards,
        cpu=_cpu_name(),
        cpu_cores=_cpu_cores(),
        cpu_features=_cpu_features(),
        ram_bytes=min(memory.total, limit),
        ram_available_bytes=max(0, min(memory.available, limit - used)),
        disk_path=here,
        disk_free_bytes=psutil.disk_usage(str(here)).free,
        environment={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        hub=address,
        hub_answers=(reach or _reach)(address) if hub else None,
    )


def build_architectures(configuration: str) -> tuple[str, ...]:
    """Read the cards a build has kernels for out of `torch.__config__.show()`.

    Unlike `torch.cuda.get_arch_list` it answers without a card, and it is public.
    """
    found = re.findall(r"code=\[?((?:sm|compute)_[0-9]+)", configuration)
    return tuple(sorted(set(found), key=lambda name: (int(name.split("_")[1]), name)))


def _torch() -> TorchBuild:
    import torch

    return TorchBuild(
        version=torch.__version__,
        cuda=torch.version.cuda,
        architectures=build_architectures(torch.__config__.show()) if torch.version.cuda else (),
        cuda_available=torch.cuda.is_available(),
    )


def _driver() -> tuple[str | None, tuple[int, int] | None, tuple[CardState, ...]]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None, None, ()
    cards = []
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        newest = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())  # 12040 for CUDA 12.4
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = str(pynvml.nvmlDeviceGetName(handle))
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            cards.append((index, name, (int(major), int(minor)), memory.total, memory.free))
    except pynvml.NVMLError:
        return None, None, ()
    finally:
        pynvml.nvmlShutdown()
    states = tuple(
        CardState(
            index=index,
            name=name,
            compute_capability=capability,
            total_bytes=int(total),
            free_bytes=int(free),
            processes=tuple(card_processes(index)),
            measurement=_measured(name),
        )
        for index, name, capability, total, free in cards
    )
    return driver, (newest // 1000, newest % 1000 // 10), states


def _cards_of_torch() -> tuple[CardState, ...]:
    """Describe the cards where NVML does not answer (Jetson, some containers).

    It costs a CUDA context on each: torch can say what is free only from inside one.
    """
    import torch

    states = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        states.append(
            CardState(
                index=index,
                name=properties.name,
                compute_capability=(properties.major, properties.minor),
                total_bytes=total,
                free_bytes=free,
                measurement=remembered(properties.name, properties.total_memory),
            )
        )
    return tuple(states)


def _measured(name: str) -> Measurement | None:
    """Find a measurement by name: NVML counts the memory a little differently than torch."""
    import torch

    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        if properties.name == name:
            return remembered(name, properties.total_memory)
    return None


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpu_info() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _cpu_name() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", _cpu_info(), re.MULTILINE)
    return found.group(1) if found else platform.processor() or platform.machine()


def _cpu_cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_features() -> tuple[str, ...]:
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _cpu_info(), re.MULTILINE)
    flags = set(found.group(1).split()) if found else set()
    return tuple(name for name in CPU_FEATURES if name in flags)


def _container_memory() -> tuple[int, int]:
    """Return limit and use of this container's memory (cgroup v2); no limit: a huge one."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return sys.maxsize, 0
    return (int(limit), used) if limit.isdigit() else (sys.maxsize, 0)


def _reach(address: str) -> bool:
    """Ask a web address for its head, within five seconds."""
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(address, method="HEAD"), timeout=5):
            return True
    except HTTPError:
        return True  # it answers, if only to refuse
    except (URLError, OSError, ValueError):
        return False
