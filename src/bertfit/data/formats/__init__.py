"""Reading and writing every format people keep labelled text in: one door in, one door out.

The content decides what a file is; `ReadOptions` says what the content cannot.
"""

from bertfit.data.formats.options import OffsetUnit, OnError, ReadOptions
from bertfit.data.formats.problems import ProblemLog
from bertfit.data.formats.reading import FORMATS, read, sniff, task_of
from bertfit.data.formats.writing import WRITTEN_FORMATS, write

__all__ = [
    "FORMATS",
    "WRITTEN_FORMATS",
    "OffsetUnit",
    "OnError",
    "ProblemLog",
    "ReadOptions",
    "read",
    "sniff",
    "task_of",
    "write",
]
