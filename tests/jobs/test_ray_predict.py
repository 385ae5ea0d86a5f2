"""Ray against one process: the same bytes, the same reports, and going on after a stop."""

import gzip
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from bertfit.data.formats import ProblemLog
from bertfit.errors import ConfigError
from bertfit.jobs.predict import Predictor, load
from bertfit.jobs.predict_file import PredictJob, predict_file
from bertfit.jobs.ray_predict import over_ray
from bertfit.jobs.stream_job import StreamReport
from jobs.test_predict import TAGS, texts
from jobs.tiny_taggers import save_tiny_tagger

pytestmark = [
    pytest.mark.slow,  # every process of Ray imports torch: minutes on two busy cores
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed here"),
    pytest.mark.filterwarnings("default"),  # Ray's own, and sockets it leaves to the collector
]

TOKENS = 32  # of a batch, so that a few hundred texts are many chunks


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_tagger(tmp_path_factory.mktemp("tagger"), TAGS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of more texts than a chunk holds, and a line that cannot be read."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "a.txt").write_text("\n".join(texts(300, seed=1)) + "\n")
    with gzip.open(folder / "b.jsonl.gz", "wt") as file:
        file.write('{"text": "abc 北京"}\n{"text": \n{"text": "上海 ab", "group": 3}\n')
    (folder / "c.txt").write_text("\n".join(texts(50, seed=2)) + "\n")
    return folder


@pytest.fixture(scope="module")
def one_worker() -> Iterator[None]:
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
    yield
    ray.shutdown()


def loading(model: str) -> partial[Predictor]:
    return partial(load, model, device="cpu", precision="fp32", batch_tokens=TOKENS)


def predict(
    model: str, source: Path, output: Path, spread: bool
) -> tuple[StreamReport, ProblemLog]:
    make = loading(model)
    job, log = PredictJob(input=str(source), output=output), ProblemLog()
    report = predict_file(
        make(),
        job,
        model_name=model,
        progress=False,
        log=log,
        elsewhere=over_ray(make, job, log) if spread else None,
    )
    return report, log


@pytest.mark.usefixtures("one_worker")
def test_output_and_reports_are_those_of_one_process(
    model: str, folder: Path, tmp_path: Path
) -> None:
    alone, alone_log = predict(model, folder, tmp_path / "alone.jsonl", False)
    spread, spread_log = predict(model, folder, tmp_path / "spread.jsonl", True)
    assert (tmp_path / "spread.jsonl").read_bytes() == (tmp_path / "alone.jsonl").read_bytes()
    assert spread == alone
    assert spread.num_unreadable == 1
    assert spread_log.problems == alone_log.problems
    assert spread_log.by_kind == alone_log.by_kind


@pytest.mark.usefixtures("one_worker")
def test_what_one_process_began_ray_ends(
    model: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(model, folder, tmp_path / "whole.jsonl", False)
    output = tmp_path / "out.jsonl"
    make = loading(model)
    predictor = make()
    tag = predictor.annotate_chunk
    calls = []

    def once(*arguments: object) -> object:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("the machine was taken away")
        return tag(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(predictor, "annotate_chunk", once)
    job = PredictJob(input=str(folder), output=output)
    with pytest.raises(RuntimeError, match="taken away"):
        predict_file(predictor, job, model_name=model, progress=False, log=ProblemLog())
    report, __ = predict(model, folder, output, True)
    assert 0 < report.num_resumed < report.num_read
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_standard_input_is_refused(model: str, tmp_path: Path) -> None:
    job = PredictJob(input="-", output=tmp_path / "o.jsonl")
    with pytest.raises(ConfigError, match="standard input"):
        over_ray(partial(load, model), job, ProblemLog())
