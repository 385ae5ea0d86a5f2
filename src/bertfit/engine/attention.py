"""Which kernel computes attention on a card: a fused one, never the plain one by surprise.

torch falls back to plain operations where no fused kernel takes a call; they keep B x A x T x T
scores for the backward, so a plan would no longer hold.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch.nn.attention import SDPBackend, sdpa_kernel

from bertfit.config import AttentionKernel
from bertfit.errors import ConfigError
from bertfit.language import _

P = ParamSpec("P")
T = TypeVar("T")

_KERNELS = {
    "flash": [SDPBackend.FLASH_ATTENTION],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
}
# cuDNN's is off in every step, see `engine.cudnn`.
_FUSED = [kernel for kernels in _KERNELS.values() for kernel in kernels]
# aten/src/ATen/native/transformers/cuda/attention.cu, when every kernel that is left refuses.
_REFUSAL = "No available kernel"


def with_fused_attention(run: Callable[P, T], kernel: AttentionKernel | None) -> Callable[P, T]:
    """Return what runs a step, held to fused kernels of scaled dot product attention.

    Args:
        run: runs a step, or a part of it, on a card.
        kernel: the only one that may be taken; None is any fused one.
    """

    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        with sdpa_kernel(_KERNELS[kernel] if kernel is not None else _FUSED):
            try:
                return run(*args, **kwargs)
            except RuntimeError as error:
                if _REFUSAL not in str(error):
                    raise
                reason = error
        raise ConfigError(
            _(
                "--attn-kernel {kernel}: this card has no such kernel for the attention of this "
                "model. Leave it out, or say --attn-implementation eager, which needs more memory."
            ).format(kernel=kernel or "flash, efficient")
        ) from reason

    return inside
