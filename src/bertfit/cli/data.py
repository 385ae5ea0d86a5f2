"""`bertfit data check`, `stats` and `convert`."""

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bertfit.cli.options import with_fields
from bertfit.cli.output import print_json, tell
from bertfit.config import JobConfig, reading_fields
from bertfit.data.check import DataReport, FileReport, check_files, count_files
from bertfit.data.formats import SHOWN, ProblemLog, ReadOptions, open_data, write
from bertfit.data.stats import Counts, total
from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.types import Example, Problem, Split

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_READING = {
    name: field
    for name, field in reading_fields(JobConfig).items()
    if name not in ("device", "precision", "on_error")
} | {"task": JobConfig.model_fields["task"]}
_Files = Annotated[list[str], typer.Argument(help=_("labelled files or folders"))]
_Json = Annotated[bool, typer.Option("--json", help=_("print one JSON document on stdout"))]
_Quiet = Annotated[bool, typer.Option("--quiet", help=_("no progress bars"))]
_SHOWN_NOTES = 5
_BY_SUFFIX = {
    ".jsonl": "jsonl",
    ".json": "label-studio",
    ".csv": "csv",
    ".parquet": "parquet",
    ".conll": "columns",
    ".bio": "columns",
    ".bmes": "columns",
    ".tsv": "columns",
    ".txt": "columns",
}


def _options(fields: Mapping[str, Any], on_error: str | None = None) -> ReadOptions:
    """Make the options of a reader from flags.

    Raises:
        ConfigError: a flag has a value it cannot have.
    """
    for name, value, allowed in (
        ("offsets", fields["offsets"], ("code-points", "utf16", "bytes")),
        ("task", fields["task"], ("ner", "segmentation", "pos")),
        ("on-error", on_error, ("refuse", "skip")),
    ):
        if value is not None and value not in allowed:
            raise ConfigError(
                _("--{name} '{value}': use one of {allowed}.").format(
                    name=name, value=value, allowed=", ".join(allowed)
                )
            )
    return ReadOptions(
        format=fields["format"],
        scheme=fields["file_scheme"],
        tag_column=fields["tag_column"],
        separator=fields["separator"],
        offsets=fields["offsets"],
        on_error="skip" if on_error == "skip" else "refuse",
        task=fields["task"],
    )


def _progress(quiet: bool) -> Callable[[Iterable[Example]], Iterable[Example]]:
    """Return what shows a bar once a pass has taken two seconds."""
    from tqdm.auto import tqdm

    def watch(examples: Iterable[Example]) -> Iterable[Example]:
        return tqdm(
            examples, delay=2.0, disable=quiet, unit=_("text"), dynamic_ncols=True, file=sys.stderr
        )

    return watch


def _check(
    fields: dict[str, Any],
    files: _Files,
    split: Annotated[
        str | None,
        typer.Option(
            "--split", help=_("words or characters: what a tagger would tag [by the text]")
        ),
    ] = None,
    as_json: _Json = False,
    quiet: _Quiet = False,
) -> int:
    if split not in (None, "words", "characters"):
        raise ConfigError(
            _("--{name} '{value}': use one of {allowed}.").format(
                name="split", value=split, allowed="words, characters"
            )
        )
    wanted: Split | None = "words" if split == "words" else "characters" if split else None
    report = check_files(files, _options(fields), _progress(quiet), wanted)
    if as_json:
        print_json(_document(report))
    else:
        for file in report.files:
            print(_file_line(file))
            _print_reach(file, report.split)
        _print_problems(report.problems, print)
        if not report.problems.by_kind:
            print(_("Nothing found."))
    return 1 if report.problems.by_kind else 0


def _stats(
    fields: dict[str, Any], files: _Files, as_json: _Json = False, quiet: _Quiet = False
) -> int:
    report = count_files(files, _options(fields), _progress(quiet))
    if as_json:
        print_json(_document(report))
        return 0
    for file in report.files:
        print(_file_line(file))
        _print_labels(file.counts)
    if len(report.files) > 1:
        counts = total(file.counts for file in report.files)
        print(_counts_line(_("all files"), counts))
        _print_labels(counts)
    _print_problems(report.problems, tell)
    return 0


def _convert(
    fields: dict[str, Any],
    source: Annotated[str, typer.Argument(metavar="IN", help=_("labelled file or folder"))],
    target: Annotated[Path, typer.Argument(metavar="OUT", help=_("file or folder to write"))],
    to: Annotated[
        str | None,
        typer.Option("--to", help=_("conll, jsonl, doccano, label-studio, brat, csv, parquet")),
    ] = None,
    scheme: Annotated[
        str | None, typer.Option("--scheme", help=_("tag scheme of written columns [bio]"))
    ] = None,
    on_error: Annotated[
        str | None, typer.Option("--on-error", help=_("refuse or skip faulty records [refuse]"))
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help=_("replace a target that exists"))
    ] = False,
    as_json: _Json = False,
    quiet: _Quiet = False,
) -> int:
    options = _options(fields, on_error)
    format = to or _BY_SUFFIX.get(Path(str(target).removesuffix(".gz")).suffix)
    if format is None:
        raise ConfigError(
            _("What is {path} to be? Say it with --to, for example --to jsonl.").format(path=target)
        )
    if scheme not in (None, "bio") and format not in ("columns", "conll"):
        raise ConfigError(
            _(
                "--scheme {scheme}: only columns have tags, and {format} has spans. Leave it out."
            ).format(scheme=scheme, format=format)
        )
    log = ProblemLog()
    file = open_data(source, options, log)
    if scheme is None:
        scheme = "none" if file.task == "pos" else "bio"
    examples = _progress(quiet)(file.examples)
    count = write(examples, target, format, scheme=scheme, problems=log, overwrite=overwrite)
    if as_json:
        print_json({"records": count, "dropped": log.records_dropped, **_problem_fields(log)})
        return 0
    _print_problems(log, tell)
    print(
        _("{count} of {all} records written to {path}.").format(
            count=count, all=log.records_read + log.records_dropped, path=target
        )
    )
    return 0


def _document(report: DataReport) -> dict[str, object]:
    counts = total(file.counts for file in report.files)
    return {
        **_count_fields(counts),
        "files": [
            {
                "file": file.path,
                "format": file.format,
                **_count_fields(file.counts),
                **_reach_fields(file, report.split),
            }
            for file in report.files
        ],
        **_problem_fields(report.problems),
    }


def _print_reach(file: FileReport, split: str | None) -> None:
    reach = file.reach
    if reach is None or reach.reachable == reach.entities:
        return
    print(
        "  "
        + _(
            "Tagged by {split}, {reachable} of {entities} entities can be reached: F1 {f1:.4f} at "
            "best."
        ).format(split=split, reachable=reach.reachable, entities=reach.entities, f1=reach.best_f1)
    )


def _reach_fields(file: FileReport, split: str | None) -> dict[str, object]:
    if file.reach is None:
        return {}
    return {
        "split": split,
        "reachable": file.reach.reachable,
        "records_not_reached": file.reach.records,
        "best_f1": file.reach.best_f1,
    }


def _count_fields(counts: Counts) -> dict[str, object]:
    return {
        "examples": counts.examples,
        "entities": counts.entities,
        "by_label": counts.ordered(),
        "max_chars": counts.max_chars,
        "mean_chars": round(counts.mean_chars, 1),
        "max_entity_chars": counts.max_entity_chars,
        "words": counts.words,
        "unannotated": counts.unannotated,
        "without_entities": counts.without_entities,
    }


def _problem_fields(log: ProblemLog) -> dict[str, object]:
    return {
        "problems": [_problem_document(problem) for problem in log.problems],
        "problem_counts": dict(log.by_kind.most_common()),
    }


def _problem_document(problem: Problem) -> dict[str, object]:
    return {
        "file": problem.path,
        "line": problem.line,
        "kind": problem.kind,
        "severity": problem.severity,
        "message": problem.message,
        "count": problem.count,
    }


def _file_line(file: FileReport) -> str:
    return _counts_line(f"{file.path} ({file.format})", file.counts)


def _counts_line(name: str, counts: Counts) -> str:
    line = _(
        "{name}: {examples:,} texts, {entities:,} entities of {labels} labels; the longest text "
        "has {max_chars:,} characters, the mean is {mean:.1f}"
    ).format(
        name=name,
        examples=counts.examples,
        entities=counts.entities,
        labels=len(counts.by_label),
        max_chars=counts.max_chars,
        mean=counts.mean_chars,
    )
    if counts.unannotated:
        line += _("; {count:,} not annotated").format(count=counts.unannotated)
    if counts.without_entities:
        line += _("; {count:,} without entities").format(count=counts.without_entities)
    return line


def _print_labels(counts: Counts) -> None:
    width = max((len(f"{count:,}") for count in counts.by_label.values()), default=0)
    for label, count in counts.ordered().items():
        print(f"  {count:>{width},}  {label}")


def _print_problems(log: ProblemLog, show: Callable[[str], None]) -> None:
    """Show how many there are of each kind, and the first places of each."""
    titles = {"error": _("error"), "repair": _("repaired"), "note": _("noticed")}
    for severity, title in titles.items():
        found = [problem for problem in log.problems if problem.severity == severity]
        for kind in dict.fromkeys(problem.kind for problem in found):
            count = log.by_kind[kind]
            places = [problem for problem in found if problem.kind == kind]
            shown = places[: SHOWN if severity == "error" else _SHOWN_NOTES]
            show(_("{kind} ({title}): {count:,}").format(kind=kind, title=title, count=count))
            for problem in shown:
                show(f"  {problem}")
            if sum(problem.count for problem in shown) < count:
                show(_("  ... the first {shown} are shown.").format(shown=len(shown)))


def _command(name: str, function: Callable[..., int], help_text: str) -> None:
    app.command(name, help=help_text)(with_fields(function, _READING))


_command("check", _check, _("Look for faults in labelled files. Exit code 1 if there are any."))
_command("stats", _stats, _("Count texts, entities and labels."))
_command("convert", _convert, _("Write a labelled file in another format."))
