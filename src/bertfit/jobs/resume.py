"""Is the run in a folder the one that is asked for, and may it go on there?

A run is told by what its result depends on: data, labels, starting weights, seed, and every
setting that is no mere lever. Levers may change between a stop and a resume.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from bertfit.config import JobConfig
from bertfit.errors import ConfigError
from bertfit.jobs.corpus import Corpus
from bertfit.jobs.run_status import read_status
from bertfit.language import N_, _
from bertfit.types import Example
from bertfit.validation import validated

if TYPE_CHECKING:
    from torch import nn

# What may change: it decides where and how fast a run works, not what comes out.
LEVERS = frozenset(
    {
        "output_dir",
        "overwrite",
        "device",
        "budget",
        "precision",
        "micro_batch_tokens",
        "attn_implementation",
        "attn_kernel",
        "activation_checkpointing",
        "host_state",
        "autocast_cache",
        "expandable_segments",
        "logging_steps",
        "save_every",
        "preemption_file",
        "preemption_command",
        "trust_remote_code",
    }
)
# How files are found and read: their content is compared instead.
_BY_CONTENT = frozenset(
    {
        "model",
        "train_file",
        "eval_file",
        "format",
        "file_scheme",
        "tag_column",
        "separator",
        "offsets",
        "on_error",
    }
)
_NAMES = {
    "data": N_("the data"),
    "labels": N_("the labels"),
    "model": N_("the weights of the starting model"),
}


def settings_of(job: JobConfig) -> dict[str, str]:
    """Return the settings that a result depends on, as text."""
    stored = job.model_dump(mode="json")
    return {
        name: json.dumps(value)
        for name, value in sorted(stored.items())
        if name not in LEVERS and name not in _BY_CONTENT
    }


def identity_of(job: JobConfig, corpus: Corpus, model: "nn.Module") -> dict[str, str]:
    """Return what a run depends on, name -> value or checksum.

    Args:
        job: what is asked.
        corpus: its data.
        model: with its starting weights.
    """
    return {
        **settings_of(job),
        "data": _examples_checksum(corpus.train) + _examples_checksum(corpus.dev),
        "labels": json.dumps(corpus.scheme.tags, ensure_ascii=False),
        "model": _weights_checksum(model),
    }


def _examples_checksum(examples: Iterable[Example]) -> str:
    checksum = xxhash.xxh3_64()
    for example in examples:
        spans = [(e.start, e.end, e.label) for e in example.entities or ()]
        checksum.update(json.dumps([example.text, spans, example.words]).encode())
    return checksum.hexdigest()


def _weights_checksum(model: "nn.Module") -> str:
    checksum = xxhash.xxh3_64()
    for name, tensor in model.state_dict().items():
        checksum.update(name.encode())
        if tensor.numel():
            checksum.update(tensor.detach().contiguous().reshape(-1).cpu().numpy().data)
    return checksum.hexdigest()


def changed(stored: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Name what differs, in the words of the command line."""
    # A setting that one of the two bertfits does not know was at its default.
    names = [name for name in present if name in stored and stored[name] != present[name]]
    return [_(_NAMES[name]) if name in _NAMES else f"--{name.replace('_', '-')}" for name in names]


def refuse_changed(folder: Path, names: list[str]) -> None:
    """Refuse to go on with a run that was another job.

    Raises:
        ConfigError: `names` is not empty.
    """
    if names:
        raise ConfigError(
            _(
                "{folder}: holds an unfinished run, but since it began {what} changed. To go on, "
                "say what was said then; to begin anew, say --overwrite or name another folder."
            ).format(folder=folder, what=", ".join(names))
        )


def is_unfinished(folder: Path) -> bool:
    """Say whether a folder holds a run that began and did not come to its end."""
    status = read_status(folder)
    return status is not None and not status.holds_finished and (folder / "job.yaml").is_file()


def stored_job(folder: Path) -> dict[str, Any] | None:
    """Return what a run was asked, as `job.yaml` has it; None where that cannot be read."""
    import yaml

    path = folder / "job.yaml"
    if not os.path.isfile(path):  # to read a pipe would never end
        return None
    try:
        stored = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    return stored if isinstance(stored, dict) else None


def check_settings(folder: Path, job: JobConfig) -> list[str]:
    """Name the settings that an unfinished run in a folder was not asked."""
    stored = stored_job(folder)
    if stored is None:
        return []
    # A value that YAML knows and JSON does not, such as a date, is none that was written.
    texts = {name: json.dumps(value, default=str) for name, value in stored.items()}
    present = settings_of(job)
    # What is None is not in the file.
    return changed({name: texts.get(name, "null") for name in present}, present)


def is_same_command(folder: Path, job: JobConfig) -> bool:
    """Say whether a folder holds the unfinished run of this very job; it may be at work."""
    stored = stored_job(folder)
    if stored is None or not is_unfinished(folder):
        return False
    asked = job.model_dump(mode="json", exclude_none=True)
    return {name: value for name, value in stored.items() if name not in LEVERS} == {
        name: value for name, value in asked.items() if name not in LEVERS
    }


def may_go_on(folder: Path, job: JobConfig) -> bool:
    """Say whether a folder holds an unfinished run that may be this job.

    Raises:
        ConfigError: it is another job, and `overwrite` was not said.
    """
    if not is_unfinished(folder):
        return False
    names = check_settings(folder, job)
    if names and job.overwrite:
        return False
    refuse_changed(folder, names)
    return True


def resumed(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an unfinished run was asked, with what is given now in its place.

    Args:
        folder: of the run.
        given: field names of `JobConfig`; None stands for "not given".

    Raises:
        ConfigError: there is no unfinished run in the folder, or another folder is given.
    """
    stored, status = stored_job(folder), read_status(folder)
    if stored is None or status is None:
        raise ConfigError(_("--resume {folder}: holds no run of bertfit.").format(folder=folder))
    if not is_unfinished(folder):
        raise ConfigError(
            _("--resume {folder}: that run came to its end. Its model is in {model}.").format(
                folder=folder, model=folder / "model"
            )
        )
    elsewhere = given.get("output_dir")
    if elsewhere is not None and Path(elsewhere).resolve() != folder.resolve():
        raise ConfigError(
            _("--resume {folder}: goes on there, not in {other}. Leave --output-dir out.").format(
                folder=folder, other=elsewhere
            )
        )
    try:
        job = validated(JobConfig, stored)
    except ConfigError as error:
        raise ConfigError(
            _("--resume {folder}: its job.yaml was changed: {faults}").format(
                folder=folder, faults=error
            )
        ) from None
    # Paths of the job begin where the command was typed then.
    before = Path(status.folder)
    asked = job.model_dump(mode="json", exclude_none=True)
    for name in ("train_file", "eval_file"):
        asked[name] = [str(before / path) for path in asked.get(name, [])]
    if job.preemption_file is not None:
        asked["preemption_file"] = str(before / job.preemption_file)
    if os.path.exists(before / job.model):
        asked["model"] = str(before / job.model)
    asked["output_dir"] = str(folder)
    return {**asked, **{name: value for name, value in given.items() if value is not None}}
