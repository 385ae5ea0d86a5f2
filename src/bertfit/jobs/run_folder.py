"""The run folder: the only contract between jobs and whoever reads them afterwards.

```
job.yaml      what was asked, every setting
plan.json     the settings that were chosen on a card, and why
steps.jsonl   one StepRecord a line
memory.jsonl  one MemorySample a line
run.json      how far it is, and which process writes it; run.lock keeps others out
log.txt       what it said, if it runs in the background
checkpoints/  where it can be gone on with (see checkpoints.py)
scores.json   dev scores of every evaluation, and the best
model/        the best model, an ordinary Hugging Face checkpoint
```
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bertfit.config import JobConfig
from bertfit.errors import ConfigError
from bertfit.jobs.checkpoints import Disk
from bertfit.jobs.resume import is_same_command, is_unfinished, may_go_on
from bertfit.jobs.run_status import OWN_FILES, read_status
from bertfit.jobs.runs import refuse_at_work
from bertfit.language import _
from bertfit.types import MemorySample, Scores, StepRecord


class RunFolder:
    """Writes the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = path / "model"
        self._steps: _Lines | None = None
        self._samples: _Lines | None = None

    @staticmethod
    def check(path: Path, job: JobConfig) -> bool:
        """Refuse a folder that cannot take the run; nothing in it is touched.

        Returns:
            Whether it holds an unfinished run that may be this job, and is gone on with then.

        Raises:
            ConfigError: another process is at work in it; it holds something already and
                `overwrite` was not asked; or it is no run.
        """
        refuse_at_work(path)
        if path.exists() and not path.is_dir():
            raise ConfigError(
                _("--output-dir {path}: is a file. Name another folder.").format(path=path)
            )
        found = sorted(path.iterdir()) if path.is_dir() else []
        for each in found:
            if not (each.is_file() or each.is_dir()):
                raise ConfigError(
                    _(
                        "--output-dir {path}: holds {name}, which is neither a file nor a folder. "
                        "Remove it, or name another folder."
                    ).format(path=path, name=each.name)
                )
        if any(each.name not in OWN_FILES for each in found):
            if is_unfinished(path):
                return may_go_on(path, job)
            if not job.overwrite:
                raise ConfigError(_taken(path))
            if not (path / "job.yaml").is_file():
                raise ConfigError(
                    _(
                        "--output-dir {path}: holds files that are no run of bertfit, so "
                        "--overwrite does not touch it. Name another folder."
                    ).format(path=path)
                )
        return False

    @classmethod
    def announce(cls, path: Path, job: JobConfig) -> Path:
        """Leave a job where the process that will run it finds it; a run that is there stays whole.

        Returns:
            The file: `job.yaml`, or beside the `job.yaml` of the run that is there.

        Raises:
            ConfigError: as `check`, or it cannot be written.
        """
        cls.check(path, job)
        asked = path / "job.yaml"
        try:
            path.mkdir(parents=True, exist_ok=True)
            if asked.exists():
                return _write_new_job(path, job)
            cls.write_job(path, job)
        except OSError as error:
            raise _unwritable(path, error) from None
        return asked

    @classmethod
    def create(cls, path: Path, job: JobConfig) -> Self:
        """Make the folder, empty it of an older run, and write `job.yaml`.

        Raises:
            ConfigError: as `check`, or it cannot be written.
        """
        cls.check(path, job)
        try:
            path.mkdir(parents=True, exist_ok=True)
            # First: a folder with a job is known as a run, if a kill comes in between.
            cls.write_job(path, job)
            for name in ("plan.json", "steps.jsonl", "memory.jsonl", "scores.json"):
                (path / name).unlink(missing_ok=True)
        except OSError as error:
            raise _unwritable(path, error) from None
        for name in ("model", "model.new", "model.old", "checkpoints"):
            shutil.rmtree(path / name, ignore_errors=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path, job: JobConfig, step: int | None) -> Self:
        """Make the folder ready: anew, or for the steps after `step`.

        Raises:
            ConfigError: as `create` and `go_on`.
        """
        return cls.create(path, job) if step is None else cls.go_on(path, job, step)

    @classmethod
    def go_on(cls, path: Path, job: JobConfig, step: int) -> Self:
        """Make a folder ready for the steps after `step`: later ones will be made again.

        Raises:
            ConfigError: it cannot be written.
        """
        try:
            _keep_steps(path / "steps.jsonl", step)
            old = path / "model.old"
            if old.is_dir() and not (path / "model").is_dir():
                old.rename(path / "model")  # killed between two renames of a save
            cls.write_job(path, job)
        except OSError as error:
            raise _unwritable(path, error) from None
        return cls(path)

    @staticmethod
    def write_job(path: Path, job: JobConfig) -> None:
        """Write `job.yaml`."""
        _write_new_job(path, job).replace(path / "job.yaml")

    def __enter__(self) -> Self:
        self._steps = _Lines(self.path / "steps.jsonl")
        self._samples = _Lines(self.path / "memory.jsonl")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in (self._samples, self._steps):
            if file is not None:
                file.close()
        if error is None and self.refused is not None:
            raise _unwritable(self.path, self.refused)

    def add_steps(self, records: list[StepRecord]) -> None:
        """Append records to `steps.jsonl`; what the disk refuses is kept, see `refused`."""
        assert self._steps is not None
        self._steps.add(records)

    @property
    def refused(self) -> OSError | None:
        """Why the steps so far are not in their file; None while they are."""
        return None if self._steps is None else self._steps.refused

    def write_plan(self, plan: Mapping[str, object]) -> None:
        """Replace `plan.json`: the settings that were chosen, and why."""
        text = json.dumps(plan, ensure_ascii=False, indent=2) + "\n"
        new = self.path / "plan.json.new"
        new.write_text(text, encoding="utf-8")
        new.replace(self.path / "plan.json")

    def sync(self) -> None:
        """Have the steps on the disk, before a checkpoint says that they are; from any thread.

        Raises:
            OSError: they are not.
        """
        if self.refused is not None:
            raise self.refused
        steps = self.path / "steps.jsonl"
        # Somebody may have removed them: those to come are in a new file. Not with the folder.
        Disk().sync(steps if steps.exists() else self.path)

    def add_sample(self, sample: MemorySample) -> None:
        """Append a sample to `memory.jsonl`."""
        assert self._samples is not None
        self._samples.add([sample])

    def check_model(self, step: int) -> None:
        """See that the model that was saved is there at the end of the run.

        Raises:
            ConfigError: somebody removed it meanwhile.
        """
        if not (self.model / "config.json").is_file():
            raise ConfigError(
                _(
                    "{folder}: the model of step {step} was written there and removed while the "
                    "run was at work. Train again with --overwrite."
                ).format(folder=self.model, step=step)
            )

    def write_scores(self, evaluations: list[dict[str, object]], best: Scores) -> None:
        """Replace `scores.json`: every evaluation in short, the best one whole.

        Raises:
            ConfigError: it cannot be written.
        """
        document = {"evaluations": evaluations, "best": dataclasses.asdict(best)}
        text = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
        new = self.path / "scores.json.new"
        try:
            new.write_text(text, encoding="utf-8")
            new.replace(self.path / "scores.json")
        except OSError as error:
            raise _unwritable(self.path, error) from None


def _write_new_job(path: Path, job: JobConfig) -> Path:
    import yaml

    asked = job.model_dump(mode="json", exclude_none=True)
    text = yaml.safe_dump(asked, allow_unicode=True, sort_keys=False)
    new = path / "job.yaml.new"
    new.write_text(text, encoding="utf-8")
    return new


def _taken(path: Path) -> str:
    status = read_status(path)
    if status is not None and status.state == "finished":
        return _(
            "--output-dir {path}: is not empty: the run in it came to its end, and its model is "
            "in {model}. Name another folder, or say --overwrite to replace that run."
        ).format(path=path, model=path / "model")
    return _(
        "--output-dir {path}: is not empty. Name another folder, or say --overwrite to replace "
        "the run in it."
    ).format(path=path)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        _("--output-dir {path}: cannot be written ({reason}).").format(
            path=path, reason=error.strerror
        )
    )


class _Lines:
    """Appends records to a file, one a line; keeps what a full disk refuses and tries it again.

    Attributes:
        refused: why lines are kept; None while there are none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._kept = b""
        self.refused: OSError | None = None

    def add(self, records: Sequence[StepRecord | MemorySample]) -> None:
        lines = (json.dumps(dataclasses.asdict(record)) + "\n" for record in records)
        self._kept += "".join(lines).encode()
        try:
            if not self._path.exists():  # somebody removed it meanwhile: what comes is kept
                file = self._path.open("ab", buffering=0)
                self._file.close()
                self._file = file
            while self._kept:
                self._kept = self._kept[self._file.write(self._kept) :]
        except OSError as error:
            self.refused = error
        else:
            self.refused = None

    def close(self) -> None:
        self.add([])
        self._file.close()


def _keep_steps(path: Path, step: int) -> None:
    """Cut `steps.jsonl` behind a step; a line that a kill cut in two goes too."""
    kept = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            try:
                number = json.loads(line)["step"]
            except (ValueError, KeyError, TypeError):
                break
            if number > step or not line.endswith("\n"):
                break
            kept.append(line)
    new = path.with_name(path.name + ".new")
    new.write_text("".join(kept), encoding="utf-8")
    new.replace(path)


def default_folder(job: JobConfig) -> Path:
    """Return `runs/<data>-<model>`, with a number behind it where that is taken.

    The unfinished run of the same job is gone on with, so its folder is not taken; where it is at
    work, `RunFolder.check` says so.
    """
    model = Path(job.model).name or "model"
    folder = Path("runs") / f"{job.train_file[0].name.split('.')[0]}-{model}"
    if job.overwrite:
        return folder
    number = 1
    while True:
        candidate = folder if number == 1 else Path(f"{folder}-{number}")
        if not candidate.exists() or is_same_command(candidate, job):
            return candidate
        number += 1
