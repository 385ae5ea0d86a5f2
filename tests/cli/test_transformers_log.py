"""What transformers warns of comes once with an answer, and never before an error."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FIELDS = {
    "model_type": "bert",
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 5000,  # of which transformers warns
}


def bertfit(command: str, folder: Path, **changes: object) -> subprocess.CompletedProcess[str]:
    (folder / "config.json").write_text(json.dumps({**FIELDS, **changes}))
    argv = [command, "--model", str(folder), "--gpu", "rtx-3050-4gb"]
    return subprocess.run(
        [sys.executable, "-m", "bertfit", *argv], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", ["estimate", "capacity", "plan"])
@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "nystromformer", "segment_means_seq_len": 7},  # stops in its first step
        {"pad_token_id": 2000},  # no model can be built
    ],
)
def test_an_error_is_one_line(command: str, changes: dict[str, object], tmp_path: Path) -> None:
    done = bertfit(command, tmp_path, **changes)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_with_an_answer_each_warning_comes_once(tmp_path: Path) -> None:
    done = bertfit("estimate", tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("bos_token_id") == 1
