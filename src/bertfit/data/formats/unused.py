"""Flags of reading that change nothing for a file: told, so that none is dropped in silence."""

from collections.abc import Collection
from pathlib import Path

from bertfit.data.formats.options import ReadOptions
from bertfit.language import _
from bertfit.types import Problem

_FLAGS = {
    "scheme": "--file-scheme",
    "tag_column": "--tag-column",
    "separator": "--separator",
    "offsets": "--offsets",
}
WORD_OPTIONS = frozenset(("scheme", "tag_column"))
_RECORD_OPTIONS = WORD_OPTIONS | {"offsets"}
# Format -> the options that its reader looks at; tables and JSON find their own separators.
_LOOKED_AT: dict[str, Collection[str]] = {
    "columns": WORD_OPTIONS | {"separator"},
    "slash": ("scheme",),
    "pair": ("scheme",),
    "brat": ("offsets",),
    **dict.fromkeys(
        ("jsonl", "json", "csv", "parquet", "arrow", "datasets", "hub"), _RECORD_OPTIONS
    ),
}


def unused_by_format(options: ReadOptions, format: str, path: str | Path) -> Problem | None:
    """Make the note of the options that the reader of a format does not look at; None if none."""
    unused = _FLAGS.keys() - set(_LOOKED_AT.get(format, ()))
    return unused_note(
        options, unused, _("the file is read as {format}").format(format=format), path
    )


def unused_note(
    options: ReadOptions, unused: Collection[str], reason: str, path: str | Path
) -> Problem | None:
    """Make the note of the options among `unused` that were given; None if there is none."""
    flags = [
        flag
        for name, flag in _FLAGS.items()
        if name in unused and getattr(options, name) is not None
    ]
    if not flags:
        return None
    message = _("{flags}: changes nothing here, for {reason}. Leave it out.").format(
        flags=", ".join(flags), reason=reason
    )
    return Problem(path=str(path), line=0, kind="unused-flag", message=message, severity="note")
