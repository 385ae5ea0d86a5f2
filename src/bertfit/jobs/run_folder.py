"""The run folder: the only contract between jobs and whoever reads them afterwards.

```
job.yaml      what was asked, every setting
steps.jsonl   one StepRecord a line
memory.jsonl  one MemorySample a line
scores.json   dev scores of every evaluation, and the best
model/        the best model, an ordinary Hugging Face checkpoint
```
"""

import dataclasses
import json
import shutil
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from bertfit.config import JobConfig
from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.types import MemorySample, Scores, StepRecord


class RunFolder:
    """Writes the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = path / "model"
        self._steps: IO[str] | None = None
        self._samples: IO[str] | None = None

    @staticmethod
    def check(path: Path, job: JobConfig) -> None:
        """Refuse a folder that cannot take the run, before any work is done.

        Raises:
            ConfigError: it holds something already and `overwrite` was not asked, or it is no run.
        """
        if path.exists() and not path.is_dir():
            raise ConfigError(
                _("--output-dir {path}: is a file. Name another folder.").format(path=path)
            )
        if path.is_dir() and any(path.iterdir()):
            if not job.overwrite:
                raise ConfigError(
                    _(
                        "--output-dir {path}: is not empty. Name another folder, or say "
                        "--overwrite to replace the run in it."
                    ).format(path=path)
                )
            if not (path / "job.yaml").is_file():
                raise ConfigError(
                    _(
                        "--output-dir {path}: holds files that are no run of bertfit, so "
                        "--overwrite does not touch it. Name another folder."
                    ).format(path=path)
                )

    @classmethod
    def create(cls, path: Path, job: JobConfig) -> Self:
        """Make the folder, empty it of an older run, and write `job.yaml`.

        Raises:
            ConfigError: as `check`, or it cannot be written.
        """
        import yaml

        cls.check(path, job)
        if path.is_dir():
            for name in ("job.yaml", "steps.jsonl", "memory.jsonl", "scores.json"):
                (path / name).unlink(missing_ok=True)
            for name in ("model", "model.new", "model.old"):
                shutil.rmtree(path / name, ignore_errors=True)
        try:
            path.mkdir(parents=True, exist_ok=True)
            asked = job.model_dump(mode="json", exclude_none=True)
            text = yaml.safe_dump(asked, allow_unicode=True, sort_keys=False)
            (path / "job.yaml").write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                _("--output-dir {path}: cannot be written ({reason}).").format(
                    path=path, reason=error.strerror
                )
            ) from None
        return cls(path)

    def __enter__(self) -> Self:
        self._steps = (self.path / "steps.jsonl").open("w", encoding="utf-8")
        self._samples = (self.path / "memory.jsonl").open("w", encoding="utf-8")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in (self._steps, self._samples):
            if file is not None:
                file.close()

    def add_steps(self, records: list[StepRecord]) -> None:
        """Append records to `steps.jsonl`."""
        assert self._steps is not None
        for record in records:
            self._steps.write(json.dumps(dataclasses.asdict(record)) + "\n")
        self._steps.flush()

    def add_sample(self, sample: MemorySample) -> None:
        """Append a sample to `memory.jsonl`."""
        assert self._samples is not None
        self._samples.write(json.dumps(dataclasses.asdict(sample)) + "\n")
        self._samples.flush()

    def write_scores(self, evaluations: list[dict[str, object]], best: Scores) -> None:
        """Replace `scores.json`: every evaluation in short, the best one whole."""
        document = {"evaluations": evaluations, "best": dataclasses.asdict(best)}
        text = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
        new = self.path / "scores.json.new"
        new.write_text(text, encoding="utf-8")
        new.replace(self.path / "scores.json")


def default_folder(job: JobConfig) -> Path:
    """Return `runs/<data>-<model>`, with a number behind it where that is taken."""
    model = Path(job.model).name or "model"
    folder = Path("runs") / f"{job.train_file[0].name.split('.')[0]}-{model}"
    if job.overwrite:
        return folder
    number = 1
    while (candidate := folder if number == 1 else Path(f"{folder}-{number}")).exists():
        number += 1
    return candidate
