"""Where the shared data lie, and how a test that needs them skips."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared(*parts: str) -> Path:
    """Return a path below the shared folder; skip the calling test where it is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"shared data not here: {Path(*parts)}")
    return path


@contextmanager
def stub_runtime() -> Iterator[None]:
    """Let the benchmarks and the stub CUDA runtime be imported; skip where it cannot be built."""
    phantom = shared("tools", "phantom_gpu")
    if torch.version.cuda is None or shutil.which("gcc") is None:
        pytest.skip("the stub runtime needs the CUDA build of torch and gcc")
    before = list(sys.path)
    sys.path[:0] = [str(Path(__file__).parents[1] / "benchmarks"), str(phantom)]
    try:
        yield
    finally:
        sys.path[:] = before
