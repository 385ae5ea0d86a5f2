"""benchmarks/memory_truth.py on a table of cases that it cannot all compare."""

import json
from pathlib import Path

import pytest
from tests.shared import shared


def test_a_case_that_cannot_be_compared_is_a_wrong_row_and_the_summary_still_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = json.loads(shared("data", "memory_truth", "cases.json").read_text())["cases"]
    good = table[3]
    cases = [
        {**good, "case": {**good["case"], "optimizer": "lion"}},
        good,
        {**good, "case": {**good["case"], "model": "no-such-model"}},
    ]
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"cases": cases}))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import memory_truth

    monkeypatch.setattr("sys.argv", ["memory_truth.py", "--cases", str(path), "--json"])
    memory_truth.main()
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert (summary["cases"], summary["failed"], summary["verdicts_wrong"]) == (3, 2, 2)
    assert summary["reserved"]["max_abs_error"] == summary["allocated"]["max_abs_error"] == 0
    failures = [line for line in err.splitlines() if "FAILED" in line]
    assert len(failures) == 2
    assert "lion" in failures[0] and "no-such-model" in failures[1]
