"""`bertfit plan` as it is typed: its texts in both languages, its JSON, and its refusals."""

import json
import sys
from pathlib import Path

import pytest

from bertfit.cli import main

GOLDEN = Path(__file__).parent / "golden"
CONFIG = {
    "model_type": "bert",
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
}
ASKED = ["--model", "small", "--batch-size", "8", "--max-length", "256", "--num-texts", "800"]
CARD = ["--gpu", "rtx-3050-4gb"]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_plan_reads_as_it_did(language: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["plan", *ASKED, *CARD, "--budget", "340MiB", "--lang", language])
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()) + "\n"
    assert code == 0
    assert printed == (GOLDEN / f"plan.{language}.txt").read_text(encoding="utf-8")


def test_json_holds_the_whole_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *ASKED, *CARD, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    plan = document["plan"]
    assert document["card"]["name"] == "rtx-3050-4gb"
    assert plan["chosen"]["micro_batch_tokens"] == 8 * 256
    assert plan["estimate"]["required_bytes"] <= document["card"]["total_bytes"]
    assert plan["tokens_per_second"] > 0


def test_a_lever_is_explained_with_its_other_values(capsys: pytest.CaptureFixture[str]) -> None:
    lever = "activation-checkpointing"
    assert main(["plan", *ASKED, *CARD, "--explain", lever, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["value"] for row in told["rows"]] == [0, 1, 2, 3]
    needs = [row["required_bytes"] for row in told["rows"]]
    assert max(needs[1:]) < needs[0]  # the last layer saves nothing: it is computed at once
    rates = [row["tokens_per_second"] for row in told["rows"]]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(
    ("extra", "code", "told"),
    [
        (["--gpu", "rtx-3050-4gb", "--budget", "301MiB"], 3, "needs at least"),
        (["--gpu", "t4", "--precision", "bf16"], 2, "has no bfloat16"),
        (["--gpu", "t4", "--attn-kernel", "flash"], 2, "compute capability 8.0"),
        (["--gpu", "rtx-3050-4gb", "--allow", "magic"], 2, "--allow"),
        (["--gpu", "rtx-3050-4gb", "--explain", "magic"], 2, "there is no such lever"),
        (["--gpu", "no-such-card"], 2, "no card"),
        (["--device", "cpu"], 2, "--device cpu: a plan is for a card"),
        (["--device", "cuda:1"], 2, "--device cuda:1: a plan is for a card"),
        ([*CARD, "--device", "cpu"], 2, "and --device cpu: a plan is for one card"),
        ([*CARD, "--device", "sim:4GiB"], 2, "and --device sim:4GiB: a plan is for one card"),
        (["--device", "sim:no-such-card"], 2, "no card"),
        (
            ["--gpu", "rtx-3050-4gb", "--budget", "330MiB", "--micro-batch-tokens", "2048"],
            2,
            "--micro-batch-tokens 2048",
        ),
        (["--gpu", "rtx-3050-4gb", "--activation-checkpointing", "9"], 2, "has 3 layers"),
        (["--gpu", "rtx-3050-4gb", "--max-length", "9000"], 2, "position table"),
    ],
)
def test_what_cannot_be_is_said_with_its_exit_code(
    extra: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *ASKED, *extra]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert told in captured.err
    assert "Traceback" not in captured.err


def test_a_command_of_train_is_planned_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *ASKED, *CARD, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)["plan"]
    of_training = ["--learning-rate", "1e-4", "--output-dir", "x", "--overwrite"]
    device = ["--device", "sim:rtx-3050-4gb"]
    assert main(["plan", *ASKED, *device, *of_training, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"] == plain


def test_help_lists_what_changes_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    told = capsys.readouterr().out
    assert "--micro-batch-tokens" in told and "--gpu" in told
    assert "--learning-rate" not in told and "--output-dir" not in told


def test_a_refusal_does_not_need_what_it_could_offer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)  # as where it is not installed
    assert main(["plan", *ASKED, *CARD, "--budget", "310MiB"]) == 3
    told = capsys.readouterr().err
    assert "needs at least" in told
    assert "--allow lora" not in told
