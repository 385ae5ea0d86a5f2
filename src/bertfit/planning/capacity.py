"""The largest batch that a card holds, for lengths and precisions: a table of whole answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bertfit.memory.device import resolve_device
from bertfit.models.transformers_log import log_held_back
from bertfit.planning.estimate import MARGIN, required_bytes
from bertfit.planning.request import (
    model_builder,
    positions_of,
    settings_of,
    suited,
    within_positions,
)
from bertfit.planning.request_config import EstimateConfig
from bertfit.planning.shapes import ShapeFamily
from bertfit.types import DeviceSpec

LENGTHS = (64, 128, 256, 320, 384, 512)
MOST = 4096  # windows; a larger micro-batch gains nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """One cell: the largest batch of windows of one length, and what it requires.

    `batch_size` is 0 where not even one window fits; `required_bytes` is then that one's.
    """

    max_length: int
    batch_size: int
    required_bytes: int


@log_held_back()
def capacity(
    asked: EstimateConfig,
    lengths: Sequence[int] | None = None,
    on_cell: Callable[[Capacity], None] | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> tuple[list[Capacity], DeviceSpec]:
    """Find the largest batch for every length.

    Memory grows with the batch, so a search by halves finds it. Each size on the way is a replay,
    not a guess between two others.

    Args:
        asked: the question; its batch size and length are not looked at.
        lengths: tokens in each window; None is `LENGTHS`, up to what the model has.
        on_cell: told every answer as it is found.
        say: told where the model keeps the card from its best precision.

    Raises:
        ModelError: the model is not known, or it does not read a length.
        ConfigError: the card is not known.
    """
    device = resolve_device(asked.gpu)
    if lengths is None:
        most = min(positions_of(asked) or LENGTHS[-1], LENGTHS[-1])
        lengths = [*(length for length in LENGTHS if length < most), most]
    else:
        within_positions(asked.model_copy(update={"lengths": tuple(lengths)}))
    asked = suited(asked, device, say)
    build = model_builder(asked)
    family = ShapeFamily(
        build,
        lambda shape: settings_of(
            asked.model_copy(update={"batch_size": shape[0], "max_length": shape[1]}), device
        ),
        device,
        longest=max(lengths),
    )
    cells = []
    for length in lengths:
        cell = _largest(family, device, length)
        cells.append(cell)
        if on_cell is not None:
            on_cell(cell)
    return cells, device


def _largest(family: ShapeFamily, device: DeviceSpec, length: int) -> Capacity:
    def required(batch_size: int) -> int:
        reserved = family.simulate((batch_size, length)).allocator.peak_reserved_bytes
        return required_bytes(reserved, device)

    fits, needs = 0, required(1)
    if needs > device.total_bytes:
        return Capacity(max_length=length, batch_size=0, required_bytes=needs)
    fits = 1
    too_many = MOST + 1
    guess = 2
    while fits + 1 < too_many:
        size = required(guess)
        if size <= device.total_bytes:
            # Nearly a line: the next guess is where it would meet the card's memory.
            slope = max(1.0, (size - needs) / (guess - fits))
            fits, needs = guess, size
            guess = fits + max(1, int((device.total_bytes - needs) / (slope * (1 + MARGIN))))
        else:
            too_many = guess
            guess = (fits + too_many) // 2
        guess = min(max(guess, fits + 1), too_many - 1)
    return Capacity(max_length=length, batch_size=fits, required_bytes=needs)
