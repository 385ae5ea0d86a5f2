from pathlib import Path

import pytest

from bertfit.config import JobConfig, job_config
from bertfit.errors import ConfigError


def test_all_faults_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        job_config(
            {
                "model": "m",
                "train_file": ["a.json"],
                "learning_rate": "fast",
                "batch_size": 0,
                "epochs": 3,
                "scheme": "bmes",
            }
        )
    text = str(caught.value)
    assert text.startswith("4 settings are wrong:")
    for part in ("--learning-rate fast", "--batch-size 0", "epochs: there is no", "--scheme bmes"):
        assert part in text


def test_an_unknown_setting_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="learning_rate"):
        job_config({"model": "m", "train_file": "a", "learing_rate": 1e-4})


def test_flags_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: m\ntrain-file: a.json\nlearning_rate: 3e-4\nseed: 7\n")
    job = job_config({"seed": "8", "batch_size": None}, path)
    assert (job.seed, job.learning_rate, job.batch_size) == (8, 3e-4, 16)
    assert job.train_file == [Path("a.json")]


@pytest.mark.parametrize(
    "text", ["- a\n- b\n", "a: [\n", "just words", "[" * 50_000, "seed: 2026-99-99\n", "\x00"]
)
def test_a_file_that_is_no_mapping_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"job\.yaml"):
        job_config({}, path)


def test_a_setting_that_stands_twice_in_a_file_is_refused_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: m\nseed: 1\nlearning-rate: 1e-4\nseed: 2\n\nlearning_rate: 2e-4\n")
    with pytest.raises(ConfigError) as caught:
        job_config({}, path)
    assert str(caught.value).splitlines() == [
        f"{path}: seed is set in lines 2, 4. Keep one of them.",
        f"{path}: learning_rate is set in lines 3, 6. Keep one of them.",
    ]


@pytest.mark.parametrize("name", ["max_grad_norm", "weight_decay", "warmup_steps"])
@pytest.mark.parametrize("value", ["inf", "nan", "-inf"])
def test_a_number_that_is_not_finite_is_refused_with_what_it_stands_for(
    name: str, value: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        job_config({"model": "m", "train_file": "a", name: value})
    flag = "--" + name.replace("_", "-")
    assert str(caught.value).startswith(f"{flag} {value}: must be a finite number (")
    assert name != "max_grad_norm" or "0: do not" in str(caught.value)


def test_missing_file_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read"):
        job_config({}, Path("nowhere.yaml"))


def test_overlap_of_more_than_half_a_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than half"):
        job_config({"model": "m", "train_file": "a", "max_length": 64, "overlap": 33})


def test_a_run_writes_back_what_it_was_asked(tmp_path: Path) -> None:
    import yaml

    job = job_config({"model": "m", "train_file": ["a", "b"], "labels": ["X", "Y"], "seed": 3})
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job.model_dump(mode="json", exclude_none=True)))
    assert job_config({}, path) == job
    assert isinstance(job, JobConfig)


def allowed(*names: str, **more: object) -> JobConfig:
    return job_config({"model": "m", "train_file": "a", "allow": list(names), **more})


def test_a_trade_off_is_a_name_with_or_without_a_number() -> None:
    job = allowed("lora", "first-layers=4", "8bit-adamw")
    assert job.trade_offs == {"lora": None, "first-layers": 4, "8bit-adamw": None}
    assert allowed().trade_offs == {}
    assert job_config({"model": "m", "train_file": "a", "allow": "lora"}).allow == ["lora"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["magic"], "--allow magic: use one of bf16-moments, 8bit-adamw, "),
        (["adafactor=3"], "adafactor takes no number"),
        (["lora=0"], "a whole one, 1 or more"),
        (["shorter-windows=4"], "8 or more"),
        (["first-layers=few"], "a whole one"),
        (["lora", "lora=4"], "listed twice"),
        (["8bit-adamw", "adafactor"], "8bit-adamw and adafactor exclude each other"),
        (["lora", "frozen-layers=2"], "lora and frozen-layers exclude each other"),
        (["smaller-model"], "chosen with --model"),
    ],
)
def test_a_trade_off_that_cannot_be_made_is_one_line(names: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        allowed(*names)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "values"), [("allow", ["lora", "frozen-embeddings"]), ("labels", ["PER", "PER"])]
)
def test_a_list_is_written_back_as_the_command_line_takes_it(name: str, values: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        job_config({"model": "m", "train_file": "a", name: values})
    assert str(caught.value).startswith(f"--{name} {values[0]} --{name} {values[1]}: ")


def test_windows_are_not_cut_by_two_settings() -> None:
    with pytest.raises(ConfigError, match="both say how long"):
        allowed("shorter-windows", max_length=64)
