"""A stream of any length leaves nothing behind: not memory, not files, not threads."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from bertfit.data.formats import ProblemLog, ReadOptions
from bertfit.jobs.chunks import Chunk
from bertfit.jobs.embed import load_encoder
from bertfit.jobs.embed_file import EmbedJob, embed_file
from bertfit.jobs.predict import load
from bertfit.jobs.predict_file import PredictJob, predict_file
from jobs.tiny_taggers import save_tiny_tagger

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def short_texts(count: int, distinct: int) -> Iterator[str]:
    """Short sentences; the tokenizer remembers words, so new ones take memory, up to a bound."""
    for i in (number % distinct for number in range(count)):
        yield f"北京 {i:07d} a{i % 977}b 我爱 {i * 7919 % 104729}."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_tagger(tmp_path_factory.mktemp("tagger"), TAGS)


def run_job(
    folder: Path, source: Path, output: Path, what: str, sample: Callable[[int], None]
) -> None:
    """Tag or embed a file; `sample` is told the number of texts of every chunk before its work."""
    options = ReadOptions(format="text", on_error="skip")
    if what == "predict":
        predictor = load(str(folder), device="cpu", precision="fp32", batch_tokens=256)
        tell_of_chunks(predictor, "annotate_chunk", sample)
        predict_file(
            predictor,
            PredictJob(input=str(source), output=output, options=options),
            model_name=str(folder),
            progress=False,
            log=ProblemLog(),
        )
    else:
        embedder = load_encoder(str(folder), device="cpu", precision="fp32", batch_tokens=256)
        tell_of_chunks(embedder, "embed_chunk", sample)
        embed_file(
            embedder,
            EmbedJob(input=str(source), output=output, options=options),
            model_name=str(folder),
            progress=False,
            log=ProblemLog(),
        )


def tell_of_chunks(worker: object, method: str, sample: Callable[[int], None]) -> None:
    inner = getattr(worker, method)

    def watched(chunk: Chunk, *arguments: object) -> object:
        sample(len(chunk.examples))
        return inner(chunk, *arguments)

    setattr(worker, method, watched)


def grown_bytes(
    folder: Path, tmp_path: Path, count: int, warm_up: int, what: str, distinct: int
) -> int:
    """Run a job over a file and return how much memory it takes after the warm-up."""
    source = tmp_path / "in.txt"
    with source.open("w", encoding="utf-8") as file:
        file.writelines(text + "\n" for text in short_texts(count, distinct))
    process = psutil.Process()
    samples: list[tuple[int, int, int]] = []
    done = 0

    def sample(num_texts: int) -> None:
        nonlocal done
        done += num_texts
        if done > warm_up:
            samples.append((process.memory_info().rss, process.num_fds(), threading.active_count()))

    output = tmp_path / ("o.jsonl" if what == "predict" else "o.npy")
    run_job(folder, source, output, what, sample)
    assert done == count
    assert len(samples) >= 2
    assert len({threads for __, __, threads in samples}) == 1
    files = [fds for __, fds, __ in samples]
    assert max(files[len(files) // 2 :]) <= max(files[: len(files) // 2]) + 1, "files stay open"
    third = max(1, len(samples) // 3)
    first = sorted(rss for rss, __, __ in samples[:third])[third // 2]
    last = sorted(rss for rss, __, __ in samples[-third:])[third // 2]
    return last - first


@pytest.mark.parametrize("what", ["predict", "embed"])
def test_5000_short_sentences_leave_nothing_behind(folder: Path, tmp_path: Path, what: str) -> None:
    assert grown_bytes(folder, tmp_path, 5_000, 2_000, what, 1_000) < 12 << 20


@pytest.mark.slow
@pytest.mark.parametrize("what", ["predict", "embed"])
def test_100_000_short_sentences_take_under_a_megabyte(
    folder: Path, tmp_path: Path, what: str
) -> None:
    assert grown_bytes(folder, tmp_path, 160_000, 60_000, what, 160_000) < 1 << 20
