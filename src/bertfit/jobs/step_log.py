"""The numbers of the steps: kept on the device until a log line is due, then read at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from bertfit.engine.nonfinite import find_nonfinite
from bertfit.engine.recovery import StepDone, Steps
from bertfit.errors import ModelError
from bertfit.jobs.run_folder import RunFolder
from bertfit.language import _
from bertfit.types import Example, StepRecord, Window


@dataclass(frozen=True, kw_only=True)
class PendingStep:
    """A step whose numbers the host has not read yet."""

    step: int
    epoch: float
    examples: list[int]
    learning_rate: float
    done: StepDone
    seconds: float
    peak_reserved_bytes: int


class StepLog:
    """Collects steps and writes them to `steps.jsonl` (law 8: one transfer per log line).

    Args:
        folder: the run folder.
        on_refused: told step and texts of an update that was refused as not finite; raises.
    """

    def __init__(self, folder: RunFolder, on_refused: Callable[[int, Sequence[int]], None]) -> None:
        self._folder, self._on_refused = folder, on_refused
        self._pending: list[PendingStep] = []
        self.oom_retries = 0

    def add(self, step: PendingStep) -> None:
        """Keep a step for the next reading."""
        self._pending.append(step)
        self.oom_retries += step.done.oom_retries

    def read(self) -> dict[str, str]:
        """Read and write what was kept; return what the progress bar shows of it."""
        if not self._pending:
            return {}
        results = [step.done.result for step in self._pending]
        numbers = torch.stack([torch.stack([r.loss, r.grad_norm, r.refused]) for r in results])
        pending, self._pending = self._pending, []
        rows = numbers.cpu().tolist()
        for step, (__, __, refused) in zip(pending, rows, strict=True):
            if refused:
                self._on_refused(step.step, step.examples)
        self._folder.add_steps(
            [_record(step, row[0], row[1]) for step, row in zip(pending, rows, strict=True)]
        )
        mean_loss = sum(row[0] for row in rows) / len(rows)
        rate = sum(s.done.num_tokens for s in pending) / sum(s.seconds for s in pending)
        facts = {"loss": f"{mean_loss:.3f}", _("tokens/s"): f"{rate:.0f}"}
        if self.oom_retries:
            facts["oom"] = str(self.oom_retries)
        return facts


def _record(step: PendingStep, loss: float, grad_norm: float) -> StepRecord:
    return StepRecord(
        step=step.step,
        epoch=step.epoch,
        loss=loss,
        learning_rate=step.learning_rate,
        grad_norm=grad_norm,
        tokens_per_second=step.done.num_tokens / step.seconds,
        cuts=step.done.cuts,
        peak_reserved_bytes=step.peak_reserved_bytes,
        oom_retries=step.done.oom_retries,
    )


def refused_step(
    steps: Steps, step: int, windows: Sequence[Window], train: Sequence[Example]
) -> ModelError:
    """Return what is known about a step that was not finite; the weights are as before it.

    Args:
        steps: with the model.
        step: its number from 1.
        windows: what it learnt from.
        train: the texts that windows are of.
    """
    found = find_nonfinite(
        steps.model, windows, steps.pad_id, device=steps.device, precision=steps.precision
    )
    if found is None:
        return ModelError(
            _(
                "Step {step}: the gradient is not finite, though every text alone gives a "
                "finite loss. The update was not made. Try a lower --learning-rate, a longer "
                "--warmup-steps, or --precision fp32."
            ).format(step=step)
        )
    example = train[windows[found[0]].index]
    return ModelError(
        _(
            "Step {step}: the loss is not finite. It begins in {layer}, on the text of "
            "{source}. The update was not made. Look at that text, try a lower "
            "--learning-rate, or --precision fp32."
        ).format(step=step, layer=found[1], source=example.source or example.id)
    )
