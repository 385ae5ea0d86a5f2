"""benchmarks/memory_truth.py on a table of cases that it cannot all compare."""

import json
from collections.abc import Callable
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
    assert memory_truth.main() == 1
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert (summary["cases"], summary["failed"], summary["verdicts_wrong"]) == (3, 2, 2)
    assert summary["reserved"]["max_abs_error"] == summary["allocated"]["max_abs_error"] == 0
    failures = [line for line in err.splitlines() if "FAILED" in line]
    assert len(failures) == 2
    assert "lion" in failures[0] and "no-such-model" in failures[1]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import memory_truth

    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["memory_truth.py", *arguments])
        return int(memory_truth.main())

    return run


def test_the_exit_code_says_whether_all_verdicts_are_right(
    benchmark: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.loads(shared("data", "memory_truth", "cases.json").read_text())["cases"][3]
    wrong = {**good, "result": {**good["result"], "oom": not good["result"]["oom"]}}
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"cases": [good, wrong]}))
    assert benchmark("--cases", str(path), "--only", "0") == 0
    capsys.readouterr()
    assert benchmark("--cases", str(path), "--json") == 1
    assert json.loads(capsys.readouterr().out)["verdicts_wrong"] == 1


@pytest.mark.parametrize("table", [[], ["--own"]])
@pytest.mark.parametrize("only", ["100000", "-1", "x", "1,,2", ""])
def test_a_number_that_is_no_case_is_one_line(
    benchmark: Callable[..., int],
    table: list[str],
    only: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shared("tools", "phantom_gpu", "models.py")
    with pytest.raises(SystemExit) as stopped:
        benchmark(*table, f"--only={only}")
    out, err = capsys.readouterr()
    assert (stopped.value.code, out, err.count("\n")) == (2, "", 1)
    assert f"--only {only}" in err and "from 0 to" in err


def test_memory_that_ends_at_the_first_tensor_is_a_right_verdict(
    benchmark: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.loads(shared("data", "memory_truth", "cases.json").read_text())["cases"][3]
    nothing = dict.fromkeys(("max_memory_reserved", "max_memory_allocated", "max_requested"), 0)
    none = {
        "case": {**good["case"], "memory": 300 << 20, "context": 299 << 20},
        "result": {**good["result"], **nothing, "oom": True},
    }
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"cases": [none]}))
    assert benchmark("--cases", str(path), "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["cases"], summary["failed"], summary["verdicts_wrong"]) == (1, 0, 0)
