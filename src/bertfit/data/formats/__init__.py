"""Reading and writing every format people keep labelled text in: one door in, one door out.

The content decides what a file is; `ReadOptions` says what the content cannot.
"""

from bertfit.data.formats.options import FORMATS, OffsetUnit, OnError, ReadOptions
from bertfit.data.formats.problems import SHOWN, ProblemLog
from bertfit.data.formats.reading import Reading, open_data, read, sniff, task_of
from bertfit.data.formats.writing import WRITTEN_FORMATS, write

__all__ = [
    "FORMATS",
    "SHOWN",
    "WRITTEN_FORMATS",
    "OffsetUnit",
    "OnError",
    "ProblemLog",
    "ReadOptions",
    "Reading",
    "open_data",
    "read",
    "sniff",
    "task_of",
    "write",
]
