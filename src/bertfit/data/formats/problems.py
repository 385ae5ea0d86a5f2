"""What was found wrong while reading: counted in full, kept in part.

The counts are complete and the kept records are bounded, so a file with a million faults costs no
more memory than one with twenty.
"""

from collections import Counter
from typing import Literal

from bertfit.errors import DataError
from bertfit.language import _
from bertfit.types import Problem

Severity = Literal["error", "repair", "note"]
SHOWN = 20


class ProblemLog:
    """Collects problems over one or more files.

    Attributes:
        records_read: Records that were handed out.
        records_dropped: Records that were refused or skipped.
        problems: The kept problems, in the order they were found.
        by_kind: How many places of each kind were found.
    """

    def __init__(self, keep: int = SHOWN) -> None:
        """Keep the first `keep` problems of every severity and kind."""
        self.records_read = 0
        self.records_dropped = 0
        self.problems: list[Problem] = []
        self.by_kind: Counter[str] = Counter()
        self._by_severity: Counter[str] = Counter()
        self._keep = keep
        self._kept: Counter[tuple[str, str]] = Counter()

    def add(self, problem: Problem) -> None:
        """Count a problem, and keep it if it is among the first of its severity and kind."""
        self.by_kind[problem.kind] += problem.count
        self._by_severity[problem.severity] += problem.count
        key = (problem.severity, problem.kind)
        self._kept[key] += 1
        if self._kept[key] <= self._keep:
            self.problems.append(problem)

    def count(self, severity: Severity) -> int:
        """Return how many places were found of one severity."""
        return self._by_severity[severity]

    def first(self, severity: Severity, number: int = SHOWN) -> list[Problem]:
        """Return the first kept problems of one severity."""
        return [found for found in self.problems if found.severity == severity][:number]

    def raise_errors(self) -> None:
        """Raise what was found, if an error was.

        Raises:
            DataError: with the first 20 errors, each with file and line, and the count.
        """
        total = self.count("error")
        if not total:
            return
        shown = self.first("error")
        lines = [str(problem) for problem in shown]
        if total > len(shown):
            lines.append(
                _("... {total} errors in all, the first {shown} shown.").format(
                    total=total, shown=len(shown)
                )
            )
        if self.records_dropped:
            lines.append(
                _(
                    "Fix the file, or leave out the {count} faulty records with --on-error skip."
                ).format(count=self.records_dropped)
            )
        raise DataError("\n".join(lines))
