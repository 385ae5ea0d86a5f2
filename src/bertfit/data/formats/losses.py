"""What a format cannot hold, said instead of lost."""

from bertfit.data.formats.problems import ProblemLog
from bertfit.language import _
from bertfit.types import Entity, Example, Problem

LOSS = "not-held"


class Losses:
    """Notes for one output file what it does not hold of its input."""

    def __init__(self, format: str, log: ProblemLog) -> None:
        """Write into a log, in the name of a format."""
        self._format = format
        self._log = log

    def entity(self, example: Example, entity: Entity, reason: str) -> None:
        """Note an entity that reading back will not give again."""
        message = _("{format} cannot hold the {label} entity {start}-{end}: it {reason}.").format(
            format=self._format,
            label=entity.label,
            start=entity.start,
            end=entity.end,
            reason=reason,
        )
        self._add(example, message)

    def record(self, example: Example, reason: str) -> None:
        """Note a record that is left out."""
        message = _("{format} cannot hold {reason}; the record is left out.").format(
            format=self._format, reason=reason
        )
        self._add(example, message)

    def note(self, example: Example, reason: str) -> None:
        """Note a property that is lost, the entities being there."""
        message = _("{format} cannot say {reason}.").format(format=self._format, reason=reason)
        self._add(example, message)

    def _add(self, example: Example, message: str) -> None:
        source = example.source
        path, line = (source.path, source.line) if source else (example.id, 0)
        self._log.add(Problem(path=path, line=line, kind=LOSS, message=message, severity="note"))
