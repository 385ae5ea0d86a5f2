"""Train a tagger: from files to a run folder, top to bottom.

What a run holds in memory is made in `train_memory`, what it leaves on the disk in `train_saving`.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bertfit.config import JobConfig
from bertfit.data.batches import steps_of_epoch
from bertfit.engine.fence import fence
from bertfit.engine.oom import ended_in_words
from bertfit.engine.optim import Schedule, UpdateBroken
from bertfit.engine.recovery import Steps
from bertfit.engine.workplace import Workplace
from bertfit.errors import BudgetError
from bertfit.jobs.checkpoints import CheckpointStore
from bertfit.jobs.corpus import Corpus, Say, read_corpus
from bertfit.jobs.dev_scores import DevScores, one_line, score_of
from bertfit.jobs.early_refusal import refuse_early
from bertfit.jobs.forecast import forecast
from bertfit.jobs.lessons import Lessons, make_lessons
from bertfit.jobs.number_format import in_format_of_training
from bertfit.jobs.predict import Predictor
from bertfit.jobs.preemption import Preemption, try_command
from bertfit.jobs.resume import identity_of
from bertfit.jobs.run_folder import RunFolder, default_folder
from bertfit.jobs.run_status import RunLock, RunRecord, was_announced
from bertfit.jobs.runs import register
from bertfit.jobs.starting_point import TINY, starting_tagger
from bertfit.jobs.step_log import PendingStep, StepLog, refused_step
from bertfit.jobs.stopping import Stopped
from bertfit.jobs.survival import StopRequests, Survival, find_checkpoint, stop_at_once
from bertfit.jobs.timing import settle_by_clock
from bertfit.jobs.trade_offs import cut_to_data, say_trade_offs
from bertfit.jobs.train_memory import make_steps, rehearse
from bertfit.jobs.train_plan import settle
from bertfit.jobs.train_saving import Progress, Saving
from bertfit.language import _
from bertfit.memory.monitor import Monitor
from bertfit.models.hub import find_model
from bertfit.models.rows import RowEmbedding, keep_rows
from bertfit.models.tagger import Tagger
from bertfit.planning.workplace import workplace_of
from bertfit.types import Batch, Scores


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
    with ended_in_words(), ExitStack() as stack:
        stack.enter_context(stop_at_once())  # until there is something to save
        # Started in the background: whatever goes wrong from here on is looked for in the folder.
        early = _take_folder(stack, output, job) if was_announced(output) else None
        if job.model != TINY:
            # A wrong name and a hopeless budget show before the data are read.
            refuse_early(job, place, find_model(job.model))
        if job.preemption_command is not None:
            try_command(job.preemption_command)
        say_trade_offs(job, say)
        corpus = read_corpus(job, say)
        torch.manual_seed(job.seed)
        tagger = starting_tagger(job, corpus, say)
        kind = str(tagger.model.config.model_type)  # type: ignore[union-attr]
        job, place = in_format_of_training(job, place, kind, say)
        identity = identity_of(job, corpus, tagger.model)
        record, goes_on = early or _take_folder(stack, output, job)
        store = CheckpointStore(output / "checkpoints")
        survival = Survival(
            record=record,
            stops=StopRequests(
                record, Preemption(job.preemption_file, job.preemption_command, say)
            ),
            store=store,
            identity=identity,
            checkpoint=find_checkpoint(store, identity, job.overwrite, say) if goes_on else None,
        )
        name = register(output)
        stack.enter_context(fence(place.device, job.budget, place.context_bytes))
        lessons = make_lessons(corpus, tagger, job.model, say)
        tagger, lessons = cut_to_data(job, corpus, tagger, lessons, say)
        rows = keep_rows(tagger.model, lessons.piece_ids(tagger))
        # Settings are decided here: texts and model are known, nothing is on the device yet.
        settled = settle(job, place, tagger, lessons, say)
        place = workplace_of(job, settled.settings)
        steps = make_steps(job, tagger, place, survival.stops, say, settled=settled)
        # A run that cannot be made takes no older one's place.
        run = stack.enter_context(RunFolder.open(output, job, survival.step))
        record.begin()
        if settled.plan is not None:
            run.write_plan(asdict(settled.plan))
        if len(settled.timed) > 1 and not cuts:
            first = steps_of_epoch(len(corpus.train), job.batch_size, job.seed, 0)[0]
            settle_by_clock(steps, settled.timed, lessons.of(first), say)
        return _Training(
            job=job,
            corpus=corpus,
            lessons=lessons,
            tagger=tagger,
            rows=rows,
            place=place,
            steps=steps,
            folder=run,
            name=name,
            survival=survival,
            progress=progress,
            say=say,
            cuts=cuts,
        ).run()


def _take_folder(stack: ExitStack, output: Path, job: JobConfig) -> tuple[RunRecord, bool]:
    """Keep others out of the run folder; return its record, and whether the run goes on.

    Another process may have worked there since the first look, so what holds is looked at again,
    before anything is written.
    """
    lock = RunLock(output)
    try:
        goes_on = RunFolder.check(output, job)
    except BaseException:
        lock.release()
        raise
    return stack.enter_context(RunRecord(output, lock)), goes_on


def _say(message: str) -> None:
    tqdm.write(message, file=sys.stderr)


@dataclass(kw_only=True)
class _Training:
    """The loop of one run: steps, evaluations, and when what is saved."""

    job: JobConfig
    corpus: Corpus
    lessons: Lessons
    tagger: Tagger
    rows: RowEmbedding
    place: Workplace
    steps: Steps
    folder: RunFolder
    name: str
    survival: Survival
    progress: bool
    say: Say
    cuts: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        job = self.job
        self.num_steps = -(-len(self.corpus.train) // job.batch_size) * job.num_train_epochs
        self.schedule = Schedule(num_steps=self.num_steps, warmup_steps=job.warmup_steps)
        if job.warmup_steps >= max(1, self.num_steps):
            self.say(
                _(
                    "--warmup-steps {warmup:g}: the run has {steps} steps, so the learning rate "
                    "never gets to its peak."
                ).format(warmup=job.warmup_steps, steps=self.num_steps)
            )
        self.monitor = Monitor(self.place.gauge, self.folder.add_sample, self.say)
        self.log = StepLog(self.folder, self._explain)
        self.dev = DevScores(self.corpus, self.lessons, job.early_stopping_patience, self.progress)
        self.at = Progress()
        self.warned = False  # of steps that cannot be written
        self.saving = Saving(
            self.folder,
            self.tagger,
            self.rows,
            self.steps,
            self.dev,
            self.log,
            self.at,
            self.survival,
            name=self.name,
            num_steps=self.num_steps,
            save_every=job.save_every,
            say=self.say,
        )
        if self.survival.checkpoint is not None:
            self.saving.go_on_from(self.survival.checkpoint)
            self.monitor.step = self.at.step

    def run(self) -> TrainReport:
        """Train to the end, or until early stopping; keep the best model.

        Raises:
            Interrupted: a stop was asked for; the run is saved.
        """
        started = time.perf_counter()
        self.steps.model.train()
        try:
            with self.survival.stops.listening():
                self._run_epochs()
        except Stopped:
            self._tell_progress()
            raise self.saving.interrupted(self.survival.stops.cause) from None
        except Exception:
            # The next run in this process may be of the same folder.
            self.saving.checkpoints.finish()
            raise
        self.saving.checkpoints.finish()
        self.folder.check_model(self.dev.best_step or self.at.step)
        return TrainReport(
            output_dir=self.folder.path,
            scores=self.dev.best,
            best_step=self.dev.best_step,
            steps=self.at.step,
            seconds=time.perf_counter() - started,
            sentences_per_second=self.at.texts / max(self.at.training_seconds, 1e-9),
            oom_retries=self.log.oom_retries,
        )

    def _run_epochs(self) -> None:
        with (
            self.monitor,
            tqdm(
                total=self.num_steps,
                initial=self.at.step,
                disable=not self.progress,
                dynamic_ncols=True,
                unit=_("step"),
                desc=_("training"),
            ) as bar,
        ):
            if self.place.is_card:
                self._measure_up()
            for epoch in range(self.job.num_train_epochs):
                if self._run_epoch(epoch, bar):
                    break
            if not self.lessons.dev:
                self.saving.save_model()
            if self.saving.checkpoints.are_wanted:
                self._read_log(bar)
                self.saving.take_checkpoint(finished=True)

    def _measure_up(self) -> None:
        """Take the largest micro-batch's memory, and predict what the run will take."""
        job, num_texts = self.job, len(self.corpus.train)
        rehearse(self.steps, self.lessons, job.batch_size, self.say)
        epochs = (
            steps_of_epoch(num_texts, job.batch_size, job.seed, epoch)
            for epoch in range(job.num_train_epochs)
        )
        order = chain.from_iterable(epochs)
        self.monitor.predicted_bytes = forecast(
            self.place, self.steps, self.lessons, order, job.batch_size, self.say, self.progress
        )

    def _run_epoch(self, epoch: int, bar: "tqdm[NoReturn]") -> bool:
        """Run one epoch; True when training should stop early."""
        steps = steps_of_epoch(len(self.corpus.train), self.job.batch_size, self.job.seed, epoch)
        if self.at.step <= epoch * len(steps):
            self.steps.regrow()
        for number, examples in enumerate(steps, 1):
            at = epoch * len(steps) + number
            if at < self.at.step:
                continue  # made before the run was gone on with
            if at > self.at.step:
                self._run_step(epoch + number / len(steps), examples)
                bar.update()
                if self.at.step % self.job.logging_steps == 0:
                    self._read_log(bar)
            # At the end in any case: the model that is kept is one that was scored.
            if at % (self.job.eval_steps or len(steps)) == 0 or at == self.num_steps:
                self._read_log(bar)
                if self.lessons.dev and self._evaluate(epoch + 1, bar):
                    return True
            if self.saving.checkpoints.due(self.at.step):
                self._take_checkpoint(bar)
        self._read_log(bar)
        return False

    def _run_step(self, epoch: float, examples: list[int]) -> None:
        started = time.perf_counter()
        rate = self.steps.update.set_rate(self.schedule.factor(self.at.step))
        cuts = self.cuts[self.at.step] if self.at.step < len(self.cuts) else None
        try:
            done = self.steps.run(self.at.step, self.lessons.of(examples), cuts)
        except BudgetError as error:
            raise BudgetError(f"{error} {self.dev.saved(self.folder.model)}") from None
        except UpdateBroken as error:
            raise BudgetError(
                _(
                    "Step {step}: memory ended while the weights were changed ({reason}), so they "
                    "are not to be used and the run stops. {saved}"
                ).format(
                    step=self.at.step + 1, reason=error, saved=self.dev.saved(self.folder.model)
                )
            ) from None
        if done.num_labelled and self.rows.weight.requires_grad:
            self.at.decay *= 1 - rate * self.job.weight_decay
        self.at.step += 1
        self.monitor.step = self.at.step
        if done.oom_retries:
            self.say(
                _(
                    "Step {step}: memory ended {count} times; the step was run again, whole, in "
                    "{parts} micro-batches."
                ).format(step=self.at.step, count=done.oom_retries, parts=len(done.cuts))
            )
        seconds = time.perf_counter() - started
        self.at.training_seconds += seconds
        self.at.texts += len(examples)
        self.log.add(
            PendingStep(
                step=self.at.step,
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
        self._warn_of_full_disk()
        self._tell_progress()
        if not facts:
            return
        if self.place.is_card:
            facts[_("memory")] = self.monitor.in_short()
        if self.dev.best is not None:
            facts["F1"] = f"{score_of(self.dev.best):.3f}"
        bar.set_postfix(facts)

    def _warn_of_full_disk(self) -> None:
        refused = self.folder.refused
        if refused is not None and not self.warned:
            self.say(
                _(
                    "Warning: the steps cannot be written to {folder} ({reason}). Training goes "
                    "on; they are kept, and written as soon as there is room."
                ).format(folder=self.folder.path, reason=refused.strerror)
            )
        self.warned = refused is not None

    def _tell_progress(self) -> None:
        self.survival.record.progress(
            self.at.step,
            self.num_steps,
            self.at.training_seconds / max(1, self.at.step),
            None if self.dev.best is None else score_of(self.dev.best),
        )

    def _evaluate(self, epoch: int, bar: "tqdm[NoReturn]") -> bool:
        """Score the dev data, keep the model if it is the best; True when patience is over."""
        if self.dev.evaluations and self.dev.evaluations[-1]["step"] == self.at.step:
            return self.dev.patience_is_over  # scored before the run was gone on with
        self.steps.update.clear()  # gradients are of no use now, and scoring needs room
        predictor = Predictor(
            self.tagger,
            device=self.place.device,
            precision=self.place.precision,
            in_training=True,
        )
        forward = predictor.forward

        def checked(batch: Batch) -> Tensor:
            self.survival.stops.check()
            return forward(batch)

        predictor.forward = checked
        scores = self.dev.score(predictor, self.place.gauge)
        self.steps.model.train()
        better = self.dev.add(scores, self.at.step, epoch)
        if better:
            self.saving.save_model()
        self.dev.write(self.folder)
        self.say(
            _("epoch {epoch}, step {step}: dev {scores}{mark}").format(
                epoch=epoch, step=self.at.step, scores=one_line(scores), mark=" *" if better else ""
            )
        )
        if better and self.saving.checkpoints.are_wanted:
            self._take_checkpoint(bar)
        if self.dev.patience_is_over:
            self.say(
                _("No better score in {count} evaluations: stopping early.").format(
                    count=self.job.early_stopping_patience
                )
            )
        return self.dev.patience_is_over

    def _take_checkpoint(self, bar: "tqdm[NoReturn]") -> None:
        self._read_log(bar)
        self.saving.take_checkpoint()

    def _explain(self, step: int, examples: Sequence[int]) -> NoReturn:
        raise refused_step(self.steps, step, self.lessons.of(examples), self.corpus.train)
