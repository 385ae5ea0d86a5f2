"""How a file is to be read, where looking at the content is not to decide."""

from dataclasses import dataclass
from typing import Literal

from bertfit.types import Task

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
