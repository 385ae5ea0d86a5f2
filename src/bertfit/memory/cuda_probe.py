"""The real card behind `measurement.Probe`: NVML for what it holds, CUDA events for its speed."""

from typing import Any

from bertfit.errors import ConfigError
from bertfit.language import _

_REPEATS = 20  # products between two events, so that a launch of 5 us does not count
_WIDTH, _HEADS, _ROWS, _TOKENS = 768, 12, 4, 128


class CudaProbe:
    """One CUDA card of this machine; see `measurement.Probe`.

    Raises:
        ConfigError: no such card, or no driver library that says what the card holds.
    """

    def __init__(self, index: int = 0) -> None:
        import pynvml
        import torch

        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise ConfigError(
                _(
                    "--measure: torch sees no CUDA card number {index} here. Run bertfit doctor "
                    "without --measure to see why."
                ).format(index=index)
            )
        properties = torch.cuda.get_device_properties(index)
        self.name: str = properties.name
        self.total_bytes: int = properties.total_memory
        self.torch: str = torch.__version__
        self._device = torch.device("cuda", index)
        self._half = torch.bfloat16 if properties.major >= 8 else torch.float16
        try:
            pynvml.nvmlInit()
            self.driver = str(pynvml.nvmlSystemGetDriverVersion())
            self._handle = _handle(str(getattr(properties, "uuid", "")), index)
        except pynvml.NVMLError as error:
            raise ConfigError(
                _(
                    "--measure: the driver's NVML library does not answer ({reason}), so the "
                    "context cannot be measured."
                ).format(reason=error)
            ) from None

    def used_bytes(self) -> int:
        """Bytes of the card in use by all programs; creates no context."""
        import pynvml

        return int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def warm(self) -> None:
        """Run two training steps of a one-layer encoder, in mixed precision.

        They load what a real step loads: embedding, products, attention, layer norm, GELU,
        dropout, cross entropy, the backward of all these, clipping and the fused AdamW.
        """
        import torch
        from torch import nn

        layer = nn.TransformerEncoderLayer(
            _WIDTH, _HEADS, 4 * _WIDTH, activation="gelu", batch_first=True
        )
        model = nn.Sequential(nn.Embedding(1000, _WIDTH), layer, nn.Linear(_WIDTH, 9))
        model.to(self._device).train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        ids = torch.randint(1000, (_ROWS, _TOKENS), device=self._device)
        for _step in range(2):
            with torch.autocast("cuda", self._half):
                logits = model(ids).float()
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten() % 9)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize(self._device)

    def reserved_bytes(self) -> int:
        """Bytes that torch's allocator holds."""
        import torch

        return torch.cuda.memory_reserved(self._device)

    def matmul_seconds(self, rows: int, inner: int, columns: int, *, half: bool) -> float:
        """Time one product (rows, inner) x (inner, columns), in 16 bits or in fp32."""
        import torch

        dtype = self._half if half else torch.float32
        left = torch.randn(rows, inner, device=self._device, dtype=dtype)
        right = torch.randn(inner, columns, device=self._device, dtype=dtype)
        out = torch.empty(rows, columns, device=self._device, dtype=dtype)
        return self._seconds(lambda: torch.mm(left, right, out=out))

    def copy_seconds(self, size_bytes: int) -> float:
        """Time one copy of a tensor of that size on the card."""
        import torch

        source = torch.empty(size_bytes, device=self._device, dtype=torch.uint8)
        target = torch.empty_like(source)
        return self._seconds(lambda: target.copy_(source))

    def _seconds(self, work: Any) -> float:
        import torch

        work()
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        for _repeat in range(_REPEATS):
            work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / _REPEATS


def _handle(uuid: str, index: int) -> Any:
    """Find the card by uuid: torch's numbers follow CUDA_VISIBLE_DEVICES, NVML's do not."""
    import pynvml

    if uuid:
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(name)
        except pynvml.NVMLError:
            pass  # a driver without that look-up: the number is right on a one-card machine
    return pynvml.nvmlDeviceGetHandleByIndex(index)
