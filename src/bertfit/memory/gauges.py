"""What memory holds right now: of the card where there is one, and of this process.

Reading costs a few calls of the driver and synchronises nothing.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import psutil
import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Bytes held at one moment; see `types.MemorySample`.

    `peak_bytes` is the most that this process held of the card so far, its context counted.
    """

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    card_used_bytes: int = 0
    card_total_bytes: int = 0
    other_bytes: int = 0
    host_bytes: int = 0
    peak_bytes: int = 0


class Gauge(Protocol):
    """The memory that a job works in."""

    def free_cached(self) -> None:
        """Give what is cached and unused back to whoever else may need it."""

    def num_alloc_retries(self) -> int:
        """How often the allocator had to empty its cache to serve a request."""

    def peak_reserved_bytes(self) -> int:
        """The most that was reserved so far."""

    def read(self) -> Reading:
        """Look at everything."""


class HostGauge:
    """A job on the processor: only the process has a size, and nothing is cached."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def free_cached(self) -> None:
        """Do nothing: what torch frees on the host goes to the C library."""

    def num_alloc_retries(self) -> int:
        """Return 0."""
        return 0

    def peak_reserved_bytes(self) -> int:
        """Return 0."""
        return 0

    def read(self) -> Reading:
        """Look at the process."""
        return Reading(host_bytes=self._process.memory_info().rss)


class CudaGauge:
    """A job on a CUDA card.

    Args:
        device: the card.
        context_bytes: what the CUDA context of this process takes, as NVML does not tell it apart.
    """

    def __init__(self, device: torch.device, context_bytes: int) -> None:
        self._device = device
        self._context_bytes = context_bytes
        self._process = psutil.Process()
        self._total_bytes = torch.cuda.get_device_properties(device).total_memory
        self._nvml = _nvml_handle(device)

    def free_cached(self) -> None:
        """Empty torch's cache."""
        torch.cuda.empty_cache()

    def num_alloc_retries(self) -> int:
        """How often torch's allocator emptied its cache to serve a request."""
        return int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0))

    def peak_reserved_bytes(self) -> int:
        """The most that torch's allocator reserved so far."""
        return int(torch.cuda.max_memory_reserved(self._device))

    def read(self) -> Reading:
        """Look at the allocator, the card and the process."""
        reserved = int(torch.cuda.memory_reserved(self._device))
        used = self._used_bytes()
        own = reserved + self._context_bytes
        return Reading(
            allocated_bytes=int(torch.cuda.memory_allocated(self._device)),
            reserved_bytes=reserved,
            card_used_bytes=used or own,
            card_total_bytes=self._total_bytes,
            other_bytes=max(0, used - own),
            host_bytes=self._process.memory_info().rss,
            peak_bytes=self.peak_reserved_bytes() + self._context_bytes,
        )

    def _used_bytes(self) -> int:
        """Bytes of the card in use by all programs; 0 where the driver's NVML does not answer."""
        if self._nvml is None:
            return 0
        import pynvml

        try:
            return int(pynvml.nvmlDeviceGetMemoryInfo(self._nvml).used)
        except pynvml.NVMLError:
            return 0


def gauge_of(device: torch.device, context_bytes: int = 0) -> Gauge:
    """Return the gauge of a device."""
    return CudaGauge(device, context_bytes) if device.type == "cuda" else HostGauge()


def _nvml_handle(device: torch.device) -> Any:
    """Find the card by uuid: torch's numbers follow CUDA_VISIBLE_DEVICES, NVML's do not."""
    import pynvml

    try:
        pynvml.nvmlInit()
        uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
        if uuid:
            name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
            try:
                return pynvml.nvmlDeviceGetHandleByUUID(name)
            except pynvml.NVMLError:
                pass  # a driver without that look-up: the number is right on a one-card machine
        return pynvml.nvmlDeviceGetHandleByIndex(device.index or 0)
    except pynvml.NVMLError:
        return None
