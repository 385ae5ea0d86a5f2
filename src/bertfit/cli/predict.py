"""`bertfit predict`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bertfit.cli.options import with_fields
from bertfit.cli.output import tell
from bertfit.config import JobConfig, job_config, reading_fields
from bertfit.language import _


def _predict(
    fields: dict[str, Any],
    model: Annotated[str, typer.Argument(help=_("run folder, model folder or hub id"))],
    file: Annotated[
        Path | None, typer.Argument(help=_("texts in any format that bertfit reads"))
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", help=_("a text to tag, instead of a file"))
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help=_("JSON lines to write [stdout]"))
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help=_("print one JSON document on stdout"))
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help=_("no progress bars"))] = False,
) -> int:
    from bertfit.errors import ConfigError

    if (file is None) == (not text):
        raise ConfigError(_("Give either a file or --text, not both and not neither."))
    job = job_config({**fields, "model": model, "train_file": file or "-"})
    from tqdm import tqdm

    from bertfit.data.formats import ProblemLog, read
    from bertfit.jobs.corpus import read_options, report_problems
    from bertfit.jobs.predict import load
    from bertfit.types import Example

    predictor = load(model, device=job.device, precision=job.precision)
    log = ProblemLog()
    examples = (
        read(file, read_options(job), log)
        if file is not None
        else iter([Example(id=str(i), text=one) for i, one in enumerate(text or ())])
    )
    documents = []
    target = output.open("w", encoding="utf-8") if output is not None else sys.stdout
    try:
        with tqdm(
            predictor.annotate(examples),
            disable=quiet or (file is None),
            dynamic_ncols=True,
            unit=_("text"),
            desc=_("predicting"),
        ) as bar:
            for example, found in bar:
                document = {
                    "id": example.id,
                    "text": example.text,
                    "entities": [
                        {
                            "start": entity.start,
                            "end": entity.end,
                            "label": entity.label,
                            "text": example.text[entity.start : entity.end],
                            "score": round(entity.score or 0.0, 4),
                        }
                        for entity in found
                    ],
                }
                if as_json:
                    documents.append(document)
                else:
                    target.write(json.dumps(document, ensure_ascii=False) + "\n")
        if as_json:
            target.write(json.dumps(documents, ensure_ascii=False) + "\n")
    finally:
        if output is not None:
            target.close()
    report_problems(log, tell)
    return 0


command = with_fields(_predict, reading_fields(JobConfig))
