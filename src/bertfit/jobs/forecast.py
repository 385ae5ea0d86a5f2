"""What a run will hold of its card, before its first step."""

from collections.abc import Iterable, Sequence
from itertools import chain, islice

from tqdm.auto import tqdm

from bertfit.engine.recovery import Steps
from bertfit.engine.workplace import Workplace
from bertfit.errors import ModelError
from bertfit.jobs.corpus import Say
from bertfit.jobs.lessons import Lessons
from bertfit.language import _

# E5-small on CLUENER: the peak of 240 steps is that of the first 60.
FORECAST_STEPS = 60


def forecast(
    place: Workplace,
    steps: Steps,
    lessons: Lessons,
    order: Iterable[Sequence[int]],
    batch_size: int,
    say: Say,
    progress: bool,
) -> int | None:
    """Say what a run will need of its card, context and margin counted; None where it is unknown.

    The longest windows and the first steps are counted in the card's allocator, cut as they will
    be. Their order matters: blocks of many sizes fit into each other worse than those of one, and
    a job holds up to a tenth more than its largest step alone.

    Args:
        place: the card.
        steps: cuts them.
        lessons: their windows.
        order: the texts of every step, in order.
        batch_size: texts of a step.
        say: told why nothing is known.
        progress: show a progress bar.
    """
    longest = lessons.longest(batch_size)
    ahead = [longest, *map(lessons.of, islice(order, FORECAST_STEPS))]
    bar = tqdm(ahead, disable=not progress, leave=False, desc=_("predicting memory"))
    try:
        return place.forecast(chain([steps.trial(longest)], map(steps.batches, bar)))
    except ModelError as error:  # an operation whose memory is not known
        say(_("No prediction of the memory: {reason}").format(reason=error))
        return None
