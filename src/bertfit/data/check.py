"""Look through labelled files for what spoils a tagger, and report all of it.

Knows nothing of formats beyond `read`: what is checked here is the same for each of them.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from bertfit.data.duplicates import SIMILAR, TextIndex, similarity, triples
from bertfit.data.formats import ProblemLog, ReadOptions, open_data, read
from bertfit.data.gold import Reach, Representable, flat
from bertfit.data.segments import choose_split
from bertfit.data.stats import Counts, counted
from bertfit.language import _
from bertfit.types import Entity, Example, Problem, Split

Watch = Callable[[Iterable[Example]], Iterable[Example]]
# An export whose lists are mostly empty was not looked through to its end.
_UNTOUCHED_SHARE = 0.5
_EXPORTS = ("jsonl", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """What one file holds; `reach` is what a perfect tagger could get right, where it was asked."""

    path: str
    format: str
    counts: Counts
    reach: Representable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """What files hold, and what was found in them."""

    files: tuple[FileReport, ...]
    problems: ProblemLog
    split: Split | None = None


def count_files(
    paths: Sequence[str | Path], options: ReadOptions, watch: Watch = iter
) -> DataReport:
    """Count what is in files, as stored; faults of their records are in the report.

    Args:
        paths: The files.
        options: How to read them; faulty records are kept whatever it says.
        watch: Passes the examples on, and may show progress.

    Raises:
        DataError: a file cannot be read at all.
    """
    log = ProblemLog()
    reports = []
    for path in paths:
        report, examples = _open(path, options, log)
        dropped = log.records_dropped
        for _example in watch(examples):
            pass
        _note_empty(report, log, dropped)
        reports.append(report)
    return DataReport(files=tuple(reports), problems=log)


def check_files(
    paths: Sequence[str | Path],
    options: ReadOptions,
    watch: Watch = iter,
    split: Split | None = None,
) -> DataReport:
    """Check files, each for itself and against the others.

    Args:
        paths: The files, such as train, dev and test of one data set.
        options: How to read them; faulty records are kept whatever it says.
        watch: Passes the examples on, and may show progress.
        split: What a tagger would tag; None chooses by the first file, as training does.

    Raises:
        DataError: a file cannot be read at all.
    """
    log = ProblemLog()
    split = split or _chosen_split(paths[0], options)
    index = TextIndex(near=len(paths) > 1)
    labels: dict[str, tuple[Problem, int]] = {}
    reports = []
    for number, path in enumerate(paths):
        report, examples = _open(path, options, log)
        dropped = log.records_dropped
        # What only the split can tell; nested spans and spaces are reported as such.
        reach = Reach(split, log.add, kinds=("edge-inside-unit",))
        for example in watch(examples):
            for problem in _record_problems(example):
                log.add(problem)
            reach.add(example)
            _note_labels(example, labels)
            line = example.source.line if example.source else 0
            index.add(example.text, _annotation_hash(example), number, line)
        _note_empty(report, log, dropped)
        _note_untouched(report, log)
        reports.append(replace(report, reach=reach.result()))
    names = [report.path for report in reports]
    for problem in _label_problems(labels):
        log.add(problem)
    for problem in _equal_texts(index, names):
        log.add(problem)
    for problem in _near_texts(index, names, paths, options):
        log.add(problem)
    return DataReport(files=tuple(reports), problems=log, split=split)


def _chosen_split(path: str | Path, options: ReadOptions) -> Split:
    file = open_data(path, _keeping(options))
    return choose_split(file.examples, file.task)


def _open(
    path: str | Path, options: ReadOptions, log: ProblemLog
) -> tuple[FileReport, Iterator[Example]]:
    file = open_data(path, _keeping(options), log)
    report = FileReport(path=str(path), format=file.format, counts=Counts())
    return report, counted(file.examples, report.counts)


def _keeping(options: ReadOptions) -> ReadOptions:
    return ReadOptions(
        format=options.format,
        scheme=options.scheme,
        tag_column=options.tag_column,
        separator=options.separator,
        offsets=options.offsets,
        on_error="keep",
        task=options.task,
    )


def _annotation_hash(example: Example) -> int:
    entities = example.entities
    return hash(None if entities is None else tuple(sorted(entities)))


def _problem(example: Example, kind: str, message: str) -> Problem:
    source = example.source
    path, line = (source.path, source.line) if source else (example.id, 0)
    return Problem(path=path, line=line, kind=kind, message=message, severity="note")


def _record_problems(example: Example) -> Iterator[Problem]:
    """Yield what is wrong with one record, by itself."""
    text = example.text
    if not text or text.isspace():
        yield _problem(example, "empty-text", _("the text is empty."))
    if example.entities is None:
        yield _problem(example, "unannotated", _("the text is not annotated."))
        return
    for entity in example.entities:
        end = min(entity.end, len(text))
        if 0 <= entity.start < end and (text[entity.start].isspace() or text[end - 1].isspace()):
            message = _("the {label} span {start}-{end} begins or ends with white space.")
            yield _problem(example, "space-at-edge", message.format(**_place(entity)))
    if len(example.entities) > 1:
        yield from _overlaps(example, example.entities)


def _place(entity: Entity) -> dict[str, str | int]:
    return {"label": entity.label, "start": entity.start, "end": entity.end}


def _overlaps(example: Example, entities: Sequence[Entity]) -> Iterator[Problem]:
    """Yield the entities that flat training would leave out."""
    ordered = sorted(entities)
    if all(a.end <= b.start for a, b in pairwise(ordered)):
        return
    kept, dropped = flat(entities)
    starts = [each.start for each in kept]
    for entity in dropped:
        place = bisect_left(starts, entity.end) - 1
        if place < 0 or kept[place].end <= entity.start:
            continue
        over = kept[place]
        if (over.start, over.end) == (entity.start, entity.end):
            kind = "same-span"
            message = _("two spans {start}-{end}: {other} and {label}. Training keeps the first.")
        elif over.start <= entity.start and entity.end <= over.end:
            kind = "nested-span"
            message = _(
                "the {label} span {start}-{end} lies inside the {other} span {other_start}-"
                "{other_end}. Training keeps the longer one."
            )
        else:
            kind = "crossing-span"
            message = _(
                "the {label} span {start}-{end} crosses the {other} span {other_start}-"
                "{other_end}. Training keeps the longer one."
            )
        yield _problem(
            example,
            kind,
            message.format(
                **_place(entity), other=over.label, other_start=over.start, other_end=over.end
            ),
        )


def _note_labels(example: Example, labels: dict[str, tuple[Problem, int]]) -> None:
    for entity in example.entities or ():
        known = labels.get(entity.label)
        if known is None:
            labels[entity.label] = (_problem(example, "label-case", entity.label), 1)
        else:
            labels[entity.label] = (known[0], known[1] + 1)


def _label_problems(labels: dict[str, tuple[Problem, int]]) -> Iterator[Problem]:
    """Yield labels that differ from a more frequent one only in case or in outer spaces."""
    by_fold: dict[str, list[str]] = {}
    for label in labels:
        by_fold.setdefault(label.strip().casefold(), []).append(label)
    for alike in by_fold.values():
        alike.sort(key=lambda label: -labels[label][1])
        for label in alike[1:]:
            place, count = labels[label]
            message = _(
                "the label '{label}' ({count}) differs only in case from '{other}' ({others})."
            ).format(label=label, count=count, other=alike[0], others=labels[alike[0]][1])
            yield Problem(
                path=place.path,
                line=place.line,
                kind="label-case",
                message=message,
                severity="note",
                count=count,
            )


def _note_empty(report: FileReport, log: ProblemLog, dropped_before: int) -> None:
    if not report.counts.examples and log.records_dropped == dropped_before:
        message = _("no records. Is it the right file?")
        log.add(
            Problem(path=report.path, line=0, kind="no-records", message=message, severity="note")
        )


def _note_untouched(report: FileReport, log: ProblemLog) -> None:
    counts = report.counts
    if report.format in _EXPORTS and counts.without_entities > _UNTOUCHED_SHARE * counts.examples:
        message = _(
            "{count} of {all} texts have an empty list of spans. Were they annotated, or not yet?"
        ).format(count=counts.without_entities, all=counts.examples)
        log.add(
            Problem(
                path=report.path,
                line=0,
                kind="unannotated",
                message=message,
                severity="note",
                count=counts.without_entities,
            )
        )


def _equal_texts(index: TextIndex, names: Sequence[str]) -> Iterator[Problem]:
    for twin in index.equal():
        first = f"{names[index.files[twin.first]]}:{index.lines[twin.first]}"
        if not twin.same_annotation:
            kind = "conflicting-annotations"
            message = _("the same text as {first}, with other annotations.")
        elif index.files[twin.first] != index.files[twin.second]:
            kind = "shared-text"
            message = _("the same text as {first}, which is another file.")
        else:
            kind = "duplicate-text"
            message = _("the same text as {first}, with the same annotations.")
        yield _index_problem(index, names, twin.second, kind, message.format(first=first))


def _near_texts(
    index: TextIndex, names: Sequence[str], paths: Sequence[str | Path], options: ReadOptions
) -> Iterator[Problem]:
    candidates = index.candidates()
    if not candidates:
        return
    wanted = {position for pair in candidates for position in pair}
    sets: dict[int, set[str]] = {}
    position = 0
    for path in paths:
        for example in read(path, _keeping(options), ProblemLog()):
            if position in wanted:
                sets[position] = triples(example.text)
            position += 1
    best: dict[int, tuple[float, int]] = {}
    for first, second in candidates:
        found = similarity(sets[first], sets[second])
        if found >= SIMILAR:
            best[second] = max(best.get(second, (0.0, 0)), (found, first))
    for second, (found, first) in sorted(best.items()):
        message = _("{share:.0%} of it is the text {first}, which is in another file.").format(
            share=found, first=f"{names[index.files[first]]}:{index.lines[first]}"
        )
        yield _index_problem(index, names, second, "near-duplicate", message)


def _index_problem(
    index: TextIndex, names: Sequence[str], position: int, kind: str, message: str
) -> Problem:
    return Problem(
        path=names[index.files[position]],
        line=index.lines[position],
        kind=kind,
        message=message,
        severity="note",
    )
