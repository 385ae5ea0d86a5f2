"""`bertfit predict`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertfit.cli.options import with_fields
from bertfit.cli.output import tell
from bertfit.cli.streaming import (
    AsJson,
    Model,
    Overwrite,
    Quiet,
    TextFile,
    WholeFiles,
    print_report,
    reading_job,
)
from bertfit.config import JobConfig, reading_fields
from bertfit.language import _

if TYPE_CHECKING:
    from bertfit.data.formats import ProblemLog, ReadOptions
    from bertfit.jobs.predict import Predictor
    from bertfit.types import Example


def _predict(
    fields: dict[str, Any],
    model: Model,
    file: Annotated[str | None, TextFile] = None,
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
    whole_files: WholeFiles = False,
    any_sequence: Annotated[
        bool, typer.Option("--any-sequence", help=_("allow tag sequences that the scheme forbids"))
    ] = False,
    backend: Annotated[
        str,
        typer.Option(
            "--backend", help=_("what computes: torch, openvino, onnx, or auto (measures)")
        ),
    ] = "torch",
    int8: Annotated[
        Path | None,
        typer.Option(
            "--int8",
            metavar="FILE",
            help=_("8-bit integers (ONNX Runtime), if they lose little F1 on this labelled file"),
        ),
    ] = None,
    max_f1_loss: Annotated[
        float | None,
        typer.Option("--max-f1-loss", help=_("so much F1 may --int8 lose, of 1 [0.005]")),
    ] = None,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray", help=_("spread the work with Ray: here, or over the cluster of RAY_ADDRESS")
        ),
    ] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    from bertfit.errors import ConfigError

    if (file is None) == (not text):
        raise ConfigError(_("Give either a file or --text, not both and not neither."))
    job = reading_job(fields, model, file or "-")
    from functools import partial

    from bertfit.data.formats import ProblemLog
    from bertfit.jobs.backend_choice import backend_of
    from bertfit.jobs.corpus import read_options
    from bertfit.jobs.int8 import MAX_F1_LOSS, load_int8
    from bertfit.jobs.predict import load
    from bertfit.jobs.predict_file import PredictJob, predict_file
    from bertfit.jobs.prediction_formats import format_of, scheme_of
    from bertfit.jobs.ray_predict import over_ray

    if output is not None:
        name = format_of(output, output_format)  # told before the model is loaded
        if file is None and name != "jsonl":
            raise ConfigError(
                _("--text with --output {path}: writes JSON lines only; end it in .jsonl.").format(
                    path=output
                )
            )
    scheme, chosen, options = scheme_of(output_scheme), backend_of(backend), read_options(job)
    _refuse_together(
        {"--max-f1-loss": max_f1_loss is not None and int8 is None},
        _("only says how much F1 --int8 may lose. Give --int8 a labelled file too."),
    )
    _refuse_together(
        {
            "--backend": int8 is not None and chosen != "torch",
            "--precision": int8 is not None and job.precision is not None,
            "--device": int8 is not None and (job.device or "cpu") != "cpu",
        },
        _("not with --int8, which computes with ONNX Runtime on the processor."),
    )
    _refuse_together(
        {
            "--int8": ray and int8 is not None,
            "--backend auto": ray and chosen == "auto",
            "--text": ray and file is None,
        },
        _("not with --ray: every process would decide, or read, for itself."),
    )
    if ray and output is None:
        raise ConfigError(_("--ray: say with --output where the entities go."))
    make = partial(
        load,
        model,
        device=job.device,
        precision=job.precision,
        constrained=not any_sequence,
        backend=chosen,
    )
    if int8 is not None:
        predictor = load_int8(
            model,
            [int8],
            max_f1_loss=MAX_F1_LOSS if max_f1_loss is None else max_f1_loss,
            constrained=not any_sequence,
            progress=not quiet,
            say=tell,
        )
    else:
        sample = _sample(file, options, whole_files) if chosen == "auto" else ()
        predictor = make(sample=sample, say=tell)
    _tell_unmapped(predictor)
    log = ProblemLog()
    if output is None or file is None:
        return _to_stdout(predictor, file, text or [], options, log, whole_files, output, as_json)
    asked = PredictJob(
        input=file,
        output=output,
        output_format=output_format,
        output_scheme=scheme,
        options=options,
        whole_files=whole_files,
        overwrite=overwrite,
    )
    report = predict_file(
        predictor,
        asked,
        model_name=model,
        progress=not quiet,
        log=log,
        elsewhere=over_ray(make, asked, log) if ray else None,
    )
    print_report(report, output, log, as_json)
    return 0


def _refuse_together(flags: dict[str, bool], reason: str) -> None:
    from bertfit.errors import ConfigError

    given = [flag for flag, is_wrong in flags.items() if is_wrong]
    if given:
        raise ConfigError(f"{', '.join(given)}: {reason}")


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
