"""The tables of the pages on cards and models are those of the catalogues."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "make_tables.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_tables", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("chinese", [False, True])
@pytest.mark.parametrize("name", ["cards", "models"])
def test_a_page_shows_what_the_catalogue_holds(script, name: str, chinese: bool) -> None:
    build = {"cards": script.card_tables, "models": script.model_tables}[name]
    text = script.page(name, chinese).read_text(encoding="utf-8")
    assert script.filled(text, build(chinese)) == text, "run python docs/make_tables.py"


def test_a_page_without_its_marker_is_refused(script) -> None:
    with pytest.raises(ValueError, match="marker 'x'"):
        script.filled("no marker", {"x": "| a |"})
