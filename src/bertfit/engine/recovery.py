"""Steps that happen whole or not at all, in the memory there is (law 3).

A step that runs out of memory before its update is run again, from the same draws, in smaller
micro-batches. Nothing of the failed attempt is left: its gradients are dropped, its tensors gone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from bertfit.config import Precision
from bertfit.data.batches import cut, cut_as, pack, pad
from bertfit.engine.device import seed_step
from bertfit.engine.oom import Done, attempt, first_line
from bertfit.engine.optim import Update, UpdateBroken
from bertfit.engine.precision import LossScale
from bertfit.engine.step import StepResult, train_step
from bertfit.engine.step import gradients as step_gradients
from bertfit.errors import BudgetError
from bertfit.language import _
from bertfit.memory.gauges import Gauge, Reading
from bertfit.memory.host import available_bytes
from bertfit.types import Batch, Window
from bertfit.units import format_bytes

# Thrashing: the allocator emptied its cache in this many steps running.
THRASHING_STEPS = 2
# How often a step is tried again where its cut cannot be smaller.
SAME_CUT_CHANCES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A step that was made.

    Attributes:
        result: on the device.
        cuts: windows in each micro-batch, longest first; `Steps.run` repeats the step from them.
        num_tokens: real tokens of the step.
        num_labelled: labelled tokens; none leave the weights as they were.
        oom_retries: how often memory ended before it went through.
    """

    result: StepResult
    cuts: tuple[int, ...]
    num_tokens: int
    num_labelled: int
    oom_retries: int


class Steps:
    """Runs optimizer steps and remembers how large a micro-batch may be.

    Args:
        model: a token classifier in training mode, on `device`.
        update: its optimizer.
        device: where the model is.
        precision: fp32, or what to autocast to.
        pad_id: fills short windows.
        seed: of the draws; every step has draws of its own.
        card: the memory that is worked in.
        micro_batch_tokens: padded tokens of a micro-batch, to begin with.
        relieve: makes a step need less where a single window does not fit, without changing its
            result; says whether it could. Called once.
        step: what runs a step; the tests pass one that fails.
        gradients: what runs its forward and backward alone.
        packed: the model is prepared for packed batches; see `engine.packing`.
        counts_padding: cut by padded tokens all the same, as the memory is that of a card.

    Attributes:
        relieved: whether `relieve` was called.
    """

    def __init__(
        self,
        model: nn.Module,
        update: Update,
        *,
        device: torch.device,
        precision: Precision,
        pad_id: int,
        seed: int,
        card: Gauge,
        micro_batch_tokens: int,
        relieve: Callable[[], bool] = lambda: False,
        step: Callable[..., StepResult] = train_step,
        gradients: Callable[..., Tensor] = step_gradients,
        packed: bool = False,
        counts_padding: bool = False,
    ) -> None:
        self.model, self.update, self.device = model, update, device
        self.precision, self.pad_id, self.seed, self.card = precision, pad_id, seed, card
        self.loss_scale = LossScale() if precision == "fp16" else None
        self.micro_batch_tokens = self._most_tokens = micro_batch_tokens
        self.relieved = False
        self._thrashed = 0
        self._relieve, self._step, self._gradients = relieve, step, gradients
        self._packed = packed
        self._counts_padding = counts_padding or not packed

    def regrow(self) -> None:
        """Allow micro-batches of the size that was asked for again, at the start of an epoch."""
        self.micro_batch_tokens = self._most_tokens
        self._thrashed = 0

    def run(
        self, step: int, windows: Sequence[Window], cuts: Sequence[int] | None = None
    ) -> StepDone:
        """Make one step.

        Args:
            step: its number from 0; decides its draws.
            windows: what it learns from.
            cuts: as an earlier run recorded them; None cuts by `micro_batch_tokens`.

        Raises:
            BudgetError: one window alone does not fit.
            UpdateBroken: memory ended while the weights were changed.
        """
        parts = self._cut(windows) if cuts is None else cut_as(windows, cuts)
        retries, chances = 0, SAME_CUT_CHANCES
        while True:
            batches = self._collate(parts)
            before = self.card.num_alloc_retries()
            done = attempt(lambda b=batches: self._until_finite(step, b), self.card)  # type: ignore[misc]
            if isinstance(done, Done):
                break
            if self.update.begun:
                raise UpdateBroken(done.message)
            retries += 1
            self.update.clear()
            self.card.free_cached()
            if self._shrink(parts) or self._relieved_now():
                parts = self._cut(windows)
            elif chances:
                chances -= 1  # what took the memory may have been a neighbour, for a moment
            else:
                raise self._too_large(step, parts, done.message, retries)
        self._watch_thrashing(before, parts)
        return StepDone(
            result=done.value,
            cuts=tuple(len(part) for part in parts),
            num_tokens=sum(batch.num_tokens for batch in batches),
            num_labelled=sum(batch.num_labelled for batch in batches),
            oom_retries=retries,
        )

    def _cut(self, windows: Sequence[Window]) -> list[list[Window]]:
        return cut(windows, self.micro_batch_tokens, packed=not self._counts_padding)

    def _collate(self, parts: Sequence[Sequence[Window]]) -> list[Batch]:
        return [pack(part) if self._packed else pad(part, self.pad_id) for part in parts]

    def batches(self, windows: Sequence[Window]) -> list[Batch]:
        """Return the micro-batches that a step of these windows would have now."""
        return self._collate(self._cut(windows))

    def trial(self, windows: Sequence[Window]) -> list[Batch]:
        """Return what `rehearse` runs for these windows: their largest micro-batch, twice."""
        return [_trial(pad(self._largest_part(windows), self.pad_id))] * 2

    def _largest_part(self, windows: Sequence[Window]) -> list[Window]:
        longest = sorted(windows, key=lambda w: -len(w.input_ids))
        return longest[: max(1, self.micro_batch_tokens // len(longest[0].input_ids))]

    def _until_finite(self, step: int, batches: Sequence[Batch]) -> StepResult:
        """Run a step; in fp16, again at lower loss scales while it is refused."""
        while True:
            seed_step(self.seed, step)
            result = self._step(
                self.model,
                self.update,
                batches,
                device=self.device,
                precision=self.precision,
                loss_scale=self.loss_scale.scale if self.loss_scale else 1.0,
            )
            if self.loss_scale is None:
                return result
            # fp16 alone asks the card once a step: a refused step is run again before the next.
            if not bool(result.refused):
                self.loss_scale.accept()
                return result
            if not self.loss_scale.refuse():
                return result
            self.update.clear()  # it changed nothing: the step may still be run again

    def rehearse(self, windows: Sequence[Window]) -> int:
        """Take the memory of the largest micro-batch now, rather than in mid-run.

        Forward and backward run twice, for the second finds the gradients of the first in its way;
        the weights are not touched.

        Args:
            windows: all that a step may hold, the longest of them at least.

        Returns:
            How often memory ended; micro-batches are smaller by then.

        Raises:
            BudgetError: one window alone does not fit.
        """
        retries = 0
        while True:
            batches = self.trial(windows)
            done = attempt(lambda b=batches: self.forward_backward(b), self.card)  # type: ignore[misc]
            self.update.clear()
            if isinstance(done, Done):
                self._most_tokens = self.micro_batch_tokens
                return retries
            retries += 1
            self.card.free_cached()
            largest = [self._largest_part(windows)]
            if not self._shrink(largest) and not self._relieved_now():
                raise self._too_large(0, largest, done.message, retries)

    def forward_backward(self, batches: Sequence[Batch]) -> None:
        """Run forward and backward of a step, and leave its gradient; the weights stay."""
        self._gradients(
            self.model, self.update, batches, device=self.device, precision=self.precision
        )

    def _shrink(self, parts: Sequence[Sequence[Window]]) -> bool:
        """Halve the largest micro-batch that can be cut; False where each is one window."""
        tokens = self._largest(parts)
        if not tokens:
            return False
        # Halving, not -10 %: the allocator rounds, so small cuts often free nothing.
        self.micro_batch_tokens = tokens // 2
        return True

    def _largest(self, parts: Sequence[Sequence[Window]]) -> int:
        """Return the tokens of the largest micro-batch of several windows, 0 without one."""
        return max((self._tokens(part) for part in parts if len(part) > 1), default=0)

    def _tokens(self, part: Sequence[Window]) -> int:
        """Return the tokens of a micro-batch as `cut` counts them; its longest window is first."""
        if not self._counts_padding:
            return sum(len(window.input_ids) for window in part)
        return len(part) * len(part[0].input_ids)

    def _relieved_now(self) -> bool:
        """Relieve the step, if that was not done yet, and begin again from the size asked for."""
        if self.relieved:
            return False
        self.relieved = True
        if not self._relieve():
            return False
        self.micro_batch_tokens = self._most_tokens
        return True

    def _watch_thrashing(self, before: int, parts: Sequence[Sequence[Window]]) -> None:
        if 2 * self._largest(parts) < self.micro_batch_tokens:
            return  # a small step, which smaller cuts would not help: it says nothing
        if self.card.num_alloc_retries() == before:
            self._thrashed = 0
            return
        self._thrashed += 1
        if self._thrashed == THRASHING_STEPS:
            self._shrink(parts)
            self._thrashed = 0

    def _too_large(
        self, step: int, parts: Sequence[Sequence[Window]], why: str, failures: int
    ) -> BudgetError:
        """Say what does not fit and, by trying shorter windows, what would."""
        window = max((part[0] for part in parts), key=lambda w: len(w.input_ids))
        length = len(window.input_ids)
        tried = (length, length * 3 // 4, length // 2, length // 4, length // 8)
        fitting = next((n for n in tried if n >= min(8, length) and self._fits(window, n)), None)
        if fitting == length:
            return BudgetError(
                _(
                    "Step {step}: memory ended {count} times in micro-batches of one window "
                    "({why}), yet the longest of them, {length} tokens, fits now. So something "
                    "else took the memory: {held}. Close other programs and say the same command "
                    "again: it goes on from the last checkpoint."
                ).format(
                    step=step + 1,
                    count=failures,
                    why=first_line(why),
                    length=length,
                    held=_held(self.card.read()),
                )
            )
        if fitting is not None:
            return BudgetError(
                _(
                    "Step {step}: one window of {length} tokens does not fit ({why}). Windows "
                    "of {shorter} tokens do: say --max-length {shorter}, or give a larger "
                    "--budget."
                ).format(step=step + 1, length=length, why=first_line(why), shorter=fitting)
            )
        return BudgetError(
            _(
                "Step {step}: one window of {length} tokens does not fit, nor does a much shorter "
                "one ({why}). Give a larger --budget, close other programs on the card, or take a "
                "smaller model."
            ).format(step=step + 1, length=length, why=first_line(why))
        )

    def _fits(self, window: Window, num_tokens: int) -> bool:
        """Say whether the first tokens of a window fit alone, twice as in a step of several."""
        piece = _trial(pad([window], self.pad_id), num_tokens)
        done = attempt(lambda: self.forward_backward([piece, piece]), self.card)
        self.update.clear()
        self.card.free_cached()
        return isinstance(done, Done)


def _held(reading: Reading) -> str:
    """Say who holds how much of the memory."""
    if reading.card_total_bytes:
        return _(
            "of the card's {total} other programs hold {other} now, and this run has held {peak} "
            "at most"
        ).format(
            total=format_bytes(reading.card_total_bytes),
            other=format_bytes(reading.other_bytes),
            peak=format_bytes(reading.peak_bytes),
        )
    return _("this run holds {own} of the machine's memory, and {left} are left now").format(
        own=format_bytes(reading.host_bytes), left=format_bytes(available_bytes())
    )


def _trial(batch: Batch, num_tokens: int | None = None) -> Batch:
    """Return the batch cut to a width, every token labelled: it costs memory and says nothing."""
    ids = batch.input_ids[:, :num_tokens]
    mask = None
    if len(ids) > 1:  # windows of one length are rare, and padding costs: a mask of T x T
        mask = np.ones_like(ids)
        mask[-1, -1] = 0
    return replace(
        batch,
        input_ids=ids,
        attention_mask=mask,
        labels=np.zeros_like(ids),
        num_labelled=ids.size,
        num_tokens=ids.size,
    )
