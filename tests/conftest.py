"""Settings of every test: no network, one thread, English messages."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# `make test` draws the same examples every time, so that a change is judged by what it changed;
# `make test-all` draws new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("new", deadline=None)
settings.load_profile(os.environ.get("BERTFIT_EXAMPLES", "same"))

# Sums are taken in the same order in every process, also in children that were forked.
os.environ.setdefault("OMP_NUM_THREADS", "1")
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
