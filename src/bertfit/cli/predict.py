"""`bertfit predict`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertfit.cli.options import with_fields
from bertfit.cli.output import print_json, tell
from bertfit.config import JobConfig, job_config, reading_fields
from bertfit.language import _

if TYPE_CHECKING:
    from bertfit.data.formats import ProblemLog, ReadOptions
    from bertfit.jobs.predict import Predictor
    from bertfit.jobs.stream_job import StreamReport
    from bertfit.types import Example


def _predict(
    fields: dict[str, Any],
    model: Annotated[str, typer.Argument(help=_("run folder, model folder or hub id"))],
    file: Annotated[
        str | None,
        typer.Argument(
            help=_("texts in any format that bertfit reads: file, folder, .gz; - is stdin")
        ),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", help=_("a text to tag, instead of a file"))
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help=_("file to write: .jsonl .conll .csv .parquet .json (Label Studio) [stdout]"),
        ),
    ] = None,
    output_format: Annotated[
        str | None,
        typer.Option(
            "--output-format",
            help=_("jsonl, conll, csv, parquet, label-studio, doccano [by the name]"),
        ),
    ] = None,
    output_scheme: Annotated[
        str, typer.Option("--output-scheme", help=_("tag scheme of CoNLL output"))
    ] = "bio",
    whole_files: Annotated[
        bool, typer.Option("--whole-files", help=_("every file is one text [every line]"))
    ] = False,
    any_sequence: Annotated[
        bool, typer.Option("--any-sequence", help=_("allow tag sequences that the scheme forbids"))
    ] = False,
    backend: Annotated[
        str, typer.Option("--backend", help=_("what computes: torch, openvino, or auto (measures)"))
    ] = "torch",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help=_("replace an output that is there"))
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help=_("print one JSON document on stdout"))
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help=_("no progress bars"))] = False,
) -> int:
    from bertfit.errors import ConfigError

    if (file is None) == (not text):
        raise ConfigError(_("Give either a file or --text, not both and not neither."))
    # One bad record among millions is told, and does not end the work, unless that is asked for.
    fields["on_error"] = fields.get("on_error") or "skip"
    job = job_config({**fields, "model": model, "train_file": file or "-"})
    from bertfit.data.formats import ProblemLog
    from bertfit.jobs.backend_choice import backend_of
    from bertfit.jobs.corpus import read_options, report_problems
    from bertfit.jobs.predict import load
    from bertfit.jobs.predict_file import PredictJob, predict_file
    from bertfit.jobs.prediction_formats import format_of, scheme_of

    if output is not None:
        name = format_of(output, output_format)  # told before the model is loaded
        if file is None and name != "jsonl":
            raise ConfigError(
                _("--text with --output {path}: writes JSON lines only; end it in .jsonl.").format(
                    path=output
                )
            )
    scheme = scheme_of(output_scheme)
    chosen = backend_of(backend)
    options = read_options(job)
    predictor = load(
        model,
        device=job.device,
        precision=job.precision,
        constrained=not any_sequence,
        backend=chosen,
        sample=_sample(file, options, whole_files) if chosen == "auto" else (),
    )
    _tell_unmapped(predictor)
    log = ProblemLog()
    if output is None or file is None:
        return _to_stdout(predictor, file, text or [], options, log, whole_files, output, as_json)
    report = predict_file(
        predictor,
        PredictJob(
            input=file,
            output=output,
            output_format=output_format,
            output_scheme=scheme,
            options=options,
            whole_files=whole_files,
            overwrite=overwrite,
        ),
        model_name=model,
        progress=not quiet,
        log=log,
    )
    report_problems(log, tell)
    print_report(report, output, as_json)
    return 0


def _sample(file: str | None, options: "ReadOptions", whole_files: bool) -> "list[Example]":
    """Return the first texts, to measure on; standard input is not read for that."""
    from itertools import islice

    from bertfit.data.formats import ProblemLog
    from bertfit.jobs.inputs import STDIN, TextInput

    if file is None or file == STDIN:
        return []
    source = TextInput(file, options, ProblemLog(), whole_files=whole_files)
    return list(islice(source.examples(), 500))


def _tell_unmapped(predictor: "Predictor") -> None:
    if predictor.unmapped_tags:
        tell(
            _(
                "The model's config.json gives no meaning to {count} of its tags: {tags}. They "
                "count as outside where others have one; else name them in id2label."
            ).format(
                count=len(predictor.unmapped_tags), tags=", ".join(predictor.unmapped_tags[:8])
            )
        )


def print_report(report: "StreamReport", output: Path, as_json: bool) -> None:
    """Print the counts of a job that streams."""
    if as_json:
        print_json({"output": output, "counts": report})
        return
    if report.num_resumed:
        tell(_("{count:,} texts were done before.").format(count=report.num_resumed))
    lost = report.num_left_out + report.num_unreadable
    message = _("{count:,} texts written to {path}.").format(count=report.num_written, path=output)
    if lost:
        message += _(" {count:,} left out; see above.").format(count=lost)
    tell(message)


def _to_stdout(
    predictor: "Predictor",
    file: str | None,
    texts: list[str],
    options: "ReadOptions",
    log: "ProblemLog",
    whole_files: bool,
    output: Path | None,
    as_json: bool,
) -> int:
    from bertfit.jobs.corpus import report_problems
    from bertfit.jobs.inputs import TextInput
    from bertfit.jobs.prediction_formats import json_record
    from bertfit.types import Example

    if file is None:
        examples = iter([Example(id=str(i), text=one) for i, one in enumerate(texts)])
    else:
        examples = TextInput(file, options, log, whole_files=whole_files).examples()
    found = (json_record(*each) for each in predictor.annotate(examples))
    target = sys.stdout if output is None else output.open("w", encoding="utf-8")
    try:
        if as_json:
            target.write(json.dumps(list(found), ensure_ascii=False, default=str) + "\n")
        else:
            for record in found:
                target.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
    finally:
        if output is not None:
            target.close()
    report_problems(log, tell)
    return 0


command = with_fields(_predict, reading_fields(JobConfig))
