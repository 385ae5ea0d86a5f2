"""The short form of `benchmarks/chaos.py`: real kills of a real process."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "chaos.py"


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="runs are forked")
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
