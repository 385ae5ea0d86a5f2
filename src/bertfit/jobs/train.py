"""Train a tagger: from files to a run folder, top to bottom."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from torch import nn
from tqdm.auto import tqdm

from bertfit.config import JobConfig, Precision
from bertfit.data.batches import cut, pad, steps_of_epoch
from bertfit.data.formats import ProblemLog
from bertfit.data.pieces import TextTokenizer, unknown_share
from bertfit.data.scores import Scorer
from bertfit.data.windows import merge, windows
from bertfit.engine.device import choose_device, seed_step
from bertfit.engine.nonfinite import find_nonfinite
from bertfit.engine.optim import Schedule, Update, parameter_groups
from bertfit.engine.precision import LossScale, choose_precision
from bertfit.engine.step import StepResult, train_step
from bertfit.errors import ModelError
from bertfit.jobs.corpus import Corpus, Say, read_corpus, report_problems
from bertfit.jobs.predict import Predictor, text_tokenizer
from bertfit.jobs.run_folder import RunFolder, default_folder
from bertfit.jobs.starting_point import TINY, starting_tagger
from bertfit.language import _
from bertfit.models.encoder import find_model, head_parameters
from bertfit.models.rows import RowEmbedding, keep_rows, whole_embedding
from bertfit.models.tagger import Tagger, save_tagger
from bertfit.types import Example, Scores, StepRecord, Window

UNKNOWN_WARN = 0.01
UNKNOWN_REFUSE = 0.30
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
    """

    output_dir: Path
    scores: Scores | None
    best_step: int
    steps: int
    seconds: float
    sentences_per_second: float


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A step whose numbers the host has not read yet."""

    step: int
    epoch: float
    examples: list[int]
    learning_rate: float
    result: StepResult
    cuts: tuple[int, ...]
    num_tokens: int
    seconds: float


def train(job: JobConfig, *, progress: bool = True, say: Say | None = None) -> TrainReport:
    """Run one training job and leave a run folder.

    Args:
        job: what is asked.
        progress: show progress bars on stderr.
        say: told what the user should know; None writes to stderr.

    Raises:
        BertfitError: see `bertfit.errors`.
    """
    say = say or _say
    device = choose_device(job.device)
    precision = choose_precision(job.precision, device)
    output = job.output_dir or default_folder(job)
    RunFolder.check(output, job)
    if job.model != TINY:
        find_model(job.model)  # a wrong name shows before the data are read
    corpus = read_corpus(job, say)
    torch.manual_seed(job.seed)
    tagger = starting_tagger(job, corpus, say)
    with RunFolder.create(output, job) as run:
        return _Training(job, corpus, tagger, device, precision, run, progress, say).run()


def _say(message: str) -> None:
    tqdm.write(message, file=sys.stderr)


class _Training:
    """The state of one run: model, optimizer, schedule, and the best score so far."""

    def __init__(
        self,
        job: JobConfig,
        corpus: Corpus,
        tagger: Tagger,
        device: torch.device,
        precision: Precision,
        run: RunFolder,
        progress: bool,
        say: Say,
    ) -> None:
        self.job, self.corpus, self.tagger, self.device = job, corpus, tagger, device
        self.precision, self.folder, self.progress, self.say = precision, run, progress, say
        tokenizer = text_tokenizer(tagger.tokenizer)
        self.train_windows = self._by_example(corpus.train, tokenizer)
        self.dev_windows = list(self._windows(corpus.dev, tokenizer, None))
        self._check_unknown(tokenizer)
        self.rows = self._keep_rows()
        self.model = tagger.model.to(device)
        head = [parameter for __, parameter in head_parameters(self.model)]
        self.update = Update(
            parameter_groups(
                self.model,
                head,
                learning_rate=job.learning_rate or default_learning_rate(self.model),
                head_learning_rate=job.head_learning_rate or HEAD_LEARNING_RATE,
                weight_decay=job.weight_decay,
            ),
            max_grad_norm=job.max_grad_norm,
        )
        self.steps_per_epoch = -(-len(corpus.train) // job.batch_size)
        self.num_steps = self.steps_per_epoch * job.num_train_epochs
        self.schedule = Schedule(num_steps=self.num_steps, warmup_steps=job.warmup_steps)
        self.loss_scale = LossScale() if precision == "fp16" else None
        self.micro_batch_tokens = job.micro_batch_tokens or (
            CPU_MICRO_BATCH_TOKENS if device.type == "cpu" else CARD_MICRO_BATCH_TOKENS
        )
        self.step = 0
        self.decay = 1.0  # of the embedding rows that are not trained
        self.training_seconds = 0.0
        self.texts = 0
        self.pending: list[_Pending] = []
        self.best: Scores | None = None
        self.best_step = 0
        self.evaluations: list[dict[str, object]] = []
        self.without_gain = 0

    def run(self) -> TrainReport:
        """Train to the end, or until early stopping; keep the best model."""
        started = time.perf_counter()
        self.model.train()
        with tqdm(
            total=self.num_steps,
            disable=not self.progress,
            dynamic_ncols=True,
            unit=_("step"),
            desc=_("training"),
        ) as bar:
            for epoch in range(self.job.num_train_epochs):
                if self._run_epoch(epoch, bar):
                    break
        if not self.dev_windows:
            self._save()
        return TrainReport(
            output_dir=self.folder.path,
            scores=self.best,
            best_step=self.best_step,
            steps=self.step,
            seconds=time.perf_counter() - started,
            sentences_per_second=self.texts / max(self.training_seconds, 1e-9),
        )

    def _run_epoch(self, epoch: int, bar: "tqdm[NoReturn]") -> bool:
        """Run one epoch; True when training should stop early."""
        steps = steps_of_epoch(len(self.corpus.train), self.job.batch_size, self.job.seed, epoch)
        for number, examples in enumerate(steps):
            self._run_step(epoch + (number + 1) / len(steps), examples)
            bar.update()
            if self.step % self.job.logging_steps == 0:
                self._read_pending(bar)
            last = number + 1 == len(steps)
            due = self.job.eval_steps and self.step % self.job.eval_steps == 0
            if due or (last and not self.job.eval_steps):
                self._read_pending(bar)
                if self.dev_windows and self._evaluate(epoch + 1, bar):
                    return True
        self._read_pending(bar)
        return False

    def _run_step(self, epoch: float, examples: list[int]) -> None:
        started = time.perf_counter()
        chosen = [window for i in examples for window in self.train_windows[i]]
        cuts = cut(chosen, self.micro_batch_tokens)
        batches = [pad(part, self.tagger.tokenizer.pad_id) for part in cuts]
        factor = self.schedule.factor(self.step)
        rate = self.update.set_rate(factor)
        while True:
            seed_step(self.job.seed, self.step)
            result = train_step(
                self.model,
                self.update,
                batches,
                device=self.device,
                precision=self.precision,
                loss_scale=self.loss_scale.scale if self.loss_scale else 1.0,
            )
            # fp16 alone asks the card once a step: a refused step is run again before the next.
            if self.loss_scale is None or not bool(result.refused):
                break
            if not self.loss_scale.refuse():
                self._explain(self.step + 1, examples)
        if self.loss_scale is not None:
            self.loss_scale.accept()
        if any(batch.num_labelled for batch in batches):
            self.decay *= 1 - rate * self.job.weight_decay
        self.step += 1
        seconds = time.perf_counter() - started
        self.training_seconds += seconds
        self.texts += len(examples)
        self.pending.append(
            _Pending(
                step=self.step,
                epoch=epoch,
                examples=examples,
                learning_rate=rate,
                result=result,
                cuts=tuple(len(part) for part in cuts),
                num_tokens=sum(batch.num_tokens for batch in batches),
                seconds=seconds,
            )
        )

    def _read_pending(self, bar: "tqdm[NoReturn]") -> None:
        """Read the numbers of the steps since the last time, in one transfer (law 8)."""
        if not self.pending:
            return
        results = [step.result for step in self.pending]
        numbers = torch.stack([torch.stack([r.loss, r.grad_norm, r.refused]) for r in results])
        pending, self.pending = self.pending, []
        rows = numbers.cpu().tolist()
        for step, (__, __, refused) in zip(pending, rows, strict=True):
            if refused:
                self._explain(step.step, step.examples)
        self.folder.add_steps(
            [
                StepRecord(
                    step=step.step,
                    epoch=step.epoch,
                    loss=loss,
                    learning_rate=step.learning_rate,
                    grad_norm=grad_norm,
                    tokens_per_second=step.num_tokens / step.seconds,
                    cuts=step.cuts,
                )
                for step, (loss, grad_norm, __) in zip(pending, rows, strict=True)
            ]
        )
        mean_loss = sum(row[0] for row in rows) / len(rows)
        rate = sum(s.num_tokens for s in pending) / sum(s.seconds for s in pending)
        facts = {"loss": f"{mean_loss:.3f}", _("tokens/s"): f"{rate:.0f}"}
        if self.best is not None:
            facts["F1"] = f"{score_of(self.best):.3f}"
        bar.set_postfix(facts)

    def _explain(self, step: int, examples: list[int]) -> None:
        """Raise what is known about a step that was not finite; the weights are as before it."""
        chosen = [window for i in examples for window in self.train_windows[i]]
        found = find_nonfinite(
            self.model,
            chosen,
            self.tagger.tokenizer.pad_id,
            device=self.device,
            precision=self.precision,
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

    def _evaluate(self, epoch: int, bar: "tqdm[NoReturn]") -> bool:
        """Score the dev data, keep the model if it is the best; True when patience is over."""
        predictor = Predictor(self.tagger, device=self.device, precision=self.precision)
        scorer = Scorer(self.corpus.task)
        stream: Iterator[Window] = iter(self.dev_windows)
        shown = tqdm(
            stream,
            total=len(self.dev_windows),
            disable=not self.progress,
            leave=False,
            dynamic_ncols=True,
            desc=_("evaluating"),
        )
        found = merge(
            predictor.tag(iter(shown)), self.tagger.scheme, num_examples=len(self.corpus.dev)
        )
        for example, entities in zip(self.corpus.dev, found, strict=True):
            scorer.add(example.entities or (), entities)
        shown.close()
        scores = scorer.scores()
        self.model.train()
        better = self.best is None or score_of(scores) > score_of(self.best)
        if better:
            self.best, self.best_step, self.without_gain = scores, self.step, 0
            self._save()
        else:
            self.without_gain += 1
        self.evaluations.append(
            {"step": self.step, "epoch": epoch, "f1": score_of(scores), "best": better}
        )
        assert self.best is not None
        self.folder.write_scores(self.evaluations, self.best)
        self.say(
            _("epoch {epoch}, step {step}: dev {scores}{mark}").format(
                epoch=epoch, step=self.step, scores=one_line(scores), mark=" *" if better else ""
            )
        )
        patience = self.job.early_stopping_patience
        if patience is not None and self.without_gain >= patience:
            self.say(
                _("No better score in {count} evaluations: stopping early.").format(count=patience)
            )
            return True
        return False

    def _save(self) -> None:
        with whole_embedding(self.model, self.rows, self.decay):
            save_tagger(self.tagger, self.folder.model)

    def _windows(
        self, examples: list[Example], tokenizer: TextTokenizer, log: ProblemLog | None
    ) -> Iterator[Window]:
        return windows(
            examples,
            tokenizer,
            scheme=self.tagger.scheme if log is not None else None,
            max_length=self.tagger.max_length,
            overlap=self.tagger.overlap,
            split=self.corpus.split,
            on_problem=None if log is None else log.add,
        )

    def _by_example(self, examples: list[Example], tokenizer: TextTokenizer) -> list[list[Window]]:
        log = ProblemLog()
        grouped: list[list[Window]] = [[] for __ in examples]
        for window in self._windows(examples, tokenizer, log):
            grouped[window.index].append(window)
        report_problems(log, self.say)
        return grouped

    def _all_windows(self) -> Iterator[Window]:
        for group in self.train_windows:
            yield from group
        yield from self.dev_windows

    def _check_unknown(self, tokenizer: TextTokenizer) -> None:
        share = unknown_share((w for group in self.train_windows for w in group), tokenizer)
        if share > UNKNOWN_REFUSE:
            raise ModelError(
                _(
                    "{share:.0%} of the training text is unknown to the tokenizer of {model}: it "
                    "was made for another language or script. Choose another model."
                ).format(share=share, model=self.job.model)
            )
        if share > UNKNOWN_WARN:
            self.say(
                _(
                    "Warning: {share:.1%} of the training text is unknown to the tokenizer of "
                    "{model} and looks the same to the model ([UNK])."
                ).format(share=share, model=self.job.model)
            )

    def _keep_rows(self) -> RowEmbedding:
        tokenizer = self.tagger.tokenizer
        ids = {tokenizer.pad_id, tokenizer.unk_id, *tokenizer.prefix, *tokenizer.suffix}
        for window in self._all_windows():
            ids.update(window.input_ids.tolist())
        return keep_rows(self.tagger.model, ids)


def default_learning_rate(model: nn.Module) -> float:
    """Return 5e-5 for a width of 768, more for narrower encoders, less for wider ones.

    BERT's paper tunes 2e-5 to 5e-5 for width 768; the narrow encoders measured in `docs/recipe.md`
    learn best at several times that.
    """
    width = int(model.config.hidden_size)  # type: ignore[union-attr, arg-type]
    return min(1e-3, 5e-5 * (768 / width) ** 2)


def score_of(scores: Scores) -> float:
    """Return the number that models are compared by: micro F1, or accuracy for POS."""
    return scores.micro.f1 if scores.accuracy is None else scores.accuracy


def one_line(scores: Scores) -> str:
    """Write the main scores in one line."""
    if scores.accuracy is not None:
        return _("accuracy {accuracy:.4f}").format(accuracy=scores.accuracy)
    micro = scores.micro
    return _("F1 {f1:.4f} (precision {precision:.4f}, recall {recall:.4f})").format(
        f1=micro.f1, precision=micro.precision, recall=micro.recall
    )
