"""`bertfit predict`."""

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

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
    reading_flags,
    reading_job,
    refuse_together,
    refuse_whole,
)
from bertfit.config import JobConfig, reading_fields
from bertfit.language import _

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    from bertfit.jobs.corpus import read_options, report_problems
    from bertfit.jobs.inputs import TextInput
    from bertfit.jobs.int8 import MAX_F1_LOSS, load_int8
    from bertfit.jobs.predict import load
    from bertfit.jobs.predict_file import PredictJob, predict_file
    from bertfit.jobs.prediction_formats import format_of, scheme_of
    from bertfit.jobs.ray_predict import over_ray
    from bertfit.jobs.stream_job import StreamReport
    from bertfit.types import Example

    if output is not None:
        name = format_of(output, output_format)  # told before the model is loaded
        if file is None and (name != "jsonl" or output.suffix == ".gz"):
            raise ConfigError(
                _("--text with --output {path}: writes JSON lines only; end it in .jsonl.").format(
                    path=output
                )
            )
        refuse_together(
            {"--output-scheme": output_scheme != "bio" and name != "conll"},
            _("only with CoNLL, and the output is {format}. Add --output-format conll.").format(
                format=name
            ),
        )
    scheme, chosen, options = scheme_of(output_scheme), backend_of(backend), read_options(job)
    refuse_together(
        {"--max-f1-loss": max_f1_loss is not None and int8 is None},
        _("only says how much F1 --int8 may lose. Give --int8 a labelled file too."),
    )
    refuse_together(
        {
            "--backend": int8 is not None and chosen != "torch",
            "--precision": int8 is not None and job.precision is not None,
            "--device": int8 is not None and (job.device or "cpu") != "cpu",
        },
        _("not with --int8, which computes with ONNX Runtime on the processor."),
    )
    refuse_together(
        {
            "--int8": ray and int8 is not None,
            "--backend auto": ray and chosen == "auto",
            "--text": ray and file is None,
        },
        _("not with --ray: every process would decide, or read, for itself."),
    )
    refuse_together(
        {
            "--ray": ray,
            "--output-format": output_format is not None,
            "--output-scheme": output_scheme != "bio",
        }
        if output is None
        else {},
        _("say with --output where the entities go; standard output gets JSON lines."),
    )
    refuse_together(
        {"--whole-files": whole_files, **reading_flags(job)} if file is None else {},
        _("says how a file is read, and --text is none. Leave it out."),
    )
    if whole_files:
        refuse_whole(job)
    log, asked, source = ProblemLog(), None, None
    if file is not None and output is not None:
        asked = PredictJob(
            input=file,
            output=output,
            output_format=output_format,
            output_scheme=scheme,
            options=options,
            whole_files=whole_files,
            overwrite=overwrite,
        )
        asked.source(log)  # refuses, if it does, before the model is loaded
    elif file is not None:
        source = TextInput(file, options, log, whole_files=whole_files)
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
    if asked is None:
        given = [Example(id=str(i), text=one) for i, one in enumerate(text or [])]
        examples = iter(given) if source is None else source.examples()
        with _target(output, overwrite) as target:
            # A bar would run into the lines on a terminal.
            progress = not (quiet or target.isatty())
            document = as_json and output is None
            num_written = _write_lines(predictor, examples, log, target, document, progress)
        if output is None:
            report_problems(log, tell)
            return 0
        lost = len(given) - num_written
        counts = StreamReport(
            num_read=len(given), num_written=num_written, num_left_out=lost, num_unreadable=0
        )
        print_report(counts, output, log, as_json)
        return 0
    report = predict_file(
        predictor,
        asked,
        model_name=model,
        progress=not quiet,
        log=log,
        elsewhere=over_ray(make, asked, log) if ray else None,
    )
    print_report(report, asked.output, log, as_json)
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


def _target(output: Path | None, overwrite: bool) -> AbstractContextManager[TextIO]:
    from bertfit.errors import ConfigError

    if output is None:
        return nullcontext(sys.stdout)
    if output.exists() and not overwrite:
        raise ConfigError(
            _("{path} exists. Give another name, or --overwrite to replace it.").format(path=output)
        )
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        return output.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            _("--output {path}: cannot be written ({reason}). Give another name.").format(
                path=output, reason=error.strerror
            )
        ) from error


def _write_lines(
    predictor: "Predictor",
    examples: "Iterable[Example]",
    log: "ProblemLog",
    target: TextIO,
    as_json: bool,
    progress: bool,
) -> int:
    """Write JSON lines, or one JSON document, as the chunks are done; return how many."""
    from tqdm import tqdm

    from bertfit.jobs.prediction_formats import json_record

    before, between, after = ("[", ", ", "]\n") if as_json else ("", "\n", "\n")
    target.write(before)
    num_written = 0
    with tqdm(disable=not progress, unit=_("text"), desc=_("predicting"), delay=2) as bar:
        for chunk in predictor.chunks(examples):
            for found in predictor.annotate_chunk(chunk, log.add):
                record = json.dumps(json_record(*found), ensure_ascii=False, default=str)
                target.write(between + record if num_written else record)
                num_written += 1
            target.flush()
            bar.update(len(chunk.examples))
    target.write(after if num_written or as_json else "")
    return num_written


command = with_fields(_predict, reading_fields(JobConfig))
