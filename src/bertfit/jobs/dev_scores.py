"""Scores on the dev data in the course of a run: which model is the best, and when to stop."""

from pathlib import Path

from tqdm.auto import tqdm

from bertfit.data.scores import Scorer
from bertfit.data.windows import merge
from bertfit.engine.oom import Card, Done, attempt, first_line
from bertfit.errors import BudgetError
from bertfit.jobs.corpus import Corpus
from bertfit.jobs.lessons import Lessons
from bertfit.jobs.predict import Predictor
from bertfit.jobs.run_folder import RunFolder
from bertfit.language import _
from bertfit.types import Scores


class DevScores:
    """Every evaluation of a run so far, and the best.

    Args:
        corpus: holds the dev texts.
        lessons: holds their windows.
        patience: stop after that many evaluations without a better score; None never does.
        progress: show a progress bar.

    Attributes:
        best: scores of the best evaluation.
        best_step: its step.
        evaluations: all of them in short, as `scores.json` has them.
        without_gain: how many there were since the best.
    """

    def __init__(
        self, corpus: Corpus, lessons: Lessons, patience: int | None, progress: bool
    ) -> None:
        self.best: Scores | None = None
        self.best_step = 0
        self._corpus, self._lessons = corpus, lessons
        self._patience, self._progress = patience, progress
        self.evaluations: list[dict[str, object]] = []
        self.without_gain = 0

    @property
    def patience_is_over(self) -> bool:
        """Whether the last evaluations brought no better score for too long."""
        return self._patience is not None and self.without_gain >= self._patience

    def score(self, predictor: Predictor, card: Card) -> Scores:
        """Score the dev data; where memory ends, again with smaller batches.

        Raises:
            BudgetError: even a batch of one window does not fit.
        """
        longest = max(len(window.input_ids) for window in self._lessons.dev)
        while True:
            done = attempt(lambda: self._score(predictor), card)
            if isinstance(done, Done):
                return done.value
            if predictor.batch_tokens <= longest:
                raise BudgetError(
                    _(
                        "Scoring the dev data: one window of {length} tokens does not fit "
                        "({reason}). Say a smaller --max-length, or give a larger --budget."
                    ).format(length=longest, reason=first_line(done.message))
                )
            predictor.batch_tokens //= 2

    def _score(self, predictor: Predictor) -> Scores:
        scorer = Scorer(self._corpus.task)
        with tqdm(
            self._lessons.dev,
            disable=not self._progress,
            leave=False,
            dynamic_ncols=True,
            desc=_("evaluating"),
        ) as shown:
            found = merge(
                predictor.tag(iter(shown)), predictor.scheme, num_examples=len(self._corpus.dev)
            )
            for example, entities in zip(self._corpus.dev, found, strict=True):
                scorer.add(example.entities or (), entities)
        return scorer.scores()

    def add(self, scores: Scores, step: int, epoch: int) -> bool:
        """Take note of an evaluation; True where it is the best so far."""
        better = self.best is None or score_of(scores) > score_of(self.best)
        if better:
            self.best, self.best_step, self.without_gain = scores, step, 0
        else:
            self.without_gain += 1
        self.evaluations.append(
            {"step": step, "epoch": epoch, "f1": score_of(scores), "best": better}
        )
        return better

    def write(self, folder: RunFolder) -> None:
        """Write `scores.json`."""
        assert self.best is not None
        folder.write_scores(self.evaluations, self.best)

    def saved(self, folder: Path) -> str:
        """Say which model a run that stops now leaves behind."""
        if self.best is None:
            return _("No model was saved yet.")
        return _("The model of step {step} is whole, in {folder}.").format(
            step=self.best_step, folder=folder
        )


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
