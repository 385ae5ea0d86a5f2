"""A step without cuDNN: it chooses on the card how much memory its kernels take.

PyTorch's own kernels, which take its place, are known to the byte, so what is predicted is exact.
"""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def without_cudnn() -> Iterator[None]:
    """Leave cuDNN out of attention and convolutions; as it was before, afterwards.

    A convolution's backward asks the switch again when it runs, so the whole step belongs inside.
    Both switches are the process's; they are there on every build and mean nothing to a processor.
    """
    convolutions = torch.backends.cudnn.enabled
    attention = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    try:
        torch.backends.cudnn.enabled = False
        torch.backends.cuda.enable_cudnn_sdp(False)
        yield
    finally:
        torch.backends.cudnn.enabled = convolutions
        torch.backends.cuda.enable_cudnn_sdp(attention)
