"""Vectors in files: what is in them, what goes along, and going on after any kill."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from safetensors.numpy import load_file

from bertfit.data.formats import ProblemLog, ReadOptions
from bertfit.errors import ConfigError
from bertfit.jobs import vector_formats
from bertfit.jobs.embed import Embedder, load_encoder
from bertfit.jobs.embed_file import EmbedJob, embed_file
from bertfit.jobs.stream_job import StreamReport
from jobs.file_jobs import check_kill_at_every_write, check_random_kills, write_texts
from jobs.tiny_taggers import save_tiny_tagger

NAMES = ("o.parquet", "o.npy", "o.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_tagger(tmp_path_factory.mktemp("encoder"), ["O"])


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Embedder:
    # Small batches, so that a small input is many chunks.
    return load_encoder(str(folder), device="cpu", precision="fp32", batch_tokens=32)


def embed(
    embedder: Embedder, folder: Path, source: Path, output: Path, **job: object
) -> tuple[StreamReport, ProblemLog]:
    log = ProblemLog()
    is_text = source.suffix == ".txt"
    options = ReadOptions(format="text" if is_text else None, on_error="skip")
    report = embed_file(
        embedder,
        EmbedJob(input=str(source), output=output, options=options, **job),  # type: ignore[arg-type]
        model_name=str(folder),
        progress=False,
        log=log,
    )
    return report, log


def vectors_in(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        mapped = np.load(path, mmap_mode="r")
        assert isinstance(mapped, np.memmap)
        return np.array(mapped)
    if path.suffix == ".safetensors":
        return load_file(path)["embeddings"]
    table = pyarrow.parquet.read_table(path)
    return np.array(table["vector"].to_pylist(), dtype=np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_every_format_holds_the_vectors_in_order(
    embedder: Embedder, folder: Path, tmp_path: Path, name: str
) -> None:
    texts = write_texts(tmp_path / "in.txt", 70)
    report, log = embed(embedder, folder, tmp_path / "in.txt", tmp_path / name)
    expected = np.stack(list(embedder.embeddings(texts)))
    np.testing.assert_allclose(vectors_in(tmp_path / name), expected, atol=1e-6)
    assert (report.num_read, report.num_written) == (70, 70) and not log.problems
    if name != "o.parquet":
        rows = [json.loads(line) for line in (tmp_path / "o.rows.jsonl").read_text().splitlines()]
        assert [row["id"] for row in rows] == [f"in-{i}" for i in range(1, 71)]


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_half_the_size(
    embedder: Embedder, folder: Path, tmp_path: Path, name: str
) -> None:
    texts = write_texts(tmp_path / "in.txt", 20)
    embed(embedder, folder, tmp_path / "in.txt", tmp_path / name, dtype="fp16")
    found = vectors_in(tmp_path / name)
    expected = np.stack(list(embedder.embeddings(texts)))
    np.testing.assert_allclose(found.astype(np.float32), expected, atol=2e-3)
    if name == "o.npy":
        assert found.dtype == np.float16
        assert (tmp_path / name).stat().st_size == 128 + 20 * 32 * 2


def write_pairs(path: Path) -> list[dict[str, object]]:
    records: list[dict[str, object]] = [
        {"text": "abc is in 北京.", "e1": [0, 3], "e2": [10, 12], "relation": "in", "fold": 1},
        {"text": "[E1]ab[/E1] met [E2]cd[/E2]", "relation": "met", "fold": 2},
        {"text": "nothing here", "relation": "none", "fold": 3},
        {
            "text": "a b",
            "e1": {"start": 0, "end": 1},
            "e2": {"start": 2, "end": 3},
            "relation": "x",
            "fold": 4,
        },
        {"text": "a b", "e1": [0, 9], "e2": [2, 3], "relation": "x", "fold": 5},
    ]
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))
    return records


def test_entity_pairs_with_their_labels(embedder: Embedder, folder: Path, tmp_path: Path) -> None:
    write_pairs(tmp_path / "in.jsonl")
    for name, concatenate in (
        ("a.parquet", False),
        ("b.parquet", True),
        ("c.npy", True),
        ("d.npy", False),
    ):
        report, log = embed(
            embedder,
            folder,
            tmp_path / "in.jsonl",
            tmp_path / name,
            what="entities",
            concatenate=concatenate,
        )
        assert (report.num_read, report.num_written, report.num_left_out) == (5, 3, 2)
        assert [problem.line for problem in log.problems] == [3, 5]
    single = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pydict()
    assert single["relation"] == ["in", "met", "x"] and single["fold"] == [1, 2, 4]
    e1, e2 = np.array(single["e1_vector"]), np.array(single["e2_vector"])
    both = np.array(pyarrow.parquet.read_table(tmp_path / "b.parquet")["vector"].to_pylist())
    np.testing.assert_array_equal(np.concatenate([e1, e2], axis=1), both)
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), both)
    assert np.load(tmp_path / "d.npy").shape == (3, 2, 32)
    rows = [json.loads(line) for line in (tmp_path / "c.rows.jsonl").read_text().splitlines()]
    assert [(row["relation"], row["fold"]) for row in rows] == [("in", 1), ("met", 2), ("x", 4)]


def test_token_vectors_one_row_each(embedder: Embedder, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("ab 北\nc\n")
    embed(embedder, folder, tmp_path / "in.txt", tmp_path / "o.parquet", what="tokens")
    table = pyarrow.parquet.read_table(tmp_path / "o.parquet").to_pydict()
    assert table["id"] == ["in-1"] * 3 + ["in-2"]
    assert table["token"] == [0, 1, 2, 0]
    assert list(zip(table["start"], table["end"], strict=True)) == [(0, 1), (1, 2), (3, 4), (0, 1)]
    first = next(embedder.token_embeddings(["ab 北"]))
    np.testing.assert_allclose(np.array(table["vector"])[:3], first.vectors, atol=1e-6)
    embed(embedder, folder, tmp_path / "in.txt", tmp_path / "o.npy", what="tokens")
    assert np.load(tmp_path / "o.npy").shape == (4, 32)


def test_a_column_that_changes_its_kind_is_kept_or_null(
    embedder: Embedder, folder: Path, tmp_path: Path
) -> None:
    values = [1, 2.5, "three", True, None, [1], 10**30]
    lines = [json.dumps({"text": f"t{i}", "kind": v, "n": i}) for i, v in enumerate(values)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    embed(embedder, folder, tmp_path / "in.jsonl", tmp_path / "o.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "o.parquet").to_pydict()
    assert table["n"] == list(range(7)) and len(table["kind"]) == 7


def test_large_safetensors_are_shards(
    embedder: Embedder, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = write_texts(tmp_path / "in.txt", 25)
    form = vector_formats.ArrayFormat(".safetensors", (32,), "fp32", shard_bytes=10 * 32 * 4)
    monkeypatch.setattr("bertfit.jobs.embed_file._format", lambda *arguments: form)
    embed(embedder, folder, tmp_path / "in.txt", tmp_path / "o.safetensors")
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert names == [f"o-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    found = np.concatenate([load_file(tmp_path / name)["embeddings"] for name in names])
    np.testing.assert_allclose(found, np.stack(list(embedder.embeddings(texts))), atol=1e-6)


def test_a_name_of_another_kind_is_refused(
    embedder: Embedder, folder: Path, tmp_path: Path
) -> None:
    write_texts(tmp_path / "in.txt", 3)
    with pytest.raises(ConfigError, match=r"\.parquet, \.npy, \.safetensors"):
        embed(embedder, folder, tmp_path / "in.txt", tmp_path / "o.pt")


def content(path: Path) -> bytes:
    """Everything an output says; of Parquet its rows, since its footer depends on row groups."""
    if path.suffix == ".parquet":
        return repr(pyarrow.parquet.read_table(path).to_pydict()).encode()
    return path.read_bytes() + path.with_name(path.stem + ".rows.jsonl").read_bytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_goes_on(
    embedder: Embedder, folder: Path, tmp_path: Path, name: str, kills: int
) -> None:
    source = tmp_path / "in.txt"
    write_texts(source, 300)
    check_random_kills(
        lambda output: embed(embedder, folder, source, output), content, tmp_path, name, kills
    )


@pytest.mark.parametrize("name", NAMES)
def test_killed_at_every_write_it_goes_on(
    embedder: Embedder, folder: Path, tmp_path: Path, name: str
) -> None:
    source = tmp_path / "in.txt"
    write_texts(source, 120)
    check_kill_at_every_write(
        lambda output: embed(embedder, folder, source, output), content, tmp_path, name
    )
