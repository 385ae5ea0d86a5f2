"""A `job.yaml` that somebody changed by hand: one line that says what is wrong with it."""

import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from bertfit.config import job_config
from bertfit.errors import ConfigError
from bertfit.jobs.resume import resumed
from bertfit.jobs.run_folder import RunFolder
from bertfit.jobs.run_status import status_of, write_status


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"train_file": 5}, "--train-file 5"),
        ({"train_file": [[1]]}, "--train-file"),
        ({"train_file": None}, "--train-file is missing"),
        ({"model": None}, "--model is missing"),
        ({"model": ["a", {"b": 1}]}, "--model"),
        ({"eval_file": {"a": 1}}, "--eval-file"),
        ({"seed": "x"}, "--seed x"),
        ({"seed": datetime.date(2020, 1, 1)}, "--seed 2020-01-01"),
        ({"sed": 1}, "sed: there is no such setting"),
        ({7: 1}, "7"),
    ],
)
def test_a_job_file_that_was_changed_by_hand_is_one_line(
    tmp_path: Path, changes: dict[Any, object], reason: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    asked = job_config({"model": "tiny", "train_file": "a.jsonl", "output_dir": folder})
    RunFolder.write_job(folder, asked)
    write_status(folder, status_of(psutil.Process(), "stopped"))
    path = folder / "job.yaml"
    stored = {**yaml.safe_load(path.read_text()), **changes}
    path.write_text(yaml.safe_dump({k: v for k, v in stored.items() if v is not None}))
    with pytest.raises(ConfigError, match=f"--resume .*its job.yaml was changed: .*{reason}") as e:
        resumed(folder, {})
    assert "\n" not in str(e.value)
    with pytest.raises(ConfigError):  # as the same command again; of another job, or refused
        RunFolder.check(folder, asked.model_copy(update={"seed": 9}))
