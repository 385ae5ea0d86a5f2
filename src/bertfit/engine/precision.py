"""Number formats: what the device does well, autocast, and the loss scale of fp16."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from traceback import walk_tb

import torch

from bertfit.config import Precision
from bertfit.errors import ConfigError, ModelError
from bertfit.language import _

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def cpu_has_bf16() -> bool:
    """Say whether this processor multiplies bfloat16 in hardware (AVX512-BF16 or AMX)."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def choose_precision(asked: Precision | None, device: torch.device) -> Precision:
    """Return the asked precision, or the fastest whose result is the same class of quality.

    Raises:
        ConfigError: the device cannot do what was asked.
    """
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        # Compute capability 6.x computes fp16 at a small fraction of fp32's rate.
        has_fp16 = torch.cuda.get_device_capability(device) >= (7, 0)
    else:
        has_bf16 = device.type == "cpu" and cpu_has_bf16()
        has_fp16 = device.type == "mps"
    if asked is None:
        return "bf16" if has_bf16 else "fp16" if has_fp16 and device.type == "cuda" else "fp32"
    if asked == "bf16" and device.type == "cuda" and not has_bf16:
        raise ConfigError(
            _(
                "--precision bf16: this card ({device}) has no bfloat16. Use fp16 or fp32, or "
                "leave --precision out."
            ).format(device=torch.cuda.get_device_name(device))
        )
    if asked == "fp16" and device.type == "cpu":
        raise ConfigError(
            _("--precision fp16: not on a CPU. Use bf16 or fp32, or leave --precision out.")
        )
    return asked


# transformers 5.24: DeBERTa masks 16-bit scores with the least fp32 number, X-MOD puts 16-bit rows
# into an fp32 table, and so does YOSO in its backward.
_WITHOUT_AUTOCAST = ("deberta", "xmod")
_WITHOUT_AUTOCAST_IN_TRAINING = (*_WITHOUT_AUTOCAST, "yoso")


def suited_precision(
    asked: Precision | None,
    best: Precision,
    kind: str,
    *,
    training: bool,
    say: Callable[[str], None] = lambda message: None,
) -> Precision:
    """Return the precision that a family of models computes with: fp32 where its code needs that.

    Args:
        asked: by the user.
        best: what was asked, or the device's best.
        kind: `model_type` of the model.
        training: whether there is a backward.
        say: told where the family keeps the device from its best.

    Raises:
        ModelError: 16 bits were asked for, and the family does not run under autocast.
    """
    without = _WITHOUT_AUTOCAST_IN_TRAINING if training else _WITHOUT_AUTOCAST
    if best == "fp32" or kind not in without:
        return best
    if asked is None:
        say(_("Models of type '{kind}' do not run in 16 bits: fp32 is taken.").format(kind=kind))
        return "fp32"
    raise ModelError(
        _(
            "--precision {precision}: models of type '{kind}' do not run in 16 bits, since their "
            "code mixes number formats. Take --precision fp32, or leave it out."
        ).format(precision=asked, kind=kind)
    )


def autocast(
    precision: Precision, device: torch.device, cache: bool = True
) -> AbstractContextManager[object]:
    """Return the autocast context of a precision; fp32 gives one that is switched off."""
    return torch.autocast(
        device.type,
        dtype=_AUTOCAST.get(precision, torch.bfloat16),
        enabled=precision != "fp32",
        cache_enabled=cache,
    )


# How torch says that numbers of two types meet, or that one does not fit into a type: c10/util/
# TypeCast.h, ATen's TensorMethods, LinearAlgebra, TensorAdvancedIndexing, attention, convolution.
_MISMATCH = re.compile(
    r"without overflow|expected scalar type|have (the )?same (d|scalar )types?|dtypes match"
    r"|dtype to be equal|should be the same"
)
_SHORT_TYPES = re.compile("half|float16", re.IGNORECASE)


@contextmanager
def dtypes_named() -> Iterator[None]:
    """Say what to take where a model's numbers do not go together in 16 bits.

    Raises:
        ModelError: a model mixes types, as some do under autocast.
    """
    try:
        yield
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        if not (_MISMATCH.search(reason) and _SHORT_TYPES.search(reason)):
            raise
        raise ModelError(
            _(
                "This model does not run in 16 bits: {place} stops with '{reason}'. Take "
                "--precision fp32."
            ).format(place=_place(error), reason=reason if len(reason) <= 200 else reason[:200])
        ) from error


def _place(error: BaseException) -> str:
    """Return file and line of the model that an error went through."""
    found = "-"
    for frame, line in walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("torch", "bertfit"):
            found = f"{Path(frame.f_code.co_filename).name}:{line}"
    return found


class LossScale:
    """The scale that keeps fp16 gradients from vanishing; grows slowly, halves on overflow.

    Values as in `torch.amp.GradScaler`. Kept on the host: a refused step is run again at the lower
    scale (law 3), so the host must know of it before the next step anyway.
    """

    GROWTH_INTERVAL = 2000

    def __init__(self, scale: float = 65536.0, good_steps: int = 0) -> None:
        self.scale = scale
        self.good_steps = good_steps

    def accept(self) -> None:
        """Count a step that went well; double the scale after `GROWTH_INTERVAL` of them."""
        self.good_steps += 1
        if self.good_steps == self.GROWTH_INTERVAL:
            self.scale *= 2
            self.good_steps = 0

    def refuse(self) -> bool:
        """Halve the scale; False when it is already so small that scaling is not the cause."""
        self.scale /= 2
        self.good_steps = 0
        return self.scale >= 1.0
