"""What a run leaves on the disk: its best model, and where it can be gone on with."""

from dataclasses import dataclass

from bertfit.engine.oom import Done, attempt
from bertfit.engine.precision import LossScale
from bertfit.engine.recovery import Steps
from bertfit.errors import BudgetError, Interrupted
from bertfit.jobs.checkpoints import Checkpoint
from bertfit.jobs.corpus import Say
from bertfit.jobs.dev_scores import DevScores
from bertfit.jobs.run_folder import RunFolder
from bertfit.jobs.snapshots import restore
from bertfit.jobs.step_log import StepLog
from bertfit.jobs.survival import Checkpoints, Survival, before_the_first_step
from bertfit.jobs.train_state import TrainState
from bertfit.language import _
from bertfit.models.lora import merged
from bertfit.models.rows import RowEmbedding, whole_embedding
from bertfit.models.tagger import Tagger, save_tagger


@dataclass(kw_only=True)
class Progress:
    """How far a run is; the loop counts it up, a checkpoint sets it.

    Attributes:
        step: steps made.
        decay: what the embedding rows that are not trained were multiplied with.
        texts: learnt from so far, over all epochs.
        training_seconds: spent in steps.
    """

    step: int = 0
    decay: float = 1.0
    texts: int = 0
    training_seconds: float = 0.0


class Saving:
    """Saves a run and goes on with it: knows every part of it that a checkpoint holds.

    Args:
        folder: the run folder.
        tagger: what is trained; `steps` has it on the device.
        rows: its embedding.
        steps: model, optimizer and loss scale.
        dev: scores so far.
        log: steps not yet written.
        progress: how far the run is.
        survival: where checkpoints go, and what they are of.
        name: of the run, for the command that goes on with it.
        num_steps: of the whole run.
        save_every: as the user says it.
        say: told of saves that failed.
    """

    def __init__(
        self,
        folder: RunFolder,
        tagger: Tagger,
        rows: RowEmbedding,
        steps: Steps,
        dev: DevScores,
        log: StepLog,
        progress: Progress,
        survival: Survival,
        *,
        name: str,
        num_steps: int,
        save_every: str,
        say: Say,
    ) -> None:
        self._folder, self._tagger, self._rows, self._steps = folder, tagger, rows, steps
        self._dev, self._log, self._progress = dev, log, progress
        self._name = name
        self._identity, self._num_steps, self._say = survival.identity, num_steps, say
        self.checkpoints = Checkpoints(
            survival.store, steps.model, steps.update, save_every, steps.card, say, folder.sync
        )

    def save_model(self) -> None:
        """Write the model; where memory ends, once more with everything freed that can be.

        Raises:
            BudgetError: memory ended twice.
        """

        def write() -> None:
            model, update = self._steps.model, self._steps.update
            whole = whole_embedding(model, self._rows, self._progress.decay)
            with update.unrounded(), whole, merged(model):
                save_tagger(self._tagger, self._folder.model)

        done = attempt(write, self._steps.card)
        if not isinstance(done, Done):
            self._steps.update.clear()
            self._steps.card.free_cached()
            done = attempt(write, self._steps.card)
        if not isinstance(done, Done):
            raise BudgetError(
                _(
                    "Step {step}: the model could not be saved, memory ended ({reason}). An older "
                    "model in {folder} is untouched. Close other programs and run again."
                ).format(step=self._progress.step, reason=done.message, folder=self._folder.model)
            )

    def take_checkpoint(self, finished: bool = False) -> None:
        """Begin to save where the run is; the log was read before."""
        self.checkpoints.take(self._state(finished))

    def _state(self, finished: bool) -> TrainState:
        scale, at, dev = self._steps.loss_scale, self._progress, self._dev
        return TrainState(
            step=at.step,
            decay=at.decay,
            loss_scale=None if scale is None else scale.scale,
            good_steps=0 if scale is None else scale.good_steps,
            micro_batch_tokens=self._steps.micro_batch_tokens,
            evaluations=tuple(dev.evaluations),
            best=dev.best,
            best_step=dev.best_step,
            without_gain=dev.without_gain,
            texts=at.texts,
            training_seconds=at.training_seconds,
            oom_retries=self._log.oom_retries,
            finished=finished,
            identity=self._identity,
        )

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Put the run where a checkpoint says it was."""
        steps, at, dev = self._steps, self._progress, self._dev
        restore(checkpoint, steps.model, steps.update)
        state = TrainState.from_json(checkpoint.state)
        at.step, at.decay, at.texts = state.step, state.decay, state.texts
        at.training_seconds, self._log.oom_retries = state.training_seconds, state.oom_retries
        dev.evaluations = [dict(each) for each in state.evaluations]
        dev.best, dev.best_step, dev.without_gain = state.best, state.best_step, state.without_gain
        # Smaller where memory had ended; what the user says now may be smaller still.
        steps.micro_batch_tokens = min(steps.micro_batch_tokens, state.micro_batch_tokens)
        if steps.loss_scale is not None and state.loss_scale is not None:
            steps.loss_scale = LossScale(state.loss_scale, state.good_steps)
        self.checkpoints.begin(at.step)
        self._say(
            _("Going on after step {step} of {all}.").format(step=at.step, all=self._num_steps)
        )

    def interrupted(self, cause: str) -> Interrupted:
        """Save what there is, between two steps, and say how to go on.

        Args:
            cause: what asked for the stop.
        """
        self._steps.update.clear()  # of a step half done
        self._log.read()
        step = self._progress.step
        if not step:
            return before_the_first_step()
        self.take_checkpoint()
        if self.checkpoints.finish() == step:
            message = _(
                "Stopped after step {step} of {all} ({cause}); everything is saved. The same "
                "command goes on, or: bertfit train --resume {name}"
            )
        else:
            message = _(
                "Stopped after step {step} of {all} ({cause}), which is not saved. The same "
                "command goes on from the newest checkpoint, or: bertfit train --resume {name}"
            )
        return Interrupted(
            message.format(step=step, all=self._num_steps, cause=cause, name=self._name)
        )
