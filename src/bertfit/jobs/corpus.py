"""What a training job learns from and is measured on: read, labelled, split."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np

from bertfit.config import JobConfig
from bertfit.data.formats import ProblemLog, Reading, ReadOptions, open_data, read
from bertfit.data.segments import choose_split
from bertfit.data.tags import label_scheme
from bertfit.errors import ConfigError, DataError
from bertfit.language import _
from bertfit.types import Example, LabelScheme, Split, Task

Say = Callable[[str], None]
# Readers look at as many records before they hand out the first.
SAMPLED_TEXTS = 2000


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Training and dev examples, the tags they need, and how their texts are cut."""

    train: list[Example]
    dev: list[Example]
    task: Task
    scheme: LabelScheme
    split: Split


def read_options(job: JobConfig) -> ReadOptions:
    """Return how the job wants its files read."""
    return ReadOptions(
        format=job.format,
        scheme=job.file_scheme,
        tag_column=job.tag_column,
        separator=job.separator,
        offsets=job.offsets,
        on_error=job.on_error,
        task=job.task,
    )


def read_files(paths: Sequence[Path], options: ReadOptions, log: ProblemLog) -> Iterator[Example]:
    """Read several files one after the other."""
    for path in paths:
        yield from read(path, options, log)


def read_corpus(job: JobConfig, say: Say) -> Corpus:
    """Read all files of a job.

    Raises:
        DataError: unreadable, empty or unlabelled data, or a label that `labels` does not list.
    """
    options = read_options(job)
    log = ProblemLog()
    files = [open_data(path, options, log) for path in job.train_file]
    task = job.task or files[0].task
    if task == "segmentation" and job.split == "words":
        raise ConfigError(
            _(
                "--split words: in word segmentation the words of the file are the answer. Leave "
                "--split out, or say --split characters."
            )
        )
    train = _annotated(job.train_file, files, log, say)
    if job.eval_file:
        log = ProblemLog()
        files = [open_data(path, options, log) for path in job.eval_file]
        dev = _annotated(job.eval_file, files, log, say)
    else:
        train, dev = _hold_out(train, job.eval_fraction, job.seed)
        if dev:
            say(
                _(
                    "No dev file: {dev} of {all} texts are held out to measure (--eval-fraction "
                    "{fraction})."
                ).format(dev=len(dev), all=len(dev) + len(train), fraction=job.eval_fraction)
            )
        else:
            say(
                _(
                    "No dev file and nothing held out: the model of the last step is kept, "
                    "unmeasured."
                )
            )
            _say_idle(job, say)
    labels = _labels(job, train, dev, say)
    return Corpus(
        train=train,
        dev=dev,
        task=task,
        scheme=label_scheme(labels, "none" if task == "pos" else job.scheme),
        split=job.split or choose_split(train, task),
    )


def read_sample(job: JobConfig) -> Corpus | None:
    """Read the first texts of a job and say nothing; None where that cannot be done.

    What is wrong with the data is said where all of them are read.
    """
    try:
        file = open_data(job.train_file[0], read_options(job))
        first = list(islice(file.examples, SAMPLED_TEXTS))
    except DataError:
        return None
    train = [example for example in first if example.entities is not None]
    if not train:
        return None
    task = job.task or file.task
    labels = [*(job.labels or ()), *sorted(_count_labels(train))]
    return Corpus(
        train=train,
        dev=[],
        task=task,
        scheme=label_scheme(labels, "none" if task == "pos" else job.scheme),
        split=job.split or choose_split(train, task),
    )


def _say_idle(job: JobConfig, say: Say) -> None:
    """Say which settings have nothing to go by without dev data."""
    idle = {
        "--early-stopping-patience": job.early_stopping_patience,
        "--eval-steps": job.eval_steps,
    }
    flags = [flag for flag, value in idle.items() if value is not None]
    if flags:
        say(
            _("{flags}: changes nothing without dev data. Give --eval-file.").format(
                flags=", ".join(flags)
            )
        )


def _annotated(
    paths: Sequence[Path], files: Sequence[Reading], log: ProblemLog, say: Say
) -> list[Example]:
    examples = list(chain.from_iterable(file.examples for file in files))
    names = ", ".join(map(str, paths))
    report_problems(log, say)
    kept = [example for example in examples if example.entities is not None]
    if len(kept) < len(examples):
        say(
            _("{names}: {count} of {all} texts are not annotated and are left out.").format(
                names=names, count=len(examples) - len(kept), all=len(examples)
            )
        )
    if not kept:
        raise DataError(
            _(
                "{names}: holds no annotated text. Look at it with `bertfit data check {first}`."
            ).format(names=names, first=paths[0])
        )
    return kept


def report_problems(log: ProblemLog, say: Say) -> None:
    """Say what was repaired or left out, by kind, with the first place of each."""
    for kind, count in sorted(log.by_kind.items()):
        first = next((p for p in log.problems if p.kind == kind), None)
        if first is not None:
            say(_("{count} x {kind}, first: {first}").format(count=count, kind=kind, first=first))


def _hold_out(
    examples: list[Example], fraction: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """Hold out a seeded share; equal texts stay on one side, so that none leaks."""
    if fraction == 0 or len(examples) < 2:
        return examples, []
    by_text: dict[str, list[int]] = {}
    for position, example in enumerate(examples):
        by_text.setdefault(example.text, []).append(position)
    groups = list(by_text.values())
    wanted = min(max(1, round(fraction * len(examples))), len(examples) - 1)
    held: set[int] = set()
    for group in np.random.default_rng([seed, 1]).permutation(len(groups)):
        # A text that the data repeat often would be more of dev than is wanted.
        if len(held) + len(groups[group]) <= wanted:
            held.update(groups[group])
    if not held and len(groups) > 1:
        smallest = min(groups, key=len)
        held.update(smallest)
    train = [example for position, example in enumerate(examples) if position not in held]
    return train, [examples[position] for position in sorted(held)]


def _labels(job: JobConfig, train: list[Example], dev: list[Example], say: Say) -> tuple[str, ...]:
    found = {side: _count_labels(examples) for side, examples in (("train", train), ("dev", dev))}
    if job.labels is not None:
        known = set(job.labels)
        for example in (*train, *dev):
            for entity in example.entities or ():
                if entity.label not in known:
                    raise DataError(
                        _(
                            "{source}: label '{label}' is not among --labels ({known}). Add it "
                            "there, or correct the file."
                        ).format(
                            source=example.source, label=entity.label, known=", ".join(job.labels)
                        )
                    )
        return tuple(job.labels)
    only_dev = sorted(found["dev"].keys() - found["train"].keys())
    if only_dev:
        say(
            _(
                "Only the dev data have {labels}: the model cannot learn what train does not show, "
                "so these {count} entities count as missed."
            ).format(
                labels=", ".join(only_dev), count=sum(found["dev"][label] for label in only_dev)
            )
        )
    if not found["train"]:
        say(_("The training data hold no entity: the model will learn to find none."))
    return tuple(sorted(found["train"].keys() | found["dev"].keys()))


def _count_labels(examples: list[Example]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for example in examples:
        for entity in example.entities or ():
            counts[entity.label] = counts.get(entity.label, 0) + 1
    return counts
