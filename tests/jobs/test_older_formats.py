"""What older versions of bertfit wrote is read: a model, and a run that goes on."""

import json
import shutil
from pathlib import Path

import pytest

import bertfit
from bertfit.config import job_config
from bertfit.jobs.checkpoints import FORMAT_VERSION, CheckpointStore
from bertfit.jobs.train import train
from bertfit.models import tagger
from fixtures.make_fixtures import HERE, JOB, STOPPED_AT

FORMATS = sorted(HERE.glob("format-*"))


def test_every_format_so_far_has_its_fixture_and_none_is_large() -> None:
    assert [int(folder.name.partition("-")[2]) for folder in FORMATS] == list(
        range(1, max(FORMAT_VERSION, tagger.FORMAT_VERSION) + 1)
    )
    for folder in FORMATS:
        assert sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) < 100_000


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
def test_a_model_of_an_older_format_answers_as_it_did(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    found = bertfit.load(folder / "run" / "model", device="cpu").entities(expected)
    for text, entities in zip(expected, found, strict=True):
        assert [[e.start, e.end, e.label] for e in entities] == expected[text], text
    assert any(expected.values())


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
def test_a_run_of_an_older_format_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    checkpoint, passed = CheckpointStore(Path("run/checkpoints")).load_newest()
    assert checkpoint is not None and checkpoint.step == STOPPED_AT and not passed
    said: list[str] = []
    report = train(job_config(JOB), progress=False, say=said.append)
    assert any(f"Going on after step {STOPPED_AT} of {report.steps}." in line for line in said)
    rows = Path("run/steps.jsonl").read_text().splitlines()
    losses = [json.loads(row)["loss"] for row in rows]
    assert len(losses) == report.steps == STOPPED_AT + 1
    assert losses[-1] < losses[0] / 2, "the weights are those that were learnt"
