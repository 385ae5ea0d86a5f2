"""Score a tagger on annotated files; entities are compared as spans of the untouched text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm.auto import tqdm

from bertfit.data.formats import ProblemLog, ReadOptions
from bertfit.data.mistakes import Mistake, mistakes
from bertfit.data.pieces import count_unknown
from bertfit.data.scores import Scorer
from bertfit.errors import DataError
from bertfit.jobs.chunks import Chunk
from bertfit.jobs.corpus import Say, read_files, report_problems
from bertfit.jobs.lessons import warn_of_unknown
from bertfit.jobs.predict import Predictor
from bertfit.language import _
from bertfit.types import Scores


@dataclass(frozen=True, kw_only=True)
class EvaluateReport:
    """Scores, how many texts were left out because nobody annotated them, and the counts."""

    scores: Scores
    num_unannotated: int


def evaluate(
    predictor: Predictor,
    files: Sequence[Path],
    options: ReadOptions,
    *,
    progress: bool,
    say: Say,
    on_mistake: Callable[[Mistake], None] | None = None,
) -> EvaluateReport:
    """Score a predictor on files.

    Args:
        predictor: from `load`.
        files: annotated data.
        options: how to read them.
        progress: show a progress bar.
        say: told about repairs and what was left out.
        on_mistake: told every mistake, with its context.

    Raises:
        DataError: nothing in the files is annotated.
    """
    log = ProblemLog()
    scorer = Scorer(predictor.tagger.task)
    unannotated = annotated = unknown = tokens = 0

    def count(chunk: Chunk) -> None:
        nonlocal unknown, tokens
        more = count_unknown(chunk.windows, predictor.tokenizer)
        unknown, tokens = unknown + more[0], tokens + more[1]

    with tqdm(
        predictor.annotate(read_files(files, options, log), count),
        disable=not progress,
        dynamic_ncols=True,
        unit=_("text"),
        desc=_("evaluating"),
    ) as bar:
        for example, found in bar:
            if example.entities is None:
                unannotated += 1
                continue
            annotated += 1
            scorer.add(example.entities, found)
            if on_mistake is not None:
                for mistake in mistakes(example, found):
                    on_mistake(mistake)
    report_problems(log, say)
    warn_of_unknown(unknown / max(1, tokens), say)
    if not annotated:
        raise DataError(
            _("{files}: holds no annotated text, so there is nothing to compare with.").format(
                files=", ".join(map(str, files))
            )
        )
    if unannotated:
        say(_("{count} texts are not annotated and are left out.").format(count=unannotated))
    return EvaluateReport(scores=scorer.scores(), num_unannotated=unannotated)
