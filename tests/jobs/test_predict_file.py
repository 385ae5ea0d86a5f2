"""From a file to a file: every format, counts, order, and going on after any kill."""

import gzip
import io
import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from bertfit.data.formats import ProblemLog, ReadOptions, read
from bertfit.errors import ConfigError, DataError, Interrupted
from bertfit.jobs.inputs import TextInput
from bertfit.jobs.predict import Predictor, load
from bertfit.jobs.predict_file import PredictJob, predict_file
from bertfit.jobs.stream_job import StreamReport
from bertfit.types import Example
from jobs.file_jobs import check_kill_at_every_write, check_random_kills, write_texts
from jobs.killing import on_writing_call
from jobs.tiny_taggers import save_tiny_tagger

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
NAMES = ("o.jsonl", "o.jsonl.gz", "o.conll", "o.csv", "o.parquet", "o.json", "o.doccano.jsonl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_tagger(tmp_path_factory.mktemp("tagger"), TAGS)


@pytest.fixture(scope="module")
def predictor(folder: Path) -> Predictor:
    # Small batches, so that a small input is many chunks.
    return load(str(folder), device="cpu", precision="fp32", batch_tokens=16)


def predict(
    predictor: Predictor, folder: Path, source: Path | str, output: Path, **job: object
) -> tuple[StreamReport, ProblemLog]:
    log = ProblemLog()
    options = job.pop("options", ReadOptions(format="text", on_error="skip"))
    report = predict_file(
        predictor,
        PredictJob(input=str(source), output=output, options=options, **job),  # type: ignore[arg-type]
        model_name=str(folder),
        progress=False,
        log=log,
    )
    return report, log


def found_in(path: Path) -> list[tuple[str, list[tuple[int, int, str]]]]:
    """Read an output back, whatever its format."""
    if "doccano" not in path.name and path.suffix == ".json":
        return [
            (
                task["data"]["text"],
                [
                    (
                        len(
                            task["data"]["text"]
                            .encode("utf-16-le")[: 2 * v["start"]]
                            .decode("utf-16-le")
                        ),
                        len(
                            task["data"]["text"]
                            .encode("utf-16-le")[: 2 * v["end"]]
                            .decode("utf-16-le")
                        ),
                        v["labels"][0],
                    )
                    for v in (result["value"] for result in task["predictions"][0]["result"])
                ],
            )
            for task in json.loads(path.read_text(encoding="utf-8"))
        ]
    return [
        (e.text, [(x.start, x.end, x.label) for x in e.entities or ()])
        for e in read(path, ReadOptions(offsets="code-points"))
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_holds_every_text_in_order(
    predictor: Predictor, folder: Path, tmp_path: Path, name: str
) -> None:
    texts = write_texts(tmp_path / "in.txt", 120)
    report, log = predict(predictor, folder, tmp_path / "in.txt", tmp_path / name)
    expected = [[(e.start, e.end, e.label) for e in es] for es in predictor.entities(texts)]
    assert found_in(tmp_path / name) == list(zip(texts, expected, strict=True))
    assert (report.num_read, report.num_written, report.num_left_out) == (120, 120, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["in.txt", name])
    assert not log.problems


def test_json_lines_have_surface_score_and_what_came_along(
    predictor: Predictor, folder: Path, tmp_path: Path
) -> None:
    record = {
        "id": "x7",
        "text": "ab 北京 cd",
        "topic": 3,
        "entities": [{"start": 0, "end": 2, "label": "OLD"}],
    }
    (tmp_path / "in.jsonl").write_text(json.dumps(record) + "\n")
    options = ReadOptions(on_error="skip")
    predict(predictor, folder, tmp_path / "in.jsonl", tmp_path / "o.jsonl", options=options)
    (line,) = (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()
    written = json.loads(line)
    assert (written["id"], written["text"], written["topic"]) == ("x7", record["text"], 3)
    assert written["entities"] and "label" not in written
    for entity in written["entities"]:
        assert entity["text"] == written["text"][entity["start"] : entity["end"]]
        assert 0 < entity["score"] <= 1 and entity["label"] in ("PER", "LOC")


def test_a_bad_record_is_reported_and_shifts_nothing(
    predictor: Predictor, folder: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    lines = [json.dumps({"text": f"text {i} 北京"}) for i in range(50)]
    lines[7], lines[20], lines[21] = '{"text": ', "{}", '{"text": 4}'
    source.write_text("\n".join(lines) + "\n")
    options = ReadOptions(on_error="skip")
    report, log = predict(predictor, folder, source, tmp_path / "o.jsonl", options=options)
    texts = [text for text, __ in found_in(tmp_path / "o.jsonl")]
    assert texts == [f"text {i} 北京" for i in range(50) if i not in (7, 20, 21)]
    assert report.num_written + report.num_left_out + report.num_unreadable == 50
    assert {problem.line for problem in log.problems} == {8, 21, 22}


def test_a_text_the_model_cannot_take_is_left_out_and_counted(folder: Path, tmp_path: Path) -> None:
    import torch

    from bertfit.types import Batch

    predictor = load(str(folder), device="cpu", precision="fp32", batch_tokens=64)
    inner = predictor.forward

    def small(batch: Batch) -> torch.Tensor:
        if batch.num_tokens > 20:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return inner(batch)

    predictor.forward = small
    (tmp_path / "in.txt").write_text("ab\n" + "a b c d e " * 4 + "\ncd\n")
    report, log = predict(predictor, folder, tmp_path / "in.txt", tmp_path / "o.jsonl")
    assert (report.num_read, report.num_written, report.num_left_out) == (3, 2, 1)
    assert str(log.problems[0]).startswith(f"{tmp_path / 'in.txt'}:2: a window of ")


def test_an_output_that_exists_is_not_replaced_without_a_word(
    predictor: Predictor, folder: Path, tmp_path: Path
) -> None:
    write_texts(tmp_path / "in.txt", 5)
    (tmp_path / "o.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match="overwrite"):
        predict(predictor, folder, tmp_path / "in.txt", tmp_path / "o.jsonl")
    assert (tmp_path / "o.jsonl").read_text() == "mine"
    predict(predictor, folder, tmp_path / "in.txt", tmp_path / "o.jsonl", overwrite=True)
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 5


def test_the_input_is_never_the_output(predictor: Predictor, folder: Path, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "in.txt", 5)
    (tmp_path / "link.txt").symlink_to(tmp_path / "in.txt")
    with pytest.raises(ConfigError, match="is the input itself"):
        predict(predictor, folder, tmp_path / "in.txt", tmp_path / "link.txt", overwrite=True)
    assert (tmp_path / "in.txt").read_text().splitlines() == texts


@pytest.mark.parametrize("name", ["out", "o.docx", "o.parquet.gz"])
def test_a_name_that_says_no_format_is_refused(
    predictor: Predictor, folder: Path, tmp_path: Path, name: str
) -> None:
    write_texts(tmp_path / "in.txt", 5)
    with pytest.raises(ConfigError):
        predict(predictor, folder, tmp_path / "in.txt", tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_no_entity_at_all_and_one_text_are_whole_files(
    predictor: Predictor, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text(".\n")
    for name in NAMES:
        predict(predictor, folder, tmp_path / "in.txt", tmp_path / name)
        assert [text for text, __ in found_in(tmp_path / name)] == ["."]


# Inputs -----------------------------------------------------------------------------------------


def texts_of(name: str, stdin: bytes | None = None, **options: object) -> list[str]:
    log = ProblemLog()
    whole = bool(options.pop("whole_files", False))
    source = TextInput(name, ReadOptions(on_error="skip", **options), log, whole_files=whole)  # type: ignore[arg-type]
    if stdin is not None:
        return [e.text for e in source._from_stdin(io.BytesIO(stdin))]
    return [e.text for e in source.examples()]


def test_a_folder_is_read_file_by_file_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("b one\nb two\n")
    (tmp_path / "a.jsonl").write_text('{"text": "a one"}\n')
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "d.txt.gz").write_bytes(gzip.compress("北京 d\n".encode()))
    (tmp_path / ".hidden").write_text("no\n")
    assert texts_of(str(tmp_path)) == ["a one", "b one", "b two", "北京 d"]


def test_whole_files_are_one_text_each(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\xfd bad \xff\n")
    (tmp_path / "c.txt").write_text("three\r\n", newline="")
    assert texts_of(str(tmp_path), whole_files=True) == ["one\n\ntwo\n", "three\r\n"]


def test_an_unreadable_file_of_a_folder_is_reported_not_fatal(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.txt").write_text("")
    log = ProblemLog()
    source = TextInput(str(tmp_path), ReadOptions(on_error="skip"), log)
    assert [e.text for e in source.examples()] == ["one"]
    assert log.by_kind == Counter({"unreadable-file": 1})


@pytest.mark.parametrize("size", [10, 300_000])
def test_standard_input_may_be_text_json_or_packed(size: int) -> None:
    lines = [f"line {i} of text" for i in range(size // 10)]
    text = "".join(line + "\n" for line in lines).encode()
    records = "".join(json.dumps({"text": line}) + "\n" for line in lines).encode()
    assert texts_of("-", stdin=text, format="text") == lines
    assert texts_of("-", stdin=records) == lines
    assert texts_of("-", stdin=gzip.compress(text), format="text") == lines


def test_a_bad_line_of_standard_input_is_reported_with_its_number() -> None:
    log = ProblemLog()
    source = TextInput("-", ReadOptions(format="text", on_error="skip"), log)
    found = list(source._from_stdin(io.BytesIO(b"one\n\xffbad\n\nthree\r\nfour")))
    assert [(e.text, e.source.line if e.source else 0) for e in found] == [
        ("one", 1),
        ("three", 4),
        ("four", 5),
    ]
    assert [(p.line, p.kind) for p in log.problems] == [(2, "bad-utf8")]


def test_the_share_that_is_read_grows_to_one(tmp_path: Path) -> None:
    write_texts(tmp_path / "in.txt", 1000)
    source = TextInput(str(tmp_path / "in.txt"), ReadOptions(format="text"), ProblemLog())
    shares = [source.fraction(example) for example in source.examples()]
    assert all(share is not None for share in shares)
    numbers = [share or 0.0 for share in shares]
    assert numbers == sorted(numbers)
    assert abs(numbers[499] - 0.5) < 0.01 and abs(numbers[-1] - 1.0) < 0.01


def test_of_whole_files_the_share_is_that_of_the_files(tmp_path: Path) -> None:
    for number, size in enumerate((1000, 1, 1, 1)):
        (tmp_path / f"{number}.txt").write_text("ab\n" * size)
    source = TextInput(str(tmp_path), ReadOptions(), ProblemLog(), whole_files=True)
    assert [source.fraction(example) for example in source.examples()] == [0.25, 0.5, 0.75, 1.0]


def test_the_bar_ends_full_where_blank_lines_end_the_file(
    predictor: Predictor, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("\n\n".join(["ab cd"] * 9) + "\n" * 40)
    predict_file(
        predictor,
        PredictJob(input=str(tmp_path / "in.txt"), output=tmp_path / "o.jsonl"),
        model_name=str(folder),
        progress=True,
        log=ProblemLog(),
    )
    assert " 9/9 " in capsys.readouterr().err.split("\r")[-1]


# Going on ---------------------------------------------------------------------------------------


def undisturbed(predictor: Predictor, folder: Path, tmp_path: Path, name: str) -> bytes:
    predict(predictor, folder, tmp_path / "in.txt", tmp_path / "whole" / name)
    return content(tmp_path / "whole" / name)


def content(path: Path) -> bytes:
    """The bytes of an output; of Parquet its rows, since its footer depends on the row groups."""
    if path.suffix == ".parquet":
        return repr(found_in(path)).encode()
    return path.read_bytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_goes_on_to_the_very_same_output(
    predictor: Predictor, folder: Path, tmp_path: Path, name: str, kills: int
) -> None:
    source = tmp_path / "in.txt"
    write_texts(source, 300)
    check_random_kills(
        lambda output: predict(predictor, folder, source, output), content, tmp_path, name, kills
    )


@pytest.mark.parametrize("name", NAMES)
def test_killed_at_every_write_it_goes_on(
    predictor: Predictor, folder: Path, tmp_path: Path, name: str
) -> None:
    source = tmp_path / "in.txt"
    write_texts(source, 150)
    check_kill_at_every_write(
        lambda output: predict(predictor, folder, source, output), content, tmp_path, name
    )


def test_ctrl_c_finishes_the_batch_and_the_same_command_goes_on(
    predictor: Predictor, folder: Path, tmp_path: Path
) -> None:
    write_texts(tmp_path / "in.txt", 400)
    expected = undisturbed(predictor, folder, tmp_path, "o.jsonl")
    before = signal.getsignal(signal.SIGINT)  # ignored where a shell runs this in the background
    undo = on_writing_call(20, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(Interrupted, match=r"stopped after [\d,]+ texts; .*\.part") as caught:
            predict(predictor, folder, tmp_path / "in.txt", tmp_path / "o.jsonl")
    finally:
        undo()
    assert caught.value.exit_code == 75
    assert signal.getsignal(signal.SIGINT) is before
    written = (tmp_path / "o.jsonl.part").read_bytes()
    assert written and expected.startswith(written)
    report, __ = predict(predictor, folder, tmp_path / "in.txt", tmp_path / "o.jsonl")
    assert (tmp_path / "o.jsonl").read_bytes() == expected
    assert report.num_resumed == len(written.splitlines()) > 0


def interrupt(predictor: Predictor, folder: Path, tmp_path: Path) -> None:
    undo = on_writing_call(20, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(Interrupted):
            predict(predictor, folder, tmp_path / "in.txt", tmp_path / "o.jsonl")
    finally:
        undo()


def test_a_changed_input_does_not_go_on_with_old_parts(
    predictor: Predictor, folder: Path, tmp_path: Path
) -> None:
    write_texts(tmp_path / "in.txt", 400)
    interrupt(predictor, folder, tmp_path)
    write_texts(tmp_path / "in.txt", 30, seed=5)
    with pytest.raises(ConfigError, match=r"input changed.*--overwrite"):
        predict(predictor, folder, tmp_path / "in.txt", tmp_path / "o.jsonl")
    predict(predictor, folder, tmp_path / "in.txt", tmp_path / "o.jsonl", overwrite=True)
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 30


def test_other_decoding_does_not_go_on_with_old_parts(
    predictor: Predictor, folder: Path, tmp_path: Path
) -> None:
    write_texts(tmp_path / "in.txt", 400)
    interrupt(predictor, folder, tmp_path)
    other = load(str(folder), device="cpu", precision="fp32", batch_tokens=16, constrained=False)
    with pytest.raises(ConfigError, match=r"decoding changed.*--overwrite"):
        predict(other, folder, tmp_path / "in.txt", tmp_path / "o.jsonl")


def test_a_folder_of_one_format_is_known_again_by_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "brat"
    folder.mkdir()
    (folder / "a.txt").write_text("ab is here\n")
    (folder / "a.ann").write_text("T1\tPER 0 2\tab\n")

    def identity() -> str:
        return TextInput(str(folder), ReadOptions(), ProblemLog()).identity()

    before = identity()
    assert identity() == before
    (folder / "a.txt").write_text("ab is there\n")
    assert identity() != before


def test_a_part_that_was_cut_by_hand_is_refused(
    predictor: Predictor, folder: Path, tmp_path: Path
) -> None:
    write_texts(tmp_path / "in.txt", 400)
    interrupt(predictor, folder, tmp_path)
    os.truncate(tmp_path / "o.jsonl.part", 10)
    with pytest.raises(DataError, match="shorter than its journal"):
        predict(predictor, folder, tmp_path / "in.txt", tmp_path / "o.jsonl")


def test_two_processes_do_not_write_one_output(
    predictor: Predictor, folder: Path, tmp_path: Path
) -> None:
    fcntl = pytest.importorskip("fcntl")
    write_texts(tmp_path / "in.txt", 10)
    with (tmp_path / "o.jsonl.part").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process"):
            predict(predictor, folder, tmp_path / "in.txt", tmp_path / "o.jsonl")


def test_a_full_disk_is_one_line_and_can_be_gone_on_from(
    predictor: Predictor, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    write_texts(tmp_path / "in.txt", 400)
    expected = undisturbed(predictor, folder, tmp_path, "o.jsonl")
    calls = 0
    original = os.fsync

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="No space left on device"):
        predict(predictor, folder, tmp_path / "in.txt", tmp_path / "o.jsonl")
    predict(predictor, folder, tmp_path / "in.txt", tmp_path / "o.jsonl")
    assert (tmp_path / "o.jsonl").read_bytes() == expected


def test_examples_are_not_held(predictor: Predictor) -> None:
    """A stream without an end is read a chunk at a time."""
    read_so_far = 0

    def endless() -> object:
        nonlocal read_so_far
        while True:
            read_so_far += 1
            yield Example(id=str(read_so_far), text="我爱北京")

    stream = predictor.annotate(endless())  # type: ignore[arg-type]
    for __ in range(500):
        next(stream)
    assert read_so_far < 1000
