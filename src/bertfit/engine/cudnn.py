"""A step without cuDNN: it chooses on the card how much memory its kernels take.

PyTorch's own kernels, which take its place, are known to the byte, so what is predicted is exact.
"""

import contextlib
import threading
from collections.abc import Iterator

import torch

_lock = threading.Lock()
_inside = 0
_before = (True, True)


@contextlib.contextmanager
def without_cudnn() -> Iterator[None]:
    """Leave cuDNN out of attention and convolutions; as it was before, afterwards.

    A convolution's backward asks the switch again when it runs, so the whole step belongs inside.
    Both switches are the process's: the first thread that comes turns them, the last one that
    goes turns them back. They are there on every build and mean nothing to a processor.
    """
    global _inside, _before
    with _lock:
        if not _inside:
            _before = _switches()
            _turn(False, False)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _turn(*_before)


def _switches() -> tuple[bool, bool]:
    attention = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    return torch.backends.cudnn.enabled, attention


def _turn(convolutions: bool, attention: bool) -> None:
    torch.backends.cudnn.enabled = convolutions
    torch.backends.cuda.enable_cudnn_sdp(attention)
