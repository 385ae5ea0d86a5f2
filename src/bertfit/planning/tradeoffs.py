"""Trade-offs: what saves memory and may cost quality, so only with the user's word (law 10).

One catalogue: what each does, what it saves, what was published of its price, and the levers that
it means. What is allowed is made, whether or not it is needed: so the budget never changes the
result (law 2).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bertfit.config import OptimizerName, TradeOff
from bertfit.language import N_, _
from bertfit.models.lora import DEFAULT_RANK
from bertfit.planning.levers import TrainSettings

DEFAULT_SHORT_WINDOW = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOffEntry:
    """One trade-off; its texts are marked for translation, and shown with `_`.

    Attributes:
        name: as `--allow` takes it; `smaller-model` is only a suggestion.
        what: what is done.
        memory: what it saves, by which the estimator counts it.
        price: what was published, or measured here, of its cost in quality.
        source: of the price.
    """

    name: str
    what: str
    memory: str
    price: str
    source: str


CATALOGUE: tuple[TradeOffEntry, ...] = (
    TradeOffEntry(
        name="bf16-moments",
        what=N_("AdamW keeps its two moments in bfloat16"),
        memory=N_("4 bytes less for each trained weight"),
        price=N_("none that was observable in pretraining; fine-tuning is to be checked"),
        source="https://arxiv.org/abs/2412.19437, "
        "https://github.com/pytorch/torchtitan/blob/main/docs/bf16_optimizer_states.md",
    ),
    TradeOffEntry(
        name="8bit-adamw",
        what=N_("AdamW keeps its two moments in 8 bits, with one scale for 256 numbers"),
        memory=N_("5.97 bytes less for each trained weight"),
        price=N_("GLUE as with 32 bits"),
        source="https://arxiv.org/abs/2110.02861",
    ),
    TradeOffEntry(
        name="adafactor",
        what=N_("Adafactor in place of AdamW: one number for each row and column, no momentum"),
        memory=N_("8 bytes less for each trained weight"),
        price=N_("translation comparable to Adam; for tagging nothing was found"),
        source="https://arxiv.org/abs/1804.04235",
    ),
    TradeOffEntry(
        name="frozen-embeddings",
        what=N_("the embeddings are not trained"),
        memory=N_("12 bytes less for each weight of the rows that occur"),
        price=N_("nothing was found for this alone; see frozen-layers"),
        source="https://arxiv.org/abs/1911.03090",
    ),
    TradeOffEntry(
        name="frozen-layers",
        what=N_("embeddings and the first layers are not trained, a third unless a number is said"),
        memory=N_("12 bytes less for each weight of theirs, and none of their activations"),
        price=N_("training only the last quarter of the layers keeps 90% of the quality (GLUE)"),
        source="https://arxiv.org/abs/1911.03090",
    ),
    TradeOffEntry(
        name="lora",
        what=N_(
            "the encoder stays as it is, small matrices beside it are trained, of rank 8 unless a "
            "number is said"
        ),
        memory=N_("12 bytes less for nearly each weight of the encoder"),
        price=N_("GLUE on a par with training all; needs a higher learning rate"),
        source="https://arxiv.org/abs/2106.09685",
    ),
    TradeOffEntry(
        name="first-layers",
        what=N_("only the first layers are kept, half of them unless a number is said"),
        memory=N_("16 bytes less for each weight of the others, and none of their activations"),
        price=N_("up to 98% of GLUE is kept without 40% of the layers"),
        source="https://arxiv.org/abs/2004.03844",
    ),
    TradeOffEntry(
        name="cut-vocabulary",
        what=N_("pieces that do not occur are dropped, single characters kept"),
        memory=N_("nothing while training, for only the rows that occur are on the card; the saved "
                  "model loses 4 bytes for each number of the other rows"),
        price=N_("none on text of the kept pieces; other text is read in smaller pieces"),
        source="https://arxiv.org/abs/2305.15020",
    ),
    TradeOffEntry(
        name="shorter-windows",
        what=N_("texts are read in windows of 128 tokens unless a number is said"),
        memory=N_("the smallest micro-batch shrinks with the window"),
        price=N_("context beyond a window is not seen; document context helps tagging"),
        source="https://arxiv.org/abs/2011.06993",
    ),
    TradeOffEntry(
        name="smaller-model",
        what=N_("another model of the same language, chosen with --model"),
        memory=N_("16 bytes less for each weight that it lacks"),
        price=N_("published scores stand in the catalogue of models"),
        source="docs/models.md",
    ),
)  # fmt: skip

_OPTIMIZERS: Mapping[TradeOff, OptimizerName] = {
    "bf16-moments": "adamw-bf16",
    "8bit-adamw": "adamw-8bit",
    "adafactor": "adafactor",
}


def entry(name: str) -> TradeOffEntry:
    """Return the row of the catalogue with a name."""
    return next(row for row in CATALOGUE if row.name == name)


def with_trade_offs(
    settings: TrainSettings, trade_offs: Mapping[TradeOff, int | None], num_layers: int
) -> TrainSettings:
    """Return the levers of a job with those that trade-offs mean.

    Shorter windows and a cut vocabulary are no levers: they change the shapes and the model.

    Args:
        settings: without them.
        trade_offs: names with their numbers, as `JobConfig.trade_offs` has them.
        num_layers: of the whole encoder.
    """
    first = layers_kept(trade_offs, num_layers)
    for name, number in trade_offs.items():
        if name in _OPTIMIZERS:
            settings = replace(settings, optimizer=_OPTIMIZERS[name])
        elif name == "lora":
            settings = replace(settings, lora_rank=number or DEFAULT_RANK)
        elif name == "frozen-embeddings":
            settings = replace(settings, frozen_embeddings=True)
        elif name == "frozen-layers":
            settings = replace(
                settings,
                frozen_embeddings=True,
                frozen_layers=number or -(-(first or num_layers) // 3),
            )
        elif name == "first-layers":
            settings = replace(settings, first_layers=first)
    return settings


def layers_kept(trade_offs: Mapping[TradeOff, int | None], num_layers: int) -> int | None:
    """Return how many of the encoder's layers are kept; None keeps all."""
    if "first-layers" not in trade_offs:
        return None
    return trade_offs["first-layers"] or -(-num_layers // 2)


def window_limit(trade_offs: Mapping[TradeOff, int | None]) -> int | None:
    """Return the tokens of a window that trade-offs say; None where they say nothing."""
    if "shorter-windows" not in trade_offs:
        return None
    return trade_offs["shorter-windows"] or DEFAULT_SHORT_WINDOW


def in_words(trade_offs: Mapping[TradeOff, int | None]) -> list[str]:
    """Return one line for each trade-off that is made, for the output of a run."""
    return [
        _("Allowed, and made: {name} ({what}). Published cost: {price}, {source}").format(
            name=name if number is None else f"{name}={number}",
            what=_(entry(name).what),
            price=_(entry(name).price),
            source=entry(name).source,
        )
        for name, number in trade_offs.items()
    ]
