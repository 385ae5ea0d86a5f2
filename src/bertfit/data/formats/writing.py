"""The door of all writers: examples go into a new file, whole or not at all."""

import gzip
import io
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO, cast

from bertfit.data.formats.losses import Losses
from bertfit.data.formats.problems import ProblemLog
from bertfit.data.formats.write_columns import write_columns
from bertfit.data.formats.write_spans import (
    write_brat,
    write_doccano,
    write_jsonl,
    write_label_studio,
)
from bertfit.data.formats.write_tables import write_csv, write_parquet
from bertfit.data.tags import SCHEMES, Scheme
from bertfit.errors import DataError
from bertfit.language import _
from bertfit.types import Example

WRITTEN_FORMATS = ("columns", "jsonl", "doccano", "label-studio", "brat", "csv", "parquet")
_ALIASES = {"conll": "columns", "labelstudio": "label-studio", "json": "label-studio"}
_TEXT_WRITERS: dict[str, Callable[[Iterable[Example], TextIO, Losses], int]] = {
    "jsonl": write_jsonl,
    "doccano": write_doccano,
    "label-studio": write_label_studio,
    "csv": write_csv,
}
_PATH_WRITERS: dict[str, Callable[[Iterable[Example], Path, Losses], int]] = {
    "brat": write_brat,
    "parquet": write_parquet,
}


def write(
    examples: Iterable[Example],
    path: str | Path,
    format: str,
    *,
    scheme: str = "bio",
    problems: ProblemLog | None = None,
    overwrite: bool = False,
) -> int:
    """Write examples to a file, or for brat to a folder.

    Reading it gives the same texts and entities; what the format cannot hold is noted in
    `problems` as `not-held`. The target appears only when all is written. `.gz` at the end of its
    name packs it.

    Args:
        examples: What to write.
        path: The target.
        format: One of `WRITTEN_FORMATS`, or `conll`.
        scheme: Tag scheme of columns, of `tags.SCHEMES` or `bio`.
        problems: Told of what the format cannot hold.
        overwrite: Whether a target that exists may be replaced.

    Returns:
        The number of records written.

    Raises:
        DataError: an unknown format or scheme, or a target that exists or cannot be written.
    """
    name = _ALIASES.get(format, format)
    _check(name, format, scheme)
    target = Path(path)
    if target.exists() and not overwrite:
        raise DataError(
            _("{path} exists. Give another name, or --overwrite to replace it.").format(path=target)
        )
    losses = Losses(name, ProblemLog() if problems is None else problems)
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if name == "brat":
            draft.mkdir()
        if name in _PATH_WRITERS:
            count = _PATH_WRITERS[name](examples, draft, losses)
        else:
            with _open_text(draft, packed=target.suffix == ".gz") as file:
                if name == "columns":
                    count = write_columns(examples, file, cast(Scheme, scheme), losses)
                else:
                    count = _TEXT_WRITERS[name](examples, file, losses)
        if overwrite and target.is_dir():
            shutil.rmtree(target)
        draft.replace(target)
    except OSError as error:
        raise DataError(
            _("{path} cannot be written: {reason}.").format(
                path=target, reason=error.strerror or error
            )
        ) from error
    finally:
        if draft.is_dir():
            shutil.rmtree(draft)
        draft.unlink(missing_ok=True)
    return count


def _check(name: str, format: str, scheme: str) -> None:
    if name not in WRITTEN_FORMATS:
        raise DataError(
            _("'{name}' cannot be written. Choose one of {formats}.").format(
                name=format, formats=", ".join(WRITTEN_FORMATS)
            )
        )
    if scheme not in (*SCHEMES, "bio"):
        raise DataError(
            _("there is no tag scheme '{scheme}'. Choose one of {schemes}.").format(
                scheme=scheme, schemes=", ".join(("bio", *SCHEMES))
            )
        )


def _open_text(path: Path, *, packed: bool) -> TextIO:
    """Open for writing UTF-8 whose line ends stay as they are."""
    if packed:
        return io.TextIOWrapper(gzip.open(path, "wb"), encoding="utf-8", newline="")
    return path.open("w", encoding="utf-8", newline="")
