"""Help and what is wrong with a command line, in the user's language: click's own is English."""

import difflib
import re
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bertfit.language import N_, _

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# What click and typer put into help texts.
_HEADINGS = (N_("Arguments"), N_("Options"), N_("Commands"))
_HELP = N_("Show this message and exit.")
_REQUIRED = N_("[required]")
_DEFAULT = N_("default: {value}")


def usage_error() -> type[Exception]:
    """Return the root of the errors of wrong arguments."""
    error: type[Exception] = _click("exceptions").ClickException
    return error


def translate_help() -> None:
    """Have help texts laid out with headings in the user's language."""
    _click("core").Context.formatter_class = _formatter(_click("formatting").HelpFormatter)


def _click(module: str) -> Any:
    """Return a module of click; newer typer brings one of its own."""
    try:
        return import_module(f"typer._click.{module}")
    except ImportError:
        return import_module(f"click.{module}")


def _formatter(base: Any) -> Any:
    class Formatter(base):  # type: ignore[misc]
        """Writes help as click does, in the user's language."""

        def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
            super().write_usage(prog, args, _("Usage: ") if prefix is None else prefix)

        def write_heading(self, heading: str) -> None:
            super().write_heading(_(heading) if heading in _HEADINGS else heading)

        def write_dl(self, rows: Iterable[tuple[str, str]], *args: Any, **kwargs: Any) -> None:
            super().write_dl([(name, _in_language(text)) for name, text in rows], *args, **kwargs)

    return Formatter


def _in_language(text: str) -> str:
    """Translate what click and typer add to the help of an option."""
    if text == _HELP:
        return _(_HELP)
    text = re.sub(r"\[required\]$", lambda __: _(_REQUIRED), text)
    return re.sub(
        r"\[default: (.*)\]$", lambda found: f"[{_(_DEFAULT).format(value=found[1])}]", text
    )


def unknown_command(name: str, known: Iterable[str]) -> str:
    """Say that there is no such command, and which are near."""
    return _("no command '{name}'.").format(name=name) + _near(
        difflib.get_close_matches(name, known)
    )


def _fault_of(cause: object) -> "ErrorDetails | None":
    """Return what pydantic, by which typer reads numbers, found wrong; None if it was not that."""
    from pydantic import ValidationError  # not for --help, which is to be there at once

    return cause.errors()[0] if isinstance(cause, ValidationError) else None


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
    if re.fullmatch(r"Option '.*' requires an argument", message):
        return _("{flag} is given with nothing behind it: say what it is, or leave it out.").format(
            flag=error.option_name
        )
    fault = _fault_of(error.__cause__)
    if param is not None and fault is not None:
        from bertfit.validation import reason

        return _("{flag} {value}: {reason}.").format(
            flag=_name(param), value=fault["input"], reason=reason(fault)
        )
    return f"{_name(param)}: {message}." if param is not None else f"{message}."


def _near(names: Iterable[str] | None) -> str:
    found = sorted(names or ())
    return " " + _("Did you mean {names}?").format(names=", ".join(found)) if found else ""


def _name(param: Any) -> str:
    option: str = param.opts[0]
    return option if option.startswith("-") else option.upper()
