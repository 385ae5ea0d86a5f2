"""Settings of every test: no network, one thread, English messages."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Runs that tests start are not entered among those of whoever runs the tests.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="bertfit-tests-")
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    from bertfit.language import use_language

    use_language("en")
    yield
    use_language(None)
