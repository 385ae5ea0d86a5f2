"""What lets a training run end at any moment and go on later: checkpoints, and polite stops."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import overload

from torch import nn

from bertfit.engine.oom import Card, Done, attempt, first_line
from bertfit.engine.optim import Update
from bertfit.engine.step import StepResult
from bertfit.errors import ConfigError, Interrupted
from bertfit.jobs.checkpoints import Checkpoint, CheckpointStore, Unreadable
from bertfit.jobs.preemption import Preemption
from bertfit.jobs.resume import changed, refuse_changed
from bertfit.jobs.run_status import RunRecord
from bertfit.jobs.snapshots import Snapshots
from bertfit.jobs.stopping import Stopped, StopSignals
from bertfit.jobs.train_state import TrainState
from bertfit.language import _
from bertfit.types import Batch
from bertfit.units import Interval, parse_interval

# How often the folder is looked into for a word to stop: a look takes microseconds.
LOOK_SECONDS = 0.5
_Step = Callable[..., StepResult]


@contextmanager
def stop_at_once() -> Iterator[None]:
    """Let SIGTERM end what the block prepares; nothing of it needs to be saved.

    Raises:
        Interrupted: the signal came.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise Stopped  # not Interrupted: loaders turn what they catch into errors of the model

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except Stopped:
        raise before_the_first_step() from None
    finally:
        signal.signal(signal.SIGTERM, before)


def before_the_first_step() -> Interrupted:
    """Return what a stop is answered with while there is nothing to go on with."""
    return Interrupted(
        _("Stopped before the first step: nothing is lost. The same command begins again.")
    )


class StopRequests:
    """A stop that was asked for: by a signal, by `bertfit stop`, or as the machine is taken away.

    Args:
        record: of the run; its folder is looked into.
        preemption: looks out for word that the machine is about to be taken away.
    """

    def __init__(self, record: RunRecord, preemption: Preemption) -> None:
        self._signals = StopSignals()
        self._record, self._preemption = record, preemption
        self._looked = 0.0

    def check(self) -> None:
        """Stop here, if a stop was asked for.

        Raises:
            Stopped: it was.
        """
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            if self._record.stop_is_asked():
                self._signals.cause = "bertfit stop"
            elif word := self._preemption.word():
                self._signals.cause = word
        self._signals.check()

    @property
    def cause(self) -> str:
        """What asked for the stop."""
        if self._record.stop_is_asked():
            return "bertfit stop"  # it sends SIGTERM too, where it can
        return self._signals.cause

    def between_micro_batches(self, step: _Step) -> _Step:
        """Return the step, checking before every micro-batch: a stop leaves the step undone."""

        def checked(
            model: nn.Module, update: Update, batches: Sequence[Batch], **settings: object
        ) -> StepResult:
            return step(model, update, _Checked(batches, self.check), **settings)

        return checked

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take signals, and look out for the others, while the block runs."""
        with self._signals, self._preemption:
            yield


class _Checked(Sequence[Batch]):
    """Micro-batches that ask before each of them whether to go on."""

    def __init__(self, batches: Sequence[Batch], check: Callable[[], None]) -> None:
        self._batches, self._check = batches, check

    def __len__(self) -> int:
        return len(self._batches)

    @overload
    def __getitem__(self, index: int) -> Batch: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Batch]: ...

    def __getitem__(self, index: int | slice) -> Batch | Sequence[Batch]:
        return self._batches[index]

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            self._check()
            yield batch


@dataclass(frozen=True, kw_only=True)
class Survival:
    """What a run needs to be stopped and gone on with.

    Attributes:
        record: its lock, and what it says about itself.
        stops: how it is asked to stop.
        store: where its checkpoints go.
        identity: what it depends on.
        checkpoint: where it goes on; None begins it.
    """

    record: RunRecord
    stops: StopRequests
    store: CheckpointStore
    identity: Mapping[str, str]
    checkpoint: Checkpoint | None

    @property
    def step(self) -> int | None:
        """The step it goes on after."""
        return None if self.checkpoint is None else self.checkpoint.step


class Checkpoints:
    """Saves a run at intervals.

    Args:
        store: where checkpoints go.
        model: what is trained.
        update: its optimizer.
        save_every: as the user says it.
        card: whose memory a copy may run out of.
        say: told of saves that failed.
        sync: has the run's other files on the disk; called before a checkpoint is written.
    """

    def __init__(
        self,
        store: CheckpointStore,
        model: nn.Module,
        update: Update,
        save_every: str,
        card: Card,
        say: Callable[[str], None],
        sync: Callable[[], None],
    ) -> None:
        self._snapshots = Snapshots(store, model, update, say, sync)
        self._interval = parse_interval(save_every)
        self._card, self._say = card, say
        if self.are_wanted:
            # Where memory ends here, the first checkpoint tries again, and warns.
            attempt(self._snapshots.prepare, card)
        self._last_step, self._last_time = 0, time.monotonic()

    @property
    def are_wanted(self) -> bool:
        """Whether the user wants any."""
        return self._interval != Interval()

    def due(self, step: int) -> bool:
        """Say whether the interval is over; not while the last one is still being written."""
        if self._snapshots.busy:
            return False
        if self._interval.steps is not None:
            return step - self._last_step >= self._interval.steps
        if self._interval.seconds is not None:
            return time.monotonic() - self._last_time >= self._interval.seconds
        return False

    def begin(self, step: int) -> None:
        """Count the interval from here: the run begins, or was resumed."""
        self._last_step, self._last_time = step, time.monotonic()

    def take(self, state: TrainState) -> None:
        """Copy the run and begin to write it."""
        done = attempt(lambda: self._snapshots.take(state), self._card)
        if not isinstance(done, Done):
            self._say(
                _(
                    "Warning: no checkpoint of step {step}: there is no memory for a copy "
                    "({reason}). Training goes on."
                ).format(step=state.step, reason=first_line(done.message))
            )
        self.begin(state.step)

    def finish(self) -> int | None:
        """Wait until all is written; return the step of the newest that was, if any."""
        self._snapshots.wait()
        return self._snapshots.saved_step


def find_checkpoint(
    store: CheckpointStore,
    identity: Mapping[str, str],
    overwrite: bool,
    say: Callable[[str], None],
) -> Checkpoint | None:
    """Return the newest whole checkpoint of a run; None where there is none to go on with.

    Args:
        store: of the run.
        identity: what the run that is asked for depends on.
        overwrite: take none, rather than refuse those of another job or that cannot be used.
        say: told of damaged checkpoints.

    Raises:
        ConfigError: it is another job, or there are checkpoints and none can be used.
    """
    try:
        checkpoint, passed = store.load_newest(TrainState.from_json)
    except Unreadable:
        if overwrite:
            return None
        raise
    for message in passed:
        say(message)
    if checkpoint is None:
        if passed and not overwrite:
            raise ConfigError(
                _(
                    "{folder}: holds an unfinished run, but none of its checkpoints is whole, so "
                    "it cannot be gone on with; all is left as it is. To begin anew, say "
                    "--overwrite or name another --output-dir."
                ).format(folder=store.folder.parent)
            )
        return None
    names = changed(TrainState.from_json(checkpoint.state).identity, identity)
    if names and overwrite:
        return None
    refuse_changed(store.folder.parent, names)
    return checkpoint
