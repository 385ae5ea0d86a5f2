"""The command line: arguments to an api call, its result to lines and an exit code; no logic.

Only the command that was asked for is imported, so that `--help` loads neither torch nor pydantic.
"""

import sys
from importlib import import_module
from io import TextIOWrapper

from bertfit.errors import BertfitError, ConfigError, Interrupted
from bertfit.language import LANGUAGES, N_, _, unknown_language, use_language

# command -> module under bertfit.cli with `command` (a function) or `app` (sub-commands), one line
COMMANDS = {
    "train": N_("Train a tagger from labelled files."),
    "runs": N_("List the runs of this machine: state, score, time left."),
    "logs": N_("Print what a run in the background has said."),
    "attach": N_("Show the progress of a run in the background."),
    "stop": N_("Have a run save itself and end."),
    "evaluate": N_("Score a tagger on labelled files."),
    "predict": N_("Find the entities of texts."),
    "embed": N_("Turn texts, tokens or entities into vectors."),
    "data": N_("Check, count and convert labelled files."),
    "plan": N_("Choose the fastest settings that fit a card, and say why."),
    "estimate": N_("Say what a job needs on a card, before it runs."),
    "capacity": N_("Find the largest batch that a card holds."),
    "doctor": N_("Say what this machine can do and what is in the way."),
    "demo": N_("Train, score and use a small tagger on built-in data."),
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _write_any_character()
    try:
        arguments = _take_language(arguments)
        _note_unknown_language()
        return _run(arguments)
    except Interrupted as stop:  # as it was asked: no error
        print(stop, file=sys.stderr)
        return stop.exit_code
    except BertfitError as error:
        print(_("error: {message}").format(message=error), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(_("stopped."), file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone: `bertfit ... | head`
        sys.stderr.close()
        return 0


def _write_any_character() -> None:
    """Let files and pipes get UTF-8, as JSON must be, and terminals what they can show."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, TextIOWrapper):
            continue
        if stream.isatty():
            stream.reconfigure(errors="backslashreplace")
        else:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _take_language(arguments: list[str]) -> list[str]:
    """Take `--lang zh` out of the arguments, wherever it stands: help texts need it first."""
    rest: list[str] = []
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        if argument == "--":
            return rest + arguments[position:]
        if argument == "--lang" or argument.startswith("--lang="):
            name = argument[7:] if "=" in argument else "".join(arguments[position + 1 :][:1])
            position += 1 if "=" in argument else 2
            if name not in LANGUAGES:
                raise ConfigError(
                    _("--lang '{name}': use one of {known}.").format(
                        name=name, known=", ".join(LANGUAGES)
                    )
                )
            use_language(name)
            continue
        rest.append(argument)
        position += 1
    return rest


def _note_unknown_language() -> None:
    name = unknown_language()
    if name is not None:
        message = _(
            "BERTFIT_LANG '{name}': no such language here; it is English. Use one of {known}."
        )
        print(message.format(name=name, known=", ".join(LANGUAGES)), file=sys.stderr)


def _run(arguments: list[str]) -> int:
    import typer

    from bertfit.cli.usage import reason_of, translate_help, unknown_command, usage_error

    translate_help()
    app = typer.Typer(
        name="bertfit",
        help=_("BERT-family sequence labellers inside a fixed amount of GPU memory."),
        epilog=_("--lang zh|en chooses the language of every command."),
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def options(
        version: bool = typer.Option(False, "--version", help=_("Print the version.")),
    ) -> None:
        if version:
            from bertfit import __version__

            print(f"bertfit {__version__}")
            raise typer.Exit

    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    if wanted is not None and wanted not in COMMANDS:
        raise ConfigError(
            _("{reason} See `{command} --help`.").format(
                reason=unknown_command(wanted, COMMANDS), command="bertfit"
            )
        )
    for name, summary in COMMANDS.items():
        if name != wanted:
            app.command(name, help=_(summary))(_not_loaded)
            continue
        module = import_module(f"bertfit.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, help=_(summary))
        else:
            app.command(name, help=_(summary))(module.command)
    try:
        result = app(arguments, standalone_mode=False)
    except usage_error() as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.ctx.get_help())  # type: ignore[attr-defined]
            return ConfigError.exit_code
        command = "bertfit" if wanted is None else f"bertfit {wanted}"
        raise ConfigError(
            _("{reason} See `{command} --help`.").format(reason=reason_of(error), command=command)
        ) from None
    return result if isinstance(result, int) else 0


def _not_loaded() -> None:
    """Stand in the list of commands for one that was not asked for."""
