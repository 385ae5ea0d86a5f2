"""Laws 3 and 5 for whole runs: memory that ends in a step, in scoring, in saving; budgets."""

import io
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from safetensors.torch import load_file

from bertfit.config import JobConfig, job_config
from bertfit.engine import step as step_module
from bertfit.engine.fence import check_budget, check_floor, check_host, floor_bytes
from bertfit.engine.step import StepResult
from bertfit.engine.workplace import Workplace, choose_workplace
from bertfit.errors import BudgetError, ConfigError
from bertfit.jobs import train as train_module
from bertfit.jobs import train_memory, train_saving
from bertfit.jobs.checkpoints import Checkpoint, CheckpointStore
from bertfit.jobs.corpus import read_corpus
from bertfit.jobs.early_refusal import refuse_early
from bertfit.jobs.predict import Predictor
from bertfit.jobs.train import TrainReport, train
from bertfit.memory.device import resolve_device
from bertfit.memory.gauges import HostGauge, Reading
from bertfit.memory.monitor import Monitor
from bertfit.planning.levers import TrainSettings
from bertfit.planning.workplace import workplace_of
from bertfit.types import MemorySample
from bertfit.units import GIB, MIB, parse_bytes
from injection import Allocations
from jobs.corpora import write_corpus
from jobs.tiny_taggers import save_tiny_tagger

Step = Callable[..., StepResult]


def run(
    tmp_path: Path, cuts: list[list[int]] | None = None, **values: object
) -> tuple[TrainReport, list[str]]:
    said: list[str] = []
    settings: dict[str, object] = {
        "model": "tiny",
        "output_dir": tmp_path / "run",
        "num_train_epochs": 2,
        "learning_rate": 1e-3,
        "precision": "fp32",
        "device": "cpu",
        **values,
    }
    job = job_config(settings)
    return train(job, progress=False, say=said.append, cuts=cuts or ()), said


def count_reading(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count from now on the bytes that are read of a file, opening by opening."""
    opened: list[int] = []
    really_open = Path.open

    class Counted(io.FileIO):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.number = len(opened)
            opened.append(0)

        def readinto(self, buffer: Any) -> int:
            size = super().readinto(buffer)
            opened[self.number] += size
            return size

    def open_counted(self: Path, *arguments: Any, **options: Any) -> IO[Any]:
        if self != path:
            return really_open(self, *arguments, **options)
        return io.BufferedReader(Counted(str(self)))

    monkeypatch.setattr(Path, "open", open_counted)
    return opened


def rows(report: TrainReport, name: str = "steps.jsonl") -> list[dict[str, object]]:
    return [json.loads(line) for line in (report.output_dir / name).read_text().splitlines()]


def weights(report: TrainReport) -> dict[str, torch.Tensor]:
    return load_file(report.output_dir / "model" / "model.safetensors")


def with_step(monkeypatch: pytest.MonkeyPatch, wrap: Callable[[Step], Step]) -> None:
    """Put something round the step that the job runs."""
    original = train_module.workplace_of

    def wrapped(job: JobConfig, settings: TrainSettings | None = None) -> Workplace:
        place = original(job, settings)
        return replace(place, step=wrap(place.step))

    monkeypatch.setattr(train_module, "workplace_of", wrapped)


def test_law_3_a_run_that_ran_out_of_memory_is_repeated_from_its_cuts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 80)
    calls = []

    def failing(step: Step) -> Step:
        def run_step(*arguments: object, **options: object) -> StepResult:
            calls.append(1)
            with Allocations({90} if len(calls) in (2, 3, 7) else None):
                return step(*arguments, **options)

        return run_step

    with monkeypatch.context() as patch:
        with_step(patch, failing)
        disturbed, said = run(tmp_path / "a", train_file=data)
    steps = rows(disturbed)
    assert [row["oom_retries"] for row in steps][:5] == [0, 2, 0, 0, 1]
    assert disturbed.oom_retries == 3
    assert sum("the step was run again" in line for line in said) == 2
    cuts = [row["cuts"] for row in steps]
    repeated, __ = run(tmp_path / "b", cuts=cuts, train_file=data)  # type: ignore[arg-type]
    assert [row["loss"] for row in rows(repeated)] == [row["loss"] for row in steps]
    first, second = weights(disturbed), weights(repeated)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_memory_that_ends_in_scoring_gives_the_same_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 60)
    plain, __ = run(tmp_path / "a", train_file=data)
    failures = []
    original = Predictor.tag

    def tag(self: Predictor, stream: object) -> object:
        if len(failures) < 2:
            failures.append(self.batch_tokens)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(self, stream)  # type: ignore[arg-type]

    monkeypatch.setattr(Predictor, "tag", tag)
    disturbed, __ = run(tmp_path / "b", train_file=data)
    assert failures[1] == failures[0] // 2
    assert disturbed.scores == plain.scores


def test_memory_that_ends_in_saving_is_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 30)
    original, failures = train_saving.save_tagger, []

    def save(tagger: object, folder: Path) -> None:
        if len(failures) < limit:
            failures.append(1)
            raise MemoryError
        original(tagger, folder)  # type: ignore[arg-type]

    monkeypatch.setattr(train_saving, "save_tagger", save)
    limit = 1
    report, __ = run(tmp_path / "a", train_file=data)
    assert failures == [1] and weights(report)
    limit = 99
    with pytest.raises(BudgetError, match=r"model could not be saved.*MemoryError"):
        run(tmp_path / "b", train_file=data)


@pytest.mark.parametrize(
    ("place", "name", "error"),
    [
        (train_module, "read_corpus", MemoryError()),
        (train_module, "make_lessons", MemoryError()),
        (
            train_module,
            "starting_tagger",
            RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"),
        ),
    ],
)
def test_memory_that_ends_before_the_first_step_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: object, name: str, error: Exception
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(place, name, fail)
    data = write_corpus(tmp_path / "t.jsonl", 30)
    with pytest.raises(BudgetError, match=r"Memory ended in work .*(MemoryError|9 bytes)"):
        run(tmp_path, train_file=data)


def test_memory_that_ends_while_a_checkpoint_is_written_costs_that_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = CheckpointStore.save, []

    def save(store: CheckpointStore, checkpoint: Checkpoint) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise MemoryError
        original(store, checkpoint)

    monkeypatch.setattr(CheckpointStore, "save", save)
    data = write_corpus(tmp_path / "t.jsonl", 60)
    __, said = run(tmp_path, train_file=data, save_every="1")
    assert len(calls) > 1
    assert sum("no checkpoint of step 1 (MemoryError)" in line for line in said) == 1


def test_memory_that_ends_in_the_update_stops_and_says_what_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 60)
    calls = []

    def failing(step: Step) -> Step:
        def run_step(*arguments: object, **options: object) -> StepResult:
            calls.append(1)
            result = step(*arguments, **options)
            if len(calls) == 6:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return result

        return run_step

    with_step(monkeypatch, failing)
    with pytest.raises(BudgetError, match=r"Step 6: memory ended while .* The model of step 4 is"):
        run(tmp_path, train_file=data)
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("budget", "message"),
    [("3 parsecs", "not a size"), ("0", "above zero"), ("-1GiB", "not a size")],
)
def test_a_budget_that_is_no_size_is_refused_with_all_other_faults(
    tmp_path: Path, budget: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        job_config({"model": "m", "train_file": "x", "budget": budget, "batch_size": 0})
    assert "2 settings are wrong" in str(caught.value)


def test_a_budget_above_the_card_or_below_its_context_is_refused() -> None:
    card = {"total_bytes": 4 * GIB, "context_bytes": GIB // 3, "name": "RTX 3050"}
    check_budget(4 * GIB, **card)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"5\.00 GiB: RTX 3050 has 4\.00 GiB"):
        check_budget(5 * GIB, **card)  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match="context of RTX 3050 alone takes 341 MiB"):
        check_budget(GIB // 4, **card)  # type: ignore[arg-type]


def test_the_floor_counts_weights_gradients_moments_and_copies() -> None:
    model = torch.nn.Linear(10, 10, bias=False)
    assert floor_bytes(model, "fp32") == 100 * 4 * 4
    assert floor_bytes(model, "bf16") == 100 * 4 * 4 + 200
    model.requires_grad_(False)
    assert floor_bytes(model, "fp32") == 400


def test_a_budget_below_the_floor_is_refused_with_the_floor(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match=r"context 300 MiB, so 1\.27 GiB is the least"):
        check_floor(GIB, 1000 << 20, 300 << 20)
    data = write_corpus(tmp_path / "t.jsonl", 60)
    with pytest.raises(BudgetError, match=r"state take \S+ MiB, so \S+ MiB is the least"):
        run(tmp_path, train_file=data, budget="1MiB")
    with pytest.raises(ConfigError, match=r"--budget 1024\.00 GiB: cpu has"):
        run(tmp_path, train_file=data, budget="1TiB")


def test_a_budget_that_the_weights_alone_exceed_is_refused_before_the_data_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 30)
    model = run(tmp_path, train_file=data, num_train_epochs=1)[0].output_dir / "model"
    read: list[object] = []
    monkeypatch.setattr(train_module, "read_corpus", lambda *arguments: read.append(arguments))
    budget = str(resolve_device("4GiB").context_bytes + 1000)
    with pytest.raises(BudgetError, match=r"weights alone take .* and the CUDA context 300 MiB"):
        run(tmp_path / "b", train_file=data, model=str(model), device="sim:4GiB", budget=budget)
    assert not read


def test_a_budget_below_the_floor_is_refused_before_the_data_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_tiny_tagger(tmp_path / "m", ("O", "B-PER"), positions=512)
    data = write_corpus(tmp_path / "t.jsonl", 60_000)
    opened = count_reading(data, monkeypatch)
    job = {"train_file": data, "model": str(model), "precision": None}
    budget = str(resolve_device("4GiB").context_bytes + 20 * MIB)
    with pytest.raises(BudgetError, match=r"of \d+ tokens needs at least \d+ MiB of") as caught:
        run(tmp_path, **job, device="sim:4GiB", budget=budget)
    assert sum(opened) < data.stat().st_size, "the first texts were enough"
    assert str(caught.value).startswith("By the first 2000 texts, and all of them may need more: ")
    (floor,) = re.findall(r"at least (\d+ MiB) of", str(caught.value))
    enough = job_config({**job, "device": "sim:4GiB", "budget": floor})
    refuse_early(enough, workplace_of(enough), model)  # does not
    opened.clear()
    with pytest.raises(BudgetError, match="is the least, before any text"):
        run(tmp_path, **job, budget="64KiB")
    assert not opened, "on a processor the state alone says it"


def test_training_recognises_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = write_corpus(tmp_path / "a.jsonl", 1500)
    large = write_corpus(tmp_path / "b.jsonl", 60_000)
    opened = count_reading(small, monkeypatch)
    read_corpus(job_config({"model": "tiny", "train_file": small}), lambda message: None)
    assert len(opened) == 2 and sum(opened) < 1.1 * small.stat().st_size, "its kind, and all of it"
    opened = count_reading(large, monkeypatch)
    read_corpus(job_config({"model": "tiny", "train_file": large}), lambda message: None)
    assert len(opened) == 4 and sum(opened) < 1.5 * large.stat().st_size


def test_a_machine_without_the_memory_is_refused() -> None:
    check_host(5, available_bytes=5)
    with pytest.raises(BudgetError, match=r"has 1\.00 GiB of memory left.* at least 2\.00 GiB"):
        check_host(2 * GIB, available_bytes=GIB)


def test_the_copy_for_checkpoints_is_counted_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 30)
    asked: list[int] = []
    monkeypatch.setattr(train_memory, "check_host", asked.append)
    run(tmp_path / "a", train_file=data, save_every="never")
    report, __ = run(tmp_path / "b", train_file=data, save_every="100steps")
    folder = next((report.output_dir / "checkpoints").iterdir())
    saved = [load_file(folder / f"{name}.safetensors") for name in ("weights", "optimizer")]
    copied = sum(tensor.nbytes for tensors in saved for tensor in tensors.values())
    assert asked[1] - asked[0] == copied


def test_the_monitor_samples_a_run(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 60)
    report, __ = run(tmp_path, train_file=data)
    samples = rows(report, "memory.jsonl")
    assert len(samples) >= 2, "at the start and at the end"
    assert samples[-1]["step"] == report.steps
    assert all(sample["host_bytes"] > 10**7 for sample in samples)  # type: ignore[operator]
    assert {sample["card_total_bytes"] for sample in samples} == {0}


def test_the_monitor_costs_less_than_a_hundredth() -> None:
    gauge, count = HostGauge(), 200
    begun = time.thread_time()
    for __ in range(count):
        gauge.read()
    assert (time.thread_time() - begun) / count < 0.01, "one reading a second"


def test_the_monitor_stops_with_its_block_and_passes_on_what_it_reads() -> None:
    class Gauge(HostGauge):
        def read(self) -> Reading:
            return Reading(allocated_bytes=1, reserved_bytes=2, card_used_bytes=9, other_bytes=4)

    samples: list[MemorySample] = []
    with Monitor(Gauge(), samples.append, interval_seconds=0.01) as monitor:
        monitor.step = 3
        time.sleep(0.05)
    count = len(samples)
    time.sleep(0.03)
    assert len(samples) == count >= 3
    assert (samples[-1].step, samples[-1].reserved_bytes, samples[-1].other_bytes) == (3, 2, 4)


def test_one_warning_when_more_is_held_than_was_predicted() -> None:
    held = [90]

    class Gauge(HostGauge):
        def read(self) -> Reading:
            return Reading(peak_bytes=held[0])

    said: list[str] = []
    with Monitor(Gauge(), lambda sample: None, said.append, interval_seconds=0.01) as monitor:
        time.sleep(0.03)
        monitor.predicted_bytes = 100
        held[0] = 100
        time.sleep(0.03)
        assert not said, "as much as was predicted is no surprise"
        held[0] = 3 * GIB
        time.sleep(0.05)
    assert len(said) == 1
    assert "3.00 GiB" in said[0] and "100 B" in said[0]
    assert monitor.in_short() == "3.00 GiB, predicted 100 B"


def test_what_was_predicted_is_what_a_run_on_a_simulated_card_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    original = Monitor.in_short

    def in_short(self: Monitor) -> str:
        shown.append(original(self))
        return shown[-1]

    monkeypatch.setattr(Monitor, "in_short", in_short)
    data = write_corpus(tmp_path / "t.jsonl", 60)
    __, said = run(tmp_path, train_file=data, device="sim:4GiB", logging_steps=1)
    held, predicted = (parse_bytes(text) for text in shown[-1].replace("predicted", "").split(","))
    assert held <= predicted <= 1.02 * held
    assert not any("more than the" in line for line in said)


def test_the_step_of_a_job_is_the_step_that_is_traced() -> None:
    assert choose_workplace("cpu", None).step is step_module.train_step
