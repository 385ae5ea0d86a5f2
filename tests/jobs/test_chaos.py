"""The short form of `benchmarks/chaos.py`: real kills of a real process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "chaos.py"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are forked")


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import chaos

    yield chaos
    del sys.modules["chaos"]


def test_runs_killed_at_random_moments_end_bit_equal() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills", "2", "--signals", "1", "--texts", "40"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 bit-equal" in done.stdout and "1 bit-equal" in done.stdout


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_killed_after_its_end_is_whole_with_one_command(
    chaos: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: signal.Signals
) -> None:
    # The process of a run lives on for some milliseconds after it wrote that it has ended.
    data, output = tmp_path / "train.jsonl", tmp_path / "run"
    chaos.write_corpus(data, 20)
    exit_now = os._exit

    def linger(code: int) -> None:
        time.sleep(60)
        exit_now(code)

    monkeypatch.setattr(os, "_exit", linger)  # of the forked process: this one never calls it
    started = chaos.start(data, output, 1)
    while not chaos.has_ended(output):
        assert chaos.wait(started, 0.05) is None
    monkeypatch.setattr(chaos, "start", lambda *asked: started)
    found = chaos.disturb(data, output, kind, 0.0, 30.0)
    assert found is not None and found[0] == 1
    assert chaos.result(output)["scores"]
