"""Where the work runs: the device by name, and the seed of a step."""

import numpy as np
import torch

from bertfit.errors import ConfigError
from bertfit.language import _


def choose_device(asked: str | None) -> torch.device:
    """Return the asked device, or the fastest that is here: CUDA, then Apple's GPU, then the CPU.

    Raises:
        ConfigError: no such device here.
    """
    if asked is None:
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(asked)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(
            _(
                "--device {device}: use cpu, cuda, cuda:N or mps; training also takes sim:4GiB or "
                "sim:NAME."
            ).format(device=asked)
        )
    if device.type != "cuda":
        if device.index:
            raise ConfigError(
                _("--device {device}: there is only one. Use --device {kind}.").format(
                    device=asked, kind=device.type
                )
            )
        device = torch.device(device.type)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or (device.index or 0) >= count:
            raise ConfigError(
                _(
                    "--device {device}: torch sees {count} CUDA cards here. Use --device cpu, or "
                    "look at `bertfit doctor`."
                ).format(device=asked, count=count)
            )
        return torch.device("cuda", device.index or 0)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(_("--device mps: this machine has no Apple GPU. Use --device cpu."))
    return device


def seed_step(seed: int, step: int) -> None:
    """Make all random draws of a step a function of (seed, step).

    So a step that is run again, in this process or after a resume, draws what it drew before.
    """
    torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1)[0]))
