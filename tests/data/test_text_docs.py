import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("page", ["windows", "offsets", "scores"])
@pytest.mark.parametrize("suffix", [".md", ".zh-CN.md"])
def test_python_in_the_docs_prints_what_they_say(page: str, suffix: str) -> None:
    blocks = re.findall(
        r"```python\n(.*?)```", (DOCS / (page + suffix)).read_text(encoding="utf-8"), re.DOTALL
    )
    assert blocks
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(block, {})
        said = [line[2:] for line in block.splitlines() if line.startswith("# ")]
        assert printed.getvalue().splitlines() == said
