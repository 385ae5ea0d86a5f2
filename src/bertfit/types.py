"""The records that travel between the floors: small, frozen, keyword-only.

Bytes and seconds are named in the field; ranges are half-open; text offsets are code points into
the text exactly as the user gave it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, dataclass_transform

import numpy as np
from numpy.typing import NDArray

Task = Literal["ner", "segmentation", "pos"]
Encoding = Literal["bio", "bioes", "none"]
Split = Literal["words", "characters"]
Category = Literal[
    "parameter",
    "gradient",
    "optimizer_state",
    "activation",
    "input",
    "temporary",
    "workspace",
]

IGNORED = -100  # torch.nn.functional.cross_entropy's ignore_index: a token that is not scored

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def _light_record(*, order: bool = False) -> Callable[[type[_T]], type[_T]]:
    """Make a record of which a file holds millions: frozen to mypy, plain slots at run time.

    A frozen dataclass is made through `object.__setattr__`, which takes three times as long: a
    third of the time of reading. So mypy alone keeps these from being changed; equality, hash,
    order, pickle and `replace` are those of a frozen one.
    """
    return dataclass(slots=True, kw_only=True, unsafe_hash=True, order=order)


@_light_record()
class Source:
    """Where a record was read: file and line (1-based; 0 where the file has no lines)."""

    path: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


@_light_record(order=True)
class Entity:
    """A labelled span: `text[start:end]` is its surface, in code points."""

    start: int
    end: int
    label: str
    score: float | None = field(default=None, compare=False)


@_light_record()
class Example:
    """One text with its annotations.

    `entities` is None where the record was not annotated (an empty tuple says: annotated, and
    there are none). `words` are the (start, end) of the words of a file that had words, else None.
    For segmentation every word is an entity labelled `W`; for POS every word is an entity labelled
    with its tag. `extra` holds whatever else the record carried.
    """

    id: str
    text: str
    entities: tuple[Entity, ...] | None = None
    words: tuple[tuple[int, int], ...] | None = None
    source: Source | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something found in the data. `severity`: an error stops, a repair was made, a note informs.

    `kind` is a stable short name such as `span-beyond-text`; `count` is how many places it stands
    for.
    """

    path: str
    line: int
    kind: str
    message: str
    severity: Literal["error", "repair", "note"] = "error"
    count: int = 1

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelScheme:
    """The tags of a model; the position of a tag is its id.

    `bio` and `bioes` hold `O` first, then the prefixed tags of every label in order; `none` (POS)
    holds the bare labels.
    """

    labels: tuple[str, ...]
    encoding: Encoding
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A run of units (words or characters) of one text that goes through the model at once.

    U units, T tokens (special tokens included).

    Attributes:
        index: Position of the example in its stream; windows of one example are neighbours.
        input_ids: (T,) int32 token ids.
        units: (U, 2) int32 start and end of every unit in the text, in code points.
        first_token: (U,) int32 position in `input_ids` of every unit's first token.
        labels: (U,) int16 tag id of every unit, or None where there is nothing to learn from;
            `IGNORED` where a unit is answered by another window.
        owned: half-open range of the units that this window answers for.
    """

    index: int
    input_ids: NDArray[np.int32]
    units: NDArray[np.int32]
    first_token: NDArray[np.int32]
    labels: NDArray[np.int16] | None
    owned: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Windows padded to one length: B windows, T tokens. Or packed: one row without padding.

    Attributes:
        input_ids: (B, T) int64.
        attention_mask: (B, T) int64, 1 for real tokens; None where all windows are of one length.
        labels: (B, T) int64 tag ids, `IGNORED` where a token is not scored; None for inference.
        num_labelled: how many labels are scored.
        num_tokens: real tokens, padding not counted.
        packed_lengths: tokens of the windows that lie one after the other in the single row of a
            packed batch, longest first; empty for a padded batch. What the row holds behind them
            is filling.
    """

    input_ids: NDArray[np.int64]
    attention_mask: NDArray[np.int64] | None
    labels: NDArray[np.int64] | None
    num_labelled: int
    num_tokens: int
    packed_lengths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthProfile:
    """How many windows there are of each length: tokens -> count."""

    histogram: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvent:
    """One request to the card's allocator, or the return of a block.

    `block` names the block from its allocation to its return; `size_bytes` is what was asked for,
    before rounding.
    """

    action: Literal["alloc", "free"]
    block: int
    size_bytes: int
    category: Category = "temporary"
    phase: str = ""
    module: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A card: measured where it is present, else from the catalogue.

    `peak_flops` is the rate of 16-bit matrix products, `fp32_flops` that of 32-bit ones.
    """

    name: str
    total_bytes: int
    context_bytes: int
    compute_capability: tuple[int, int]
    multiprocessors: int
    peak_flops: float
    memory_bandwidth: float
    bf16: bool
    price: float | None = None
    fp32_flops: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """What a job needs on the card and on the host, in bytes.

    `peak_reserved_bytes` is the best value; `required_bytes` = reserved + context + margin is what
    must be free on the card.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    context_bytes: int
    margin_bytes: int
    required_bytes: int
    host_bytes: int
    pinned_bytes: int
    by_category: Mapping[str, int]
    peak_phase: str
    peak_module: str
    timeline: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One line of `steps.jsonl`. `loss` is the mean over the labelled tokens of the whole step."""

    step: int
    epoch: float
    loss: float
    learning_rate: float
    grad_norm: float
    tokens_per_second: float
    cuts: tuple[int, ...] = ()
    peak_reserved_bytes: int = 0
    oom_retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """One line of `memory.jsonl`: what is held at one moment, in bytes.

    `allocated` and `reserved` are as in `torch.cuda.memory_stats`; `card_used` counts all programs,
    `other` those that are not this one; all four are 0 on a CPU. `host` is the resident memory of
    this process.
    """

    seconds: float
    step: int
    allocated_bytes: int
    reserved_bytes: int
    card_used_bytes: int
    card_total_bytes: int
    other_bytes: int
    host_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelScore:
    """Strict scores of one label; `support` counts the gold entities."""

    precision: float
    recall: float
    f1: float
    support: int
    predicted: int
    correct: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Entity scores over a data set: strict (as `seqeval`) and partial (as `nervaluate`).

    `micro` pools all entities, `macro` averages the labels. `partial` maps a nervaluate schema
    (`strict`, `exact`, `partial`, `ent_type`) to its precision, recall and f1. `accuracy` is the
    share of words tagged right (POS), None for other tasks.
    """

    micro: LabelScore
    macro: LabelScore
    by_label: Mapping[str, LabelScore]
    partial: Mapping[str, Mapping[str, float]]
    num_examples: int
    accuracy: float | None = None
