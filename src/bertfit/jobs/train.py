"""Train a tagger: from files to a run folder, top to bottom."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from bertfit.config import JobConfig
from bertfit.data.batches import steps_of_epoch
from bertfit.engine.fence import check_floor, check_host, fence, floor_bytes, take
from bertfit.engine.nonfinite import find_nonfinite
from bertfit.engine.oom import Done, attempt
from bertfit.engine.optim import Schedule, Update, UpdateBroken, parameter_groups
from bertfit.engine.precision import LossScale
from bertfit.engine.recovery import Steps
from bertfit.engine.workplace import Workplace
from bertfit.errors import BudgetError, ConfigError, Interrupted, ModelError
from bertfit.jobs.checkpoints import Checkpoint, CheckpointStore
from bertfit.jobs.corpus import Corpus, Say, read_corpus
from bertfit.jobs.dev_scores import DevScores, one_line, score_of
from bertfit.jobs.lessons import make_lessons
from bertfit.jobs.predict import Predictor
from bertfit.jobs.resume import identity_of, may_go_on
from bertfit.jobs.run_folder import RunFolder, default_folder
from bertfit.jobs.run_status import RunRecord, was_announced
from bertfit.jobs.runs import register
from bertfit.jobs.snapshots import restore
from bertfit.jobs.starting_point import TINY, starting_tagger
from bertfit.jobs.step_log import PendingStep, StepLog
from bertfit.jobs.stopping import Stopped
from bertfit.jobs.survival import Checkpoints, StopRequests, find_checkpoint, stop_at_once
from bertfit.jobs.train_state import TrainState
from bertfit.language import _
from bertfit.memory.monitor import Monitor
from bertfit.models.encoder import find_model, head_parameters
from bertfit.models.rows import keep_rows, whole_embedding
from bertfit.models.tagger import Tagger, save_tagger
from bertfit.planning.levers import TrainSettings, encoder_layers, prepare_model
from bertfit.planning.workplace import workplace_of
from bertfit.types import Batch, Scores
from bertfit.units import format_bytes

CPU_MICRO_BATCH_TOKENS = 1024
CARD_MICRO_BATCH_TOKENS = 8192
HEAD_LEARNING_RATE = 1e-3


@dataclass(frozen=True, kw_only=True)
class TrainReport:
    """What a finished run left.

    Attributes:
        output_dir: the run folder.
        scores: dev scores of the kept model; None where nothing was held out.
        best_step: the step whose model was kept.
        seconds: wall-clock time of training and evaluation.
        sentences_per_second: training texts per second of training, evaluation not counted.
        oom_retries: how often memory ended in a step, and the step was run again.
    """

    output_dir: Path
    scores: Scores | None
    best_step: int
    steps: int
    seconds: float
    sentences_per_second: float
    oom_retries: int = 0


def train(
    job: JobConfig,
    *,
    progress: bool = True,
    say: Say | None = None,
    cuts: Sequence[Sequence[int]] = (),
) -> TrainReport:
    """Run one training job and leave a run folder.

    An unfinished run of the same job in that folder is gone on with.

    Args:
        job: what is asked.
        progress: show progress bars on stderr.
        say: told what the user should know; None writes to stderr.
        cuts: micro-batches of the first steps, as the `steps.jsonl` of another run records them: so
            a run that had to cut smaller can be repeated bit for bit.

    Raises:
        Interrupted: it was stopped from outside, and can be gone on with.
        BertfitError: see `bertfit.errors`.
    """
    say = say or _say
    place = workplace_of(job)
    output = job.output_dir or default_folder(job)
    RunFolder.check(output, job)
    goes_on = may_go_on(output, job)
    with ExitStack() as stack:
        stack.enter_context(stop_at_once())  # until there is something to save
        # Started in the background: whatever goes wrong from here on is looked for in the folder.
        record = stack.enter_context(RunRecord(output)) if was_announced(output) else None
        if job.model != TINY:
            find_model(job.model)  # a wrong name shows before the data are read
        corpus = read_corpus(job, say)
        torch.manual_seed(job.seed)
        tagger = starting_tagger(job, corpus, say)
        identity = identity_of(job, corpus, tagger.model)
        record = record or stack.enter_context(RunRecord(output))
        stops = StopRequests(record, job.preemption_file)
        store = CheckpointStore(output / "checkpoints")
        checkpoint = find_checkpoint(store, identity, job.overwrite, say) if goes_on else None
        run = RunFolder.open(output, job, checkpoint.step if checkpoint is not None else None)
        register(output)
        stack.enter_context(fence(place.device, job.budget, place.context_bytes))
        stack.enter_context(run)
        survival = _Survival(
            record=record, stops=stops, store=store, identity=identity, checkpoint=checkpoint
        )
        return _Training(job, corpus, tagger, place, run, progress, say, cuts, survival).run()


@dataclass(frozen=True, kw_only=True)
class _Survival:
    """What a run needs to be stopped and gone on with; `checkpoint` is where it goes on."""

    record: RunRecord
    stops: StopRequests
    store: CheckpointStore
    identity: Mapping[str, str]
    checkpoint: Checkpoint | None


def _say(message: str) -> None:
    tqdm.write(message, file=sys.stderr)


class _Training:
    """The state of one run: model, optimizer, schedule, and the best score so far."""

    def __init__(
        self,
        job: JobConfig,
        corpus: Corpus,
        tagger: Tagger,
        place: Workplace,
        run: RunFolder,
        progress: bool,
        say: Say,
        cuts: Sequence[Sequence[int]],
        survival: _Survival,
    ) -> None:
        self.job, self.corpus, self.tagger, self.place = job, corpus, tagger, place
        self.folder, self.progress, self.say = run, progress, say
        self.cuts, self.survival = cuts, survival
        self.lessons = make_lessons(corpus, tagger, job.model, say)
        self.rows = keep_rows(tagger.model, self.lessons.piece_ids(tagger))
        needed = self._check_memory()
        self.model, self.update = take(self._model_and_update, place.gauge, needed)
        self.num_steps = -(-len(corpus.train) // job.batch_size) * job.num_train_epochs
        self.schedule = Schedule(num_steps=self.num_steps, warmup_steps=job.warmup_steps)
        self.steps = Steps(
            self.model,
            self.update,
            device=place.device,
            precision=place.precision,
            pad_id=tagger.tokenizer.pad_id,
            seed=job.seed,
            card=place.gauge,
            micro_batch_tokens=job.micro_batch_tokens
            or (CARD_MICRO_BATCH_TOKENS if place.is_card else CPU_MICRO_BATCH_TOKENS),
            relieve=self._checkpoint_layers,
            step=survival.stops.between_micro_batches(place.step),
            gradients=place.gradients,
        )
        self.monitor = Monitor(place.gauge, run.add_sample)
        self.log = StepLog(run, self._explain)
        self.dev = DevScores(corpus, self.lessons, job.early_stopping_patience, progress)
        self.step = 0
        self.decay = 1.0  # of the embedding rows that are not trained
        self.training_seconds = 0.0
        self.texts = 0
        self.checkpoints = Checkpoints(
            survival.store, self.model, self.update, job.save_every, place.gauge, say
        )
        if survival.checkpoint is not None:
            self._resume(survival.checkpoint)

    def _model_and_update(self) -> tuple[nn.Module, Update]:
        """Move the model to the device and make the optimizer, with its state."""
        model = self.tagger.model.to(self.place.device)
        update = self._make_update(model)
        self.place.load(model, self._make_update, self.tagger.max_length)
        return model, update

    def _make_update(self, model: nn.Module) -> Update:
        job = self.job
        groups = parameter_groups(
            model,
            [parameter for __, parameter in head_parameters(model)],
            learning_rate=job.learning_rate or default_learning_rate(model),
            head_learning_rate=job.head_learning_rate or HEAD_LEARNING_RATE,
            weight_decay=job.weight_decay,
        )
        return Update(groups, max_grad_norm=job.max_grad_norm)

    def run(self) -> TrainReport:
        """Train to the end, or until early stopping; keep the best model.

        Raises:
            Interrupted: a stop was asked for; the run is saved.
        """
        started = time.perf_counter()
        self.model.train()
        try:
            with self.survival.stops:
                self._run_epochs()
        except Stopped:
            raise self._interrupted() from None
        except Exception:
            self.checkpoints.finish()  # the next run in this process may be of the same folder
            raise
        self.checkpoints.finish()
        return TrainReport(
            output_dir=self.folder.path,
            scores=self.dev.best,
            best_step=self.dev.best_step,
            steps=self.step,
            seconds=time.perf_counter() - started,
            sentences_per_second=self.texts / max(self.training_seconds, 1e-9),
            oom_retries=self.log.oom_retries,
        )

    def _run_epochs(self) -> None:
        with (
            self.monitor,
            tqdm(
                total=self.num_steps,
                initial=self.step,
                disable=not self.progress,
                dynamic_ncols=True,
                unit=_("step"),
                desc=_("training"),
            ) as bar,
        ):
            if self.place.is_card:
                self._rehearse()
            for epoch in range(self.job.num_train_epochs):
                if self._run_epoch(epoch, bar):
                    break
            if not self.lessons.dev:
                self._save()
            if self.checkpoints.are_wanted:
                self._take_checkpoint(bar, finished=True)

    def _run_epoch(self, epoch: int, bar: "tqdm[NoReturn]") -> bool:
        """Run one epoch; True when training should stop early."""
        steps = steps_of_epoch(len(self.corpus.train), self.job.batch_size, self.job.seed, epoch)
        if self.step <= epoch * len(steps):
            self.steps.regrow()
        for number, examples in enumerate(steps, 1):
            at = epoch * len(steps) + number
            if at < self.step:
                continue  # made before the run was gone on with
            if at > self.step:
                self._run_step(epoch + number / len(steps), examples)
                bar.update()
                if self.step % self.job.logging_steps == 0:
                    self._read_log(bar)
            every = self.job.eval_steps
            if self.step % every == 0 if every else number == len(steps):
                self._read_log(bar)
                if self.lessons.dev and self._evaluate(epoch + 1, bar):
                    return True
            if self.checkpoints.due(self.step):
                self._take_checkpoint(bar)
        self._read_log(bar)
        return False

    def _run_step(self, epoch: float, examples: list[int]) -> None:
        started = time.perf_counter()
        rate = self.update.set_rate(self.schedule.factor(self.step))
        cuts = self.cuts[self.step] if self.step < len(self.cuts) else None
        try:
            done = self.steps.run(self.step, self.lessons.of(examples), cuts)
        except BudgetError as error:
            raise BudgetError(f"{error} {self.dev.saved(self.folder.model)}") from None
        except UpdateBroken as error:
            raise BudgetError(
                _(
                    "Step {step}: memory ended while the weights were changed ({reason}), so they "
                    "are not to be used and the run stops. {saved}"
                ).format(step=self.step + 1, reason=error, saved=self.dev.saved(self.folder.model))
            ) from None
        if done.num_labelled:
            self.decay *= 1 - rate * self.job.weight_decay
        self.step += 1
        self.monitor.step = self.step
        if done.oom_retries:
            self.say(
                _(
                    "Step {step}: memory ended {count} times; the step was run again, whole, in "
                    "{parts} micro-batches."
                ).format(step=self.step, count=done.oom_retries, parts=len(done.cuts))
            )
        seconds = time.perf_counter() - started
        self.training_seconds += seconds
        self.texts += len(examples)
        self.log.add(
            PendingStep(
                step=self.step,
                epoch=epoch,
                examples=examples,
                learning_rate=rate,
                done=done,
                seconds=seconds,
                peak_reserved_bytes=self.place.gauge.peak_reserved_bytes(),
            )
        )

    def _read_log(self, bar: "tqdm[NoReturn]") -> None:
        facts = self.log.read()
        self.survival.record.progress(
            self.step,
            self.num_steps,
            self.training_seconds / max(1, self.step),
            None if self.dev.best is None else score_of(self.dev.best),
        )
        if not facts:
            return
        if self.place.is_card:
            facts[_("memory")] = format_bytes(
                self.place.gauge.peak_reserved_bytes() + self.place.context_bytes
            )
        if self.dev.best is not None:
            facts["F1"] = f"{score_of(self.dev.best):.3f}"
        bar.set_postfix(facts)

    def _evaluate(self, epoch: int, bar: "tqdm[NoReturn]") -> bool:
        """Score the dev data, keep the model if it is the best; True when patience is over."""
        if self.dev.evaluations and self.dev.evaluations[-1]["step"] == self.step:
            return self.dev.patience_is_over  # scored before the run was gone on with
        self.update.clear()  # gradients are of no use now, and scoring needs room
        predictor = Predictor(self.tagger, device=self.place.device, precision=self.place.precision)
        forward = predictor.forward

        def checked(batch: Batch) -> Tensor:
            self.survival.stops.check()
            return forward(batch)

        predictor.forward = checked
        scores = self.dev.score(predictor, self.place.gauge)
        self.model.train()
        better = self.dev.add(scores, self.step, epoch)
        if better:
            self._save()
        self.dev.write(self.folder)
        self.say(
            _("epoch {epoch}, step {step}: dev {scores}{mark}").format(
                epoch=epoch, step=self.step, scores=one_line(scores), mark=" *" if better else ""
            )
        )
        if better and self.checkpoints.are_wanted:
            self._take_checkpoint(bar)
        if self.dev.patience_is_over:
            self.say(
                _("No better score in {count} evaluations: stopping early.").format(
                    count=self.job.early_stopping_patience
                )
            )
        return self.dev.patience_is_over

    def _save(self) -> None:
        """Write the model; where memory ends, once more with everything freed that can be."""

        def write() -> None:
            with whole_embedding(self.model, self.rows, self.decay):
                save_tagger(self.tagger, self.folder.model)

        done = attempt(write, self.place.gauge)
        if not isinstance(done, Done):
            self.update.clear()
            self.place.gauge.free_cached()
            done = attempt(write, self.place.gauge)
        if not isinstance(done, Done):
            raise BudgetError(
                _(
                    "Step {step}: the model could not be saved, memory ended ({reason}). An older "
                    "model in {folder} is untouched. Close other programs and run again."
                ).format(step=self.step, reason=done.message, folder=self.folder.model)
            )

    def _take_checkpoint(self, bar: "tqdm[NoReturn]", finished: bool = False) -> None:
        self._read_log(bar)
        self.folder.sync()
        self.checkpoints.take(self._state(finished))

    def _state(self, finished: bool = False) -> TrainState:
        scale = self.steps.loss_scale
        return TrainState(
            step=self.step,
            decay=self.decay,
            loss_scale=None if scale is None else scale.scale,
            good_steps=0 if scale is None else scale.good_steps,
            micro_batch_tokens=self.steps.micro_batch_tokens,
            evaluations=tuple(self.dev.evaluations),
            best=self.dev.best,
            best_step=self.dev.best_step,
            without_gain=self.dev.without_gain,
            texts=self.texts,
            training_seconds=self.training_seconds,
            oom_retries=self.log.oom_retries,
            finished=finished,
            identity=self.survival.identity,
        )

    def _resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        restore(checkpoint, self.model, self.update)
        state = TrainState.from_json(checkpoint.state)
        self.step = self.monitor.step = state.step
        self.decay, self.texts = state.decay, state.texts
        self.training_seconds, self.log.oom_retries = state.training_seconds, state.oom_retries
        self.dev.evaluations = [dict(each) for each in state.evaluations]
        self.dev.best, self.dev.best_step = state.best, state.best_step
        self.dev.without_gain = state.without_gain
        # Smaller where memory had ended; what the user says now may be smaller still.
        self.steps.micro_batch_tokens = min(self.steps.micro_batch_tokens, state.micro_batch_tokens)
        if self.steps.loss_scale is not None and state.loss_scale is not None:
            self.steps.loss_scale = LossScale(state.loss_scale, state.good_steps)
        self.checkpoints.begin(self.step)
        self.say(
            _("Going on after step {step} of {all}.").format(step=self.step, all=self.num_steps)
        )

    def _interrupted(self) -> Interrupted:
        """Save what there is, between two steps, and say how to go on."""
        self.update.clear()  # of a step half done
        self.log.read()
        saved = None
        if self.step:
            self.folder.sync()
            self.checkpoints.take(self._state())
            saved = self.checkpoints.finish()
        if saved == self.step:
            message = _(
                "Stopped after step {step} of {all}; everything is saved. The same command goes "
                "on, or: bertfit train --resume {folder}"
            )
        else:
            message = _(
                "Stopped after step {step} of {all}, which is not saved. The same command goes on "
                "from the newest checkpoint, or: bertfit train --resume {folder}"
            )
        return Interrupted(
            message.format(step=self.step, all=self.num_steps, folder=self.folder.path)
        )

    def _checkpoint_layers(self) -> bool:
        """Compute every layer's activations twice, so that one window needs a fraction of them."""
        layers = len(encoder_layers(self.model))
        settings = TrainSettings(
            steps=(((1, 1),),), num_tags=len(self.tagger.scheme.tags), checkpointed_layers=layers
        )
        try:
            prepare_model(self.model, settings)
        except ConfigError:  # a model without it
            return False
        self.say(
            _(
                "One window alone did not fit: the activations of all {layers} layers are computed "
                "twice from now on. The result is the same; a step takes about a third longer."
            ).format(layers=layers)
        )
        return True

    def _rehearse(self) -> None:
        """Take the largest micro-batch's memory before step 1, and say where it had to shrink."""
        asked = self.steps.micro_batch_tokens
        if self.steps.rehearse(self.lessons.longest(self.job.batch_size)):
            self.say(
                _(
                    "Micro-batches hold {tokens} tokens, not {asked}: the largest would not fit."
                ).format(tokens=self.steps.micro_batch_tokens, asked=asked)
            )

    def _check_memory(self) -> int:
        """Refuse what cannot fit, before anything is made on the device; return the floor."""
        needed = floor_bytes(self.tagger.model, self.place.precision)
        if self.job.budget is not None:
            check_floor(self.job.budget, needed, self.place.context_bytes)
        held = sum(p.numel() * p.element_size() for p in self.tagger.model.parameters())
        # On a card the host holds the model once more while it is saved.
        check_host(held if self.place.device.type == "cuda" else needed - held)
        return needed

    def _explain(self, step: int, examples: Sequence[int]) -> None:
        """Raise what is known about a step that was not finite; the weights are as before it."""
        chosen = self.lessons.of(examples)
        found = find_nonfinite(
            self.model,
            chosen,
            self.tagger.tokenizer.pad_id,
            device=self.place.device,
            precision=self.place.precision,
        )
        if found is None:
            raise ModelError(
                _(
                    "Step {step}: the gradient is not finite, though every text alone gives a "
                    "finite loss. The update was not made. Try a lower --learning-rate, a longer "
                    "--warmup-steps, or --precision fp32."
                ).format(step=step)
            )
        example = self.corpus.train[chosen[found[0]].index]
        raise ModelError(
            _(
                "Step {step}: the loss is not finite. It begins in {layer}, on the text of "
                "{source}. The update was not made. Look at that text, try a lower "
                "--learning-rate, or --precision fp32."
            ).format(step=step, layer=found[1], source=example.source or example.id)
        )


def default_learning_rate(model: nn.Module) -> float:
    """Return 5e-5 for a width of 768, ten times that for half the width, up to 1e-3.

    BERT's paper tunes 2e-5 to 5e-5 for width 768; an encoder of width 384 had 0.709 F1
    on CLUENER at 5e-4 (`docs/recipe.md`). Through these two points the rate follows a power of the
    width; other rates and widths were not tried.
    """
    width = int(model.config.hidden_size)  # type: ignore[union-attr, arg-type]
    return float(min(1e-3, 5e-5 * 10 ** math.log2(768 / width)))
