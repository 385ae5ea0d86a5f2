"""What is wrong with a command line, in the user's language: click and typer say it in English."""

import difflib
import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from bertfit.language import _


def usage_error() -> type[Exception]:
    """Return the root of the errors of wrong arguments; newer typer brings a click of its own."""
    try:
        module = import_module("typer._click.exceptions")
    except ImportError:
        module = import_module("click.exceptions")
    error: type[Exception] = module.ClickException
    return error


def unknown_command(name: str, known: Iterable[str]) -> str:
    """Say that there is no such command, and which are near."""
    return _("no command '{name}'.").format(name=name) + _near(
        difflib.get_close_matches(name, known)
    )


def reason_of(error: Any) -> str:
    """Return what is wrong, a sentence with its full stop."""
    kind = type(error).__name__
    param = getattr(error, "param", None)
    if kind == "MissingParameter" and param is not None:
        return _("{name} is missing.").format(name=_name(param))
    if kind == "NoSuchOption":
        return _("no option {name}.").format(name=error.option_name) + _near(error.possibilities)
    message = str(error.message).rstrip(".")
    extra = re.fullmatch(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)", message)
    if extra:
        return _("too many arguments: {names}.").format(names=extra[1])
    return f"{_name(param)}: {message}." if param is not None else f"{message}."


def _near(names: Iterable[str] | None) -> str:
    found = sorted(names or ())
    return " " + _("Did you mean {names}?").format(names=", ".join(found)) if found else ""


def _name(param: Any) -> str:
    option: str = param.opts[0]
    return option if option.startswith("-") else option.upper()
