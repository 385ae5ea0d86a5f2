"""Records of what a user gave: every fault at once, in our words and the user's language."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from bertfit.errors import ConfigError
from bertfit.language import _

Record = TypeVar("Record", bound=BaseModel)


def validated(record: type[Record], values: Mapping[str, Any]) -> Record:
    """Make a record of values, or report every fault at once.

    Raises:
        ConfigError: with all faults in one message.
    """
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return record.model_validate(given)
    except ValidationError as error:
        raise ConfigError(_faults(error, record.model_fields)) from None


def _faults(error: ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    lines = []
    for fault in error.errors():
        name = str(fault["loc"][0]) if fault["loc"] else ""
        flag = "--" + name.replace("_", "-")
        if fault["type"] == "extra_forbidden":
            near = get_close_matches(name, fields, n=1)
            hint = _(" Did you mean {near}?").format(near=near[0]) if near else ""
            lines.append(_("{name}: there is no such setting.").format(name=name) + hint)
        elif fault["type"] == "missing":
            lines.append(_("{flag} is missing.").format(flag=flag))
        elif not name:
            lines.append(reason(fault) + ".")
        elif fault["type"] == "finite_number":
            lines.append(
                _("{flag} {value}: must be a finite number ({meaning}).").format(
                    flag=flag, value=fault["input"], meaning=_(fields[name].description or "")
                )
            )
        else:
            lines.append(
                _("{flag} {value}: {reason}.").format(
                    flag=flag, value=_as_given(flag, fault.get("input")), reason=reason(fault)
                )
            )
    if len(lines) == 1:
        return lines[0]
    return _("{count} settings are wrong:").format(count=len(lines)) + "".join(
        f"\n  {line}" for line in lines
    )


def _as_given(flag: str, value: object) -> object:
    """Write a list as the command line takes it: its flag again before each but the first."""
    return f" {flag} ".join(map(str, value)) if isinstance(value, list) and value else value


def reason(fault: ErrorDetails) -> str:
    """Say in our words, and so in the user's language, why pydantic refused a value."""
    limits = fault.get("ctx", {})
    kind = fault["type"]
    if kind == "literal_error":
        return _("use one of {allowed}").format(allowed=limits["expected"].replace(" or ", ", "))
    if kind.startswith("int_"):
        return _("must be a whole number")
    if kind.startswith("float_"):
        return _("must be a number")
    if kind.startswith("bool_"):
        return _("must be true or false")
    if kind in ("string_too_short", "too_short"):
        return _("must not be empty")
    for name, message in (
        ("gt", _("must be above {limit}")),
        ("ge", _("must be {limit} or more")),
        ("lt", _("must be below {limit}")),
        ("le", _("must be {limit} or less")),
    ):
        if name in limits:
            return message.format(limit=limits[name])
    return str(fault["msg"]).removeprefix("Value error, ").rstrip(".。")
