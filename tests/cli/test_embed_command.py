"""`bertfit embed`: flags that change nothing are refused, not passed over."""

from pathlib import Path

import pytest

from bertfit.cli import main


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--concatenate"], "--concatenate: only with --vectors entities"),
        (["--vectors", "tokens", "--concatenate"], "--concatenate: only with"),
        (["--pooling", "marker"], "--pooling marker: only with"),
        (["--vectors", "tokens", "--pooling", "cls"], "--pooling cls: not with --vectors tokens"),
    ],
)
def test_a_flag_that_these_vectors_do_not_know_is_refused(
    tmp_path: Path, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("ab cd\n")
    to = ["--output", str(tmp_path / "o.npy")]
    assert main(["embed", "no/model", str(tmp_path / "in.txt"), *to, *flags]) == 2
    assert words in capsys.readouterr().err
