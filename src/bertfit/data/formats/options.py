"""How a file is to be read, where looking at the content is not to decide."""

from dataclasses import dataclass
from typing import Literal

from bertfit.data.tags import SCHEMES
from bertfit.errors import DataError
from bertfit.language import _
from bertfit.types import Task

# The names of `--format`.
FORMATS = (
    "jsonl",
    "json",
    "columns",
    "conllu",
    "words",
    "slash",
    "pair",
    "csv",
    "parquet",
    "arrow",
    "brat",
    "datasets",
    "hub",
    "text",
)

OffsetUnit = Literal["code-points", "utf16", "bytes"]
OnError = Literal["refuse", "skip", "keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What the user said about a file; None means: look at the content.

    Attributes:
        format: One of `FORMATS`.
        scheme: Tag scheme of a column file (a name of `tags.SCHEMES`).
        tag_column: The column of the tags: its position from 1 (from -1 backwards), or its name.
        separator: What stands between columns; `tab`, `space` and `comma` may be written out.
        offsets: What the stored offsets count.
        on_error: `refuse` raises at the end of the file with all faults; `skip` drops the faulty
            records and counts them; `keep` yields them as stored (for counting, not for training).
        task: What to read, where a file holds more than one answer (CoNLL-U, segmentation).
    """

    format: str | None = None
    scheme: str | None = None
    tag_column: str | int | None = None
    separator: str | None = None
    offsets: OffsetUnit | None = None
    on_error: OnError = "refuse"
    task: Task | None = None


def refuse_unknown(options: ReadOptions) -> None:
    """Refuse a format or tag scheme that does not exist; None is the one that the content says.

    Raises:
        DataError: there is no such format or scheme.
    """
    name, scheme = options.format, options.scheme
    if name is not None and name not in FORMATS:
        raise DataError(
            _("there is no format '{name}'. Choose one of {formats}.").format(
                name=name, formats=", ".join(FORMATS)
            )
        )
    if scheme is not None and scheme not in (*SCHEMES, "bio"):
        raise DataError(
            _("there is no tag scheme '{scheme}'. Choose one of {schemes}.").format(
                scheme=scheme, schemes=", ".join(("bio", *SCHEMES))
            )
        )
