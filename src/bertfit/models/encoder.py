"""The one door to transformers: load a model's weights and tokenizer, build it, save it again.

Weights are safetensors. Pickle is never read, and code that comes with a model is run only when
the user asks for it by name.
"""

import json
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from bertfit.errors import ModelError
from bertfit.language import _
from bertfit.models.head import head_parameters, take_head_rows
from bertfit.models.model_config import keep_experts, one_line, read_config, set_dropout
from bertfit.models.safety import INDEX_FILE, check_files, stored_weights

# More than any new head has.
_HEAD_NUMBERS = 20_000_000

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTokenizer:
    """A fast tokenizer and what bertfit needs to know of it.

    Attributes:
        fast: the transformers tokenizer, for saving.
        backend: the `tokenizers.Tokenizer` inside it.
        prefix: ids in front of every sequence (`[CLS]`).
        suffix: ids behind every sequence (`[SEP]`).
    """

    fast: Any
    backend: "Tokenizer"
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad_id: int
    unk_id: int


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> LoadedTokenizer:
    """Load the fast tokenizer of a folder.

    Raises:
        ModelError: there is none, or it lacks a padding or unknown token.
    """
    import transformers

    check_files(folder)
    try:
        with _quiet():
            fast = transformers.AutoTokenizer.from_pretrained(
                folder, use_fast=True, trust_remote_code=trust_remote_code, local_files_only=True
            )
    except Exception as error:  # noqa: BLE001 (tokenizers raises bare Exception)
        raise ModelError(
            _(
                "{folder}: its tokenizer cannot be loaded: {reason} bertfit needs a fast tokenizer "
                "(tokenizer.json, or vocab.txt for BERT)."
            ).format(folder=folder, reason=one_line(error))
        ) from None
    if not getattr(fast, "is_fast", False):
        raise ModelError(
            _(
                "{folder}: has no fast tokenizer ({kind}). bertfit needs one (tokenizer.json, or "
                "vocab.txt for BERT)."
            ).format(folder=folder, kind=type(fast).__name__)
        )
    if fast.pad_token_id is None:
        raise ModelError(_("{folder}: its tokenizer has no padding token.").format(folder=folder))
    probe = fast("a", add_special_tokens=False)["input_ids"]
    framed = fast("a")["input_ids"]
    start = next(
        (i for i in range(len(framed)) if framed[i : i + len(probe)] == probe), len(framed)
    )
    unk = fast.unk_token_id  # None for byte-level vocabularies: no text is unknown to them
    return LoadedTokenizer(
        fast=fast,
        backend=fast.backend_tokenizer,
        prefix=tuple(framed[:start]),
        suffix=tuple(framed[start + len(probe) :]),
        pad_id=int(fast.pad_token_id),
        unk_id=int(fast.pad_token_id if unk is None else unk),
    )


def load_classifier(
    folder: Path,
    tags: tuple[str, ...],
    *,
    attn_implementation: Literal["sdpa", "eager"] | None = None,
    dropout: float | None = None,
    trust_remote_code: bool = False,
    dtype: torch.dtype = torch.float32,
) -> tuple[nn.Module, tuple[str, ...]]:
    """Load a model for token classification with the given tags, on the CPU.

    A tagger with other tags keeps the rows of its head whose tag is wanted again.

    Args:
        folder: of the model.
        tags: of its head, in the order of their ids.
        attn_implementation: None is the one that transformers takes.
        dropout: every dropout of the model; None leaves them.
        trust_remote_code: run the Python code that a model brings.
        dtype: of its weights. They are cast one by one as they are read, never held twice.

    Returns:
        The model, and the tags whose head rows were taken over.

    Raises:
        ModelError: no safetensors weights, wrong shapes, or numbers that are not finite.
    """
    check_files(folder)
    config = read_config(folder, trust_remote_code)
    old_tags = [config.id2label[i] for i in sorted(config.id2label)]
    is_tagger = any("TokenClassification" in name for name in config.architectures or [])
    config.id2label = dict(enumerate(tags))
    config.label2id = {tag: i for i, tag in enumerate(tags)}
    if dropout is not None:
        set_dropout(config, dropout)
    if not list(folder.glob("*.safetensors")):
        raise ModelError(
            _(
                "{folder}: holds no *.safetensors. Pickled weights (pytorch_model.bin) can run any "
                "code when they are read, so bertfit does not read them; convert them once where "
                "you trust them: model.save_pretrained(folder) in transformers."
            ).format(folder=folder)
        )
    try:
        with _quiet():
            _refuse_more_than_stored(folder, config, trust_remote_code)
            model, report = _read_classifier(
                folder,
                config,
                dtype,
                ignore_mismatched_sizes=True,
                attn_implementation=attn_implementation,
                output_loading_info=True,
                trust_remote_code=trust_remote_code,
            )
    except Exception as error:  # noqa: BLE001 (safetensors and transformers raise many kinds)
        raise ModelError(
            _("{folder}: the model cannot be loaded: {reason}").format(
                folder=folder, reason=one_line(error)
            )
        ) from None
    # The head as it was saved is wanted whole; with other tags a part of it is taken below.
    _refuse_foreign_weights(folder, model, report, with_head=is_tagger and tuple(old_tags) == tags)
    taken = take_head_rows(folder, model, old_tags, tags) if is_tagger else ()
    return model, taken


def _refuse_more_than_stored(folder: Path, config: Any, trust_remote_code: bool) -> None:
    """Refuse a config that asks for far more weights than are there: room for all would be taken.

    Raises:
        ModelError: with both numbers.
    """
    import transformers

    stored = stored_weights(folder)
    if stored is None:
        return
    num_numbers = sum(stored.values())
    layers = getattr(config, "num_hidden_layers", 0)
    if layers <= len(stored):
        with torch.device("meta"):
            model = transformers.AutoModelForTokenClassification.from_config(
                config, trust_remote_code=trust_remote_code
            )
        asked = sum(parameter.numel() for parameter in model.parameters())
        # A new head and what it stands on may be missing, but not half of a model.
        if asked <= 2 * num_numbers + _HEAD_NUMBERS:
            return
        message = _("config.json asks for {asked:,} weights, and {stored:,} are there.").format(
            asked=asked, stored=num_numbers
        )
    else:
        message = _(
            "config.json asks for {asked:,} layers, and {stored:,} weights are there."
        ).format(asked=layers, stored=len(stored))
    raise ModelError(message)


def _read_classifier(folder: Path, config: Any, dtype: torch.dtype, **options: Any) -> Any:
    """Return the model and the report of transformers."""
    import transformers

    kind = transformers.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING.get(type(config), None)
    weights = None if dtype == torch.float32 or kind is None else _slices(folder)
    if weights is None:
        return transformers.AutoModelForTokenClassification.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            **options,
        )
    del options["trust_remote_code"]
    return kind.from_pretrained(None, config=config, state_dict=weights, dtype=dtype, **options)


def _slices(folder: Path) -> dict[str, Any] | None:
    """Return the weights of a folder, each read when it is asked for; None for files not known.

    transformers maps the file into memory, so every byte that was looked at counts as the process's
    until the last weight is cast. Here a weight is read into memory of its own and freed.
    """
    from safetensors import safe_open

    files = {folder / "model.safetensors"}
    if not (folder / "model.safetensors").is_file():
        index = folder / INDEX_FILE
        if not index.is_file():
            return None
        map_of_files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = {folder / name for name in map_of_files.values()}
    found = {}
    for path in sorted(files):
        file: Any = safe_open(path, framework="pt", device="cpu", backend="pread")
        found.update({name: file.get_slice(name) for name in file.keys()})  # noqa: SIM118
    return found


def _refuse_foreign_weights(
    folder: Path, model: nn.Module, report: Mapping[str, Any], *, with_head: bool
) -> None:
    head = set() if with_head else {name for name, __ in head_parameters(model)}
    wrong = sorted(str(row[0]) for row in report["mismatched_keys"] if str(row[0]) not in head)
    if wrong:
        raise ModelError(
            _(
                "{folder}: {count} weights have other shapes than its config.json says, the first "
                "is {name}. The folder is damaged or mixed from two models."
            ).format(folder=folder, count=len(wrong), name=wrong[0])
        )
    missing = [name for name in report["missing_keys"] if name not in head]
    total = sum(1 for __ in model.parameters())
    lost = with_head and any(name in missing for name, __ in head_parameters(model))
    if lost or len(missing) > total // 2:
        raise ModelError(
            _(
                "{folder}: {missing} of {total} weights are missing from its safetensors, the "
                "first is {name}. The weights do not belong to this config.json."
            ).format(folder=folder, missing=len(missing), total=total, name=sorted(missing)[0])
        )
    bad = [name for name, p in model.named_parameters() if not _is_finite(p)]
    if bad:
        raise ModelError(
            _("{folder}: {name} holds numbers that are not finite (NaN or infinity).").format(
                folder=folder, name=bad[0]
            )
        )


def _is_finite(weight: torch.Tensor) -> bool:
    """Say whether all numbers of a weight are finite, without a copy of it."""
    if not weight.numel():
        return True
    return all(bool(torch.isfinite(edge)) for edge in weight.aminmax())


def check_pieces(folder: Path, model: nn.Module, tokenizer: LoadedTokenizer) -> None:
    """Refuse a tokenizer that gives ids for which the model has no row.

    Raises:
        ModelError: with the highest id, and the number of rows.
    """
    rows = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]
    highest = max(tokenizer.backend.get_vocab(with_added_tokens=True).values(), default=0)
    if highest >= rows:
        raise ModelError(
            _(
                "{folder}: its tokenizer gives ids up to {highest}, and the model has {rows} rows. "
                "The folder is damaged or mixed from two models."
            ).format(folder=folder, highest=highest, rows=rows)
        )


def build_classifier(
    config: Mapping[str, Any],
    tags: tuple[str, ...],
    dropout: float | None = None,
    attn_implementation: Literal["sdpa", "eager"] | None = None,
) -> nn.Module:
    """Build a model with new weights from the fields of a config.json."""
    import transformers

    unwanted = ("model_type", "id2label", "label2id", "num_labels", "architectures")
    fields = {name: value for name, value in config.items() if name not in unwanted}
    made = transformers.AutoConfig.for_model(str(config["model_type"]), **fields)
    made.id2label = dict(enumerate(tags))
    made.label2id = {tag: i for i, tag in enumerate(tags)}
    if dropout is not None:
        set_dropout(made, dropout)
    if type(made) not in transformers.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING:
        raise ModelError(
            _(
                "transformers has no token classification for models of type '{kind}'. Take "
                "another model (docs/models.md)."
            ).format(kind=made.model_type)
        )
    try:
        model: nn.Module = transformers.AutoModelForTokenClassification.from_config(
            made, attn_implementation=attn_implementation
        )
    except Exception as error:  # each model checks its configuration in its own way
        raise ModelError(
            _("No model can be built of this configuration ({kind}): {reason}").format(
                kind=made.model_type, reason=one_line(error)
            )
        ) from error
    return model


def save_pretrained(model: nn.Module, tokenizer: Any, folder: Path) -> None:
    """Write model and tokenizer as an ordinary Hugging Face checkpoint."""
    with _quiet():
        model.save_pretrained(folder)  # type: ignore[operator]
        keep_experts(model, folder)
        tokenizer.save_pretrained(folder)


class _quiet:
    """Keep transformers' progress bars, load reports and warnings off the terminal."""

    def __enter__(self) -> None:
        import transformers

        self.verbosity = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.catcher = warnings.catch_warnings()
        self.catcher.__enter__()
        warnings.simplefilter("ignore")
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)

    def __exit__(self, *args: object) -> None:
        import transformers

        transformers.logging.set_verbosity(self.verbosity)
        transformers.logging.enable_progress_bar()
        self.catcher.__exit__(None, None, None)
