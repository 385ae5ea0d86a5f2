"""Flags made from the fields of a pydantic record, so that the two cannot drift apart."""

import inspect
from collections.abc import Callable, Collection, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from bertfit.errors import ConfigError
from bertfit.language import _


def with_fields(
    function: Callable[..., int],
    fields: Mapping[str, FieldInfo],
    unlisted: Collection[str] = (),
) -> Callable[..., int]:
    """Give a function one keyword flag per field, beside its own parameters.

    The function receives them as one dict, `fields`, with None for what was not given. Values are
    passed on as text: the record checks them, and reports all faults at once. A text of nothing is
    refused here: `--output-dir "$UNSET"` would be this folder, and is no default either. Those of
    `unlisted` are taken too, but `--help` does not show them.
    """
    own = [p for p in inspect.signature(function).parameters.values() if p.name != "fields"]
    flags = [_flag(name, field, name in unlisted) for name, field in fields.items()]

    def command(**values: object) -> int:
        for name in fields:
            _refuse_empty(name, values.get(name))
        given = {name: values.pop(name) or None for name in fields}
        for name, field in fields.items():
            if _is_bool(field) and values.get(name) is False:
                given[name] = False
        return function(**values, fields=given)

    command.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    command.__doc__ = function.__doc__
    return command


def _refuse_empty(name: str, value: object) -> None:
    if value == "" or (isinstance(value, list) and "" in value):
        raise ConfigError(
            _("{flag} is given with nothing behind it: say what it is, or leave it out.").format(
                flag="--" + name.replace("_", "-")
            )
        )


def _flag(name: str, field: FieldInfo, hidden: bool) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    text = _(field.description) if field.description else ""
    has_default = field.default not in (None, [], ()) and not field.is_required()
    if has_default and not _is_bool(field):
        text += f" [{field.default}]"
    if _is_bool(field):
        annotation: Any = Annotated[
            bool | None, typer.Option(flag, help=text, show_default=False, hidden=hidden)
        ]
    elif _is_list(field):
        annotation = Annotated[
            list[str] | None,
            typer.Option(
                flag, help=text, metavar=_metavar(field), show_default=False, hidden=hidden
            ),
        ]
    else:
        annotation = Annotated[
            str | None,
            typer.Option(
                flag, help=text, metavar=_metavar(field), show_default=False, hidden=hidden
            ),
        ]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _kinds(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Union, UnionType):
        return [kind for kind in get_args(annotation) if kind is not type(None)]
    return [annotation]


def _is_bool(field: FieldInfo) -> bool:
    return field.annotation is bool


def _is_list(field: FieldInfo) -> bool:
    return any(get_origin(kind) is list for kind in _kinds(field.annotation))


def _metavar(field: FieldInfo) -> str:
    kind = _kinds(field.annotation)[0]
    if get_origin(kind) is list:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    names = {"Path": "PATH", "int": "N", "float": "X", "bool": "true|false", "tuple": "N,N"}
    return names.get(getattr(kind, "__name__", ""), "TEXT")
