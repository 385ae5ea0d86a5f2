"""What the user asks for: one record, the source of the flags, the YAML file and the Python names.

Names are those of `transformers.TrainingArguments` where that name exists. `None` means that
bertfit chooses.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from bertfit.errors import ConfigError
from bertfit.language import N_, _
from bertfit.units import Interval, parse_bytes, parse_interval
from bertfit.validation import validated

Precision = Literal["fp32", "bf16", "fp16"]
Attention = Literal["sdpa", "eager"]
# adamw is torch's fused one; adamw-bf16 keeps its two moments in bfloat16.
OptimizerName = Literal["adamw", "adamw-foreach", "adamw-bf16", "adamw-8bit", "adafactor", "sgd"]
AttentionKernel = Literal["flash", "efficient"]
# What saves memory and may cost quality: only with the user's word (law 10). `planning.tradeoffs`.
TradeOff = Literal[
    "bf16-moments",
    "8bit-adamw",
    "adafactor",
    "frozen-embeddings",
    "frozen-layers",
    "lora",
    "first-layers",
    "cut-vocabulary",
    "shorter-windows",
]
# Those that can be said with a number, as in `lora=16`, and the least it may be.
COUNTED_TRADE_OFFS: Mapping[str, int] = {
    "frozen-layers": 1,
    "lora": 1,
    "first-layers": 1,
    "shorter-windows": 8,
}
# Of each row no more than one can be made.
_EXCLUSIVE_TRADE_OFFS = (
    ("bf16-moments", "8bit-adamw", "adafactor"),
    ("lora", "frozen-layers"),
    ("lora", "frozen-embeddings"),
    ("frozen-layers", "frozen-embeddings"),
)


def trade_off(text: str) -> tuple[TradeOff, int | None]:
    """Return name and number of what `--allow` was given, such as `lora` or `lora=16`.

    Raises:
        ValueError: there is no such trade-off, or it does not take that number.
    """
    name, mark, number = text.partition("=")
    if name == "smaller-model":
        raise ValueError(_("that is chosen with --model NAME; docs/models.md lists them"))
    if name not in get_args(TradeOff):
        raise ValueError(_("use one of {allowed}").format(allowed=", ".join(get_args(TradeOff))))
    if not mark:
        return cast(TradeOff, name), None
    least = COUNTED_TRADE_OFFS.get(name)
    if least is None:
        raise ValueError(_("{name} takes no number").format(name=name))
    if not number.isdecimal() or int(number) < least:
        raise ValueError(_("the number must be a whole one, {least} or more").format(least=least))
    return cast(TradeOff, name), int(number)


def _known_trade_off(text: str) -> str:
    trade_off(text)
    return text


class JobConfig(BaseModel):
    """One training job.

    Raises:
        ConfigError: from `job_config`, with every fault at once.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )

    model: str = Field(
        min_length=1,
        description=N_("run folder, model folder, hub id, or 'tiny' (built from the data)"),
    )
    train_file: list[Path] = Field(
        min_length=1, description=N_("training data, one or several files")
    )
    eval_file: list[Path] = Field(default=[], description=N_("dev data, one or several files"))
    eval_fraction: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description=N_("share of the training data held out if no dev file"),
    )
    output_dir: Path | None = Field(
        default=None, description=N_("run folder to write [runs/<data>-<model>]")
    )
    overwrite: bool = Field(default=False, description=N_("replace a run that is already there"))

    format: str | None = Field(default=None, description=N_("format of the data [by content]"))
    file_scheme: str | None = Field(
        default=None, description=N_("tag scheme of the files [by content]")
    )
    tag_column: str | None = Field(
        default=None, description=N_("name or number of the tag column [last]")
    )
    separator: str | None = Field(
        default=None, description=N_("separator of the columns [by content]")
    )
    offsets: Literal["code-points", "utf16", "bytes"] | None = Field(
        default=None, description=N_("what the offsets of the files count [checked by surface]")
    )
    on_error: Literal["refuse", "skip"] = Field(
        default="refuse", description=N_("what to do with records that cannot be read")
    )
    task: Literal["ner", "segmentation", "pos"] | None = Field(
        default=None, description=N_("what is labelled [by format]")
    )
    labels: list[str] | None = Field(
        default=None, description=N_("the labels, in order [from the data]")
    )

    scheme: Literal["bio", "bioes"] = Field(
        default="bio", description=N_("tag scheme that the model learns")
    )
    split: Literal["words", "characters"] | None = Field(
        default=None, description=N_("what gets a tag [characters for Chinese, else words]")
    )
    max_length: int | None = Field(
        default=None,
        ge=8,
        description=N_("longest window in tokens [what the model allows, up to 512]"),
    )
    overlap: int | None = Field(
        default=None, ge=0, description=N_("tokens shared by neighbouring windows [a quarter]")
    )

    num_train_epochs: int = Field(default=3, ge=1, description=N_("passes over the training data"))
    batch_size: int = Field(default=16, ge=1, description=N_("texts in one optimizer step"))
    learning_rate: float | None = Field(
        default=None, gt=0, lt=1, description=N_("peak learning rate of the encoder [by its width]")
    )
    head_learning_rate: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description=N_("peak learning rate of the new head [the encoder's]"),
    )
    weight_decay: float = Field(
        default=0.01, ge=0, description=N_("decay of weights (no biases, norms)")
    )
    warmup_steps: float = Field(
        default=0.1, ge=0, description=N_("steps of linear warm-up; below 1: share of all steps")
    )
    max_grad_norm: float = Field(
        default=1.0, ge=0, description=N_("clip the gradient norm; 0: do not")
    )
    dropout: float | None = Field(
        default=None, ge=0, lt=1, description=N_("dropout [the model's own]")
    )
    early_stopping_patience: int | None = Field(
        default=None, ge=1, description=N_("stop after that many evaluations without a better F1")
    )
    eval_steps: int | None = Field(
        default=None,
        ge=1,
        description=N_("evaluate every so many steps, and at the end [each epoch]"),
    )
    logging_steps: int = Field(
        default=10, ge=1, description=N_("steps between two lines of the log")
    )
    seed: int = Field(
        default=42, ge=0, lt=2**32, description=N_("seed of order, dropout and new weights")
    )

    save_every: str = Field(
        default="10min", description=N_("checkpoint interval: 10min, 2h, 500steps, or never")
    )
    preemption_file: Path | None = Field(
        default=None, description=N_("save and stop as soon as this file exists")
    )
    preemption_command: str | None = Field(
        default=None,
        description=N_("shell command run every 5 s; save and stop once it succeeds"),
    )

    device: str | None = Field(
        default=None,
        description=N_(
            "cpu, cuda, cuda:1, mps; sim:4GiB or sim:NAME counts memory as on such a card "
            "[the fastest here]"
        ),
    )
    budget: int | None = Field(
        default=None, description=N_("memory the job may take, such as 3.5GiB [the whole card]")
    )
    precision: Precision | None = Field(
        default=None, description=N_("[bf16, else fp16 on cards, fp32]")
    )
    micro_batch_tokens: int | None = Field(
        default=None, ge=1, description=N_("padded tokens in one forward-backward [planned]")
    )
    activation_checkpointing: int | None = Field(
        default=None, ge=0, description=N_("first layers that are computed twice [planned]")
    )
    host_state: bool | None = Field(
        default=None,
        description=N_("keep fp32 weights and optimizer in the host's memory [planned]"),
    )
    autocast_cache: bool | None = Field(
        default=None, description=N_("keep 16-bit copies of weights during a forward [planned]")
    )
    expandable_segments: bool | None = Field(
        default=None, description=N_("as in PYTORCH_ALLOC_CONF [on a card, where there are any]")
    )
    attn_kernel: AttentionKernel | None = Field(
        default=None,
        description=N_("kernel of sdpa, no other is taken [flash where it can, else efficient]"),
    )
    allow: list[Annotated[str, AfterValidator(_known_trade_off)]] = Field(
        default=[],
        description=N_(
            "make a change that saves memory and may cost quality: lora, frozen-layers=4, ..."
        ),
    )
    attn_implementation: Literal["sdpa", "eager"] | None = Field(
        default=None, description=N_("attention code of transformers [sdpa where the model has it]")
    )
    trust_remote_code: bool = Field(
        default=False, description=N_("run the Python code that a model repository brings")
    )

    @field_validator("train_file", "eval_file", "labels", "allow", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return [value] if isinstance(value, str | Path) else value

    @field_validator("budget", mode="before")
    @classmethod
    def _budget_is_a_size(cls, value: object) -> object:
        if not isinstance(value, str | int) or isinstance(value, bool):
            return value
        try:
            return parse_bytes(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @field_validator("save_every", mode="before")
    @classmethod
    def _save_every_is_an_interval(cls, value: object) -> object:
        try:
            parse_interval(str(value))
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return str(value)

    @field_validator("preemption_command")
    @classmethod
    def _preemption_command_says_something(cls, value: str | None) -> str | None:
        # To a shell, nothing is a command that succeeds.
        if value is not None and not value.strip():
            raise ValueError(_("must not be empty"))
        return value

    @field_validator("labels")
    @classmethod
    def _labels_are_distinct(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError(_("a label is listed twice"))
        return value

    @field_validator("allow")
    @classmethod
    def _trade_offs_do_not_exclude_each_other(cls, value: list[str]) -> list[str]:
        names = [trade_off(text)[0] for text in value]
        if len(set(names)) < len(names):
            raise ValueError(_("a trade-off is listed twice"))
        for row in _EXCLUSIVE_TRADE_OFFS:
            both = [name for name in row if name in names]
            if len(both) > 1:
                raise ValueError(
                    _("{first} and {second} exclude each other").format(
                        first=both[0], second=both[1]
                    )
                )
        return value

    @property
    def saves(self) -> bool:
        """Whether checkpoints are written; a stop leaves one all the same, if memory allows it."""
        return parse_interval(self.save_every) != Interval()

    @property
    def trade_offs(self) -> dict[TradeOff, int | None]:
        """What may cost quality and is made all the same, with its number where one was given."""
        return dict(map(trade_off, self.allow))

    @model_validator(mode="after")
    def _windows_are_said_once(self) -> "JobConfig":
        if self.max_length is not None and "shorter-windows" in self.trade_offs:
            raise ValueError(
                _("--max-length {length} and --allow shorter-windows both say how long").format(
                    length=self.max_length
                )
            )
        return self

    @model_validator(mode="after")
    def _overlap_leaves_room(self) -> "JobConfig":
        # Two special tokens are no part of a window's text.
        if self.max_length is not None and (self.overlap or 0) > (self.max_length - 2) // 2:
            raise ValueError(
                _("overlap {overlap} is more than half of max_length {max_length}").format(
                    overlap=self.overlap, max_length=self.max_length
                )
            )
        return self


def reading_fields(config: type[JobConfig]) -> dict[str, FieldInfo]:
    """Return the fields that say how files are read and where the model runs."""
    names = ("format", "file_scheme", "tag_column", "separator", "offsets", "on_error")
    return {name: config.model_fields[name] for name in (*names, "device", "precision")}


def job_config(values: Mapping[str, Any], config_file: Path | None = None) -> JobConfig:
    """Make a job from a YAML file and from values that override it.

    Args:
        values: field names of `JobConfig`; None stands for "not given".
        config_file: YAML file with the same names.

    Raises:
        ConfigError: the file cannot be read, or values are wrong: all faults in one message.
    """
    merged = _read_yaml(config_file) if config_file is not None else {}
    merged.update({name: value for name, value in values.items() if value is not None})
    return validated(JobConfig, merged)


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        loaded = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(
            _("{path}: cannot be read ({reason}). Check the name of the job file.").format(
                path=path, reason=error.strerror
            )
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        reason = _("nested too deeply") if deep else " ".join(str(error).split())
        raise ConfigError(
            _("{path}: is not YAML: {reason}").format(path=path, reason=reason)
        ) from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(
            _("{path}: must hold lines such as 'learning_rate: 3e-4', not a {kind}.").format(
                path=path, kind=type(loaded).__name__
            )
        )
    _refuse_twice(path, yaml.compose(text, yaml.SafeLoader))
    # YAML 1.1 reads `3e-4` as text, since it has no dot; pydantic turns it into a number.
    return {str(name).replace("-", "_"): value for name, value in loaded.items()}


def _refuse_twice(path: Path, tree: Any) -> None:
    """Refuse a setting that stands in two lines: YAML would take the last.

    Raises:
        ConfigError: with all such settings and their lines.
    """
    lines: dict[str, list[int]] = {}
    for key, __ in tree.value:
        if key.id == "scalar":
            lines.setdefault(key.value.replace("-", "_"), []).append(key.start_mark.line + 1)
    faults = [
        _("{path}: {name} is set in lines {lines}. Keep one of them.").format(
            path=path, name=name, lines=", ".join(map(str, places))
        )
        for name, places in lines.items()
        if len(places) > 1
    ]
    if faults:
        raise ConfigError("\n".join(faults))
