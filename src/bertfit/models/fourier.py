"""FNet's Fourier transform by products with cosines and sines, as its paper computes it on a TPU.

cuFFT chooses on the card how much memory it takes, has no bfloat16, and float16 for sizes that are
powers of two only. The products are known to the byte and train in every precision.
Source: Lee-Thorp et al., FNet: Mixing Tokens with Fourier Transforms, arXiv 2105.03824, 3.2.
"""

import math

import torch
from torch import Tensor, nn


def replace_fourier(model: nn.Module) -> None:
    """Let a model of transformers that mixes tokens by a Fourier transform do it by `real_fft2`."""
    for module in model.modules():
        if hasattr(module, "fourier_transform"):
            module.fourier_transform = real_fft2  # type: ignore[assignment]


def real_fft2(x: Tensor) -> Tensor:
    """Return the real part of the Fourier transform over tokens and width, computed in float32.

    Args:
        x: (B, T, H), any float dtype.

    Returns:
        (B, T, H), float32 under autocast, otherwise the dtype of `x`.
    """
    wide = x.float()
    # A processor's transform is many times faster than products, and its memory is not planned.
    out = _Products.apply(wide) if x.device.type == "cuda" else torch.fft.fft2(wide).real
    return out if torch.is_autocast_enabled(x.device.type) else out.to(x.dtype)  # type: ignore[no-any-return]


class _Products(torch.autograd.Function):
    """Its matrices are symmetric, so it is its own backward, and nothing is kept for that."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return products(x)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return products(grad)


def products(x: Tensor) -> Tensor:
    """Return cos_T x cos_H - sin_T x sin_H, the real part of the transform of real numbers.

    Args:
        x: (B, T, H) float32.
    """
    tokens, width = (_angles(size, x.device) for size in x.shape[1:])
    with torch.autocast(x.device.type, enabled=False):
        out: Tensor = tokens.cos() @ (x @ width.cos())
        return out.sub_(tokens.sin() @ (x @ width.sin()))


def _angles(size: int, device: torch.device) -> Tensor:
    """Return 2 pi i j / n for all i and j below n, whole turns left out: (n, n) float32."""
    places = torch.arange(size, device=device)
    return (places[:, None] * places % size) * (2 * math.pi / size)
