"""Where the shared data lie, and how a test that needs them skips."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared(*parts: str) -> Path:
    """Return a path below the shared folder; skip the calling test where it is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"shared data not here: {Path(*parts)}")
    return path
