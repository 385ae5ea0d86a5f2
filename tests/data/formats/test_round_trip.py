"""What is written reads back the same, or the writer says what the format cannot hold."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertfit.data.formats import ProblemLog, ReadOptions, read, write
from bertfit.data.tags import SCHEMES
from bertfit.errors import DataError
from bertfit.types import Entity, Example
from shared import shared

NAMES = {
    "columns": "out.conll",
    "jsonl": "out.jsonl",
    "doccano": "doccano.jsonl",
    "label-studio": "tasks.json",
    "brat": "folder",
    "csv": "out.csv",
    "parquet": "out.parquet",
}
NASTY = "ab 9.-#/\"'[{,;|\\\n\t\r\u3000\u200b\ufeff\ufe0f\ufffd\ue000\u0301\u2028中国，ＡＢ😀👩\u200d👧🏽שלום"


@st.composite
def examples(draw: st.DrawFn) -> Example:
    text = draw(st.text(st.sampled_from(NASTY), min_size=1, max_size=30))
    spans = st.tuples(
        st.integers(0, len(text) - 1), st.integers(1, 8), st.sampled_from(["X", "a-b"])
    )
    entities = draw(st.none() | st.lists(spans, max_size=4))
    if entities is not None:
        entities = [
            Entity(start=start, end=min(start + size, len(text)), label=label)
            for start, size, label in entities
        ]
    return Example(id="1", text=text, entities=None if entities is None else tuple(entities))


def content(example: Example) -> tuple[str, list[Entity] | None]:
    return example.text, None if example.entities is None else sorted(example.entities)


def back(written: list[Example], format: str, folder: Path, log: ProblemLog) -> list[Example]:
    path = folder / NAMES[format]
    count = write(written, path, format, problems=log, overwrite=True)
    # Texts that are not annotated have no .ann, and are brat only by name.
    options = ReadOptions(format="brat" if format == "brat" else None)
    found = list(read(path, options)) if count else []
    assert len(found) == count
    return found


@pytest.mark.parametrize("format", ["jsonl", "doccano", "label-studio", "csv", "parquet"])
@settings(deadline=None, max_examples=60)
@given(batch=st.lists(examples(), min_size=1, max_size=4))
def test_formats_with_the_text_give_every_span_back(format: str, batch: list[Example]) -> None:
    log = ProblemLog()
    with tempfile.TemporaryDirectory() as folder:
        found = back(batch, format, Path(folder), log)
    assert [content(x) for x in found] == [content(x) for x in batch]
    assert not log.by_kind


@settings(deadline=None, max_examples=80)
@given(batch=st.lists(examples(), min_size=1, max_size=4))
def test_brat_gives_every_span_back_but_line_breaks_at_its_edge(batch: list[Example]) -> None:
    batch = [x for x in batch if x.entities is not None]
    if not batch:
        return
    log = ProblemLog()
    with tempfile.TemporaryDirectory() as folder:
        found = back(batch, "brat", Path(folder), log)
    assert [x.text for x in found] == [x.text for x in batch]
    lost = sum(
        entity not in (y.entities or ())
        for x, y in zip(batch, found, strict=True)
        for entity in x.entities or ()
    )
    assert lost <= log.by_kind["not-held"]


@pytest.mark.parametrize("scheme", ["bio", "iob1", "bioes", "bilou", "bmes", "bmewo"])
@settings(deadline=None, max_examples=60)
@given(batch=st.lists(examples(), min_size=1, max_size=4))
def test_columns_give_text_and_entities_back_or_say_what_is_lost(
    scheme: str, batch: list[Example]
) -> None:
    log = ProblemLog()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.conll"
        count = write(batch, path, "columns", scheme=scheme, problems=log)
        found = list(read(path, ReadOptions(scheme=scheme, format="columns"))) if count else []
    kept = [x for x in batch if x.text.strip()]
    assert [x.text for x in found] == [x.text for x in kept]
    assert len(batch) - len(kept) <= log.by_kind["not-held"]
    lost = sum(
        entity not in (y.entities or ())
        for x, y in zip(kept, found, strict=True)
        for entity in x.entities or ()
    )
    assert lost <= log.by_kind["not-held"]


@pytest.mark.parametrize("scheme", [*SCHEMES, "bio"])
def test_a_scheme_is_recognised_when_it_comes_back(tmp_path: Path, scheme: str) -> None:
    text = "Ada Lovelace met Charles in London near Ada"
    words = ((0, 3), (4, 12), (13, 16), (17, 24), (25, 27), (28, 34), (35, 39), (40, 43))
    entities = tuple(
        Entity(start=a, end=b, label=c)
        for a, b, c in [(0, 12, "PER"), (17, 24, "PER"), (28, 39, "LOC"), (40, 43, "PER")]
    )
    example = Example(id="1", text=text, words=words, entities=entities)
    path = tmp_path / "out.conll"
    write([example] * 3, path, "conll", scheme=scheme)
    for found in read(path):
        assert (found.text, found.words, found.entities) == (text, words, entities)


def test_overlaps_that_columns_cannot_hold_are_listed(tmp_path: Path) -> None:
    entities = (
        Entity(start=0, end=7, label="ORG"),
        Entity(start=4, end=7, label="LOC"),
        Entity(start=0, end=7, label="ORG"),
    )
    log = ProblemLog()
    write(
        [Example(id="1", text="Uni Ulm", entities=entities)], tmp_path / "a", "conll", problems=log
    )
    assert log.by_kind["not-held"] == 2
    assert "LOC entity 4-7: it lies under a longer one" in str(log.problems[0])
    (found,) = read(tmp_path / "a")
    assert found.entities == entities[:1]


def test_nothing_is_written_where_the_source_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "data.jsonl"
    source.write_text('{"text": "a", "label": []}\n{\n')
    for format, name in NAMES.items():
        with pytest.raises(DataError):
            write(read(source), tmp_path / name, format)
        assert not (tmp_path / name).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]


def test_a_target_is_not_replaced_unasked(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("precious")
    with pytest.raises(DataError, match="exists"):
        write([Example(id="1", text="a")], tmp_path / "out.jsonl", "jsonl")
    assert (tmp_path / "out.jsonl").read_text() == "precious"


def test_gzip_is_written_and_read(tmp_path: Path) -> None:
    write([Example(id="1", text="a", entities=())], tmp_path / "a.jsonl.gz", "jsonl")
    assert (tmp_path / "a.jsonl.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert [x.text for x in read(tmp_path / "a.jsonl.gz")] == ["a"]


# One or more shared files of every kind; the long form below takes all of them.
SHORT = [
    "exports/doccano/ner_text_extractor_admin_label.jsonl",
    "exports/doccano/bsner_bw_admin_label.jsonl",
    "exports/doccano/cbdb_xyj_admin_data_label.jsonl",
    "exports/doccano/doccano_transformer_labeling.jsonl",
    "exports/label_studio/lue01_uie_test2_label_studio.json",
    "exports/label_studio/spacycleanse_label_studio_annotations.json",
    "exports/brat/bionlp2011-id",
    "exports/brat/tutorial-news",
    "exports/conll/flair_fashion_eng.train",
    "exports/conll/flair_ner_german_germeval_NER-de-train.tsv",
    "exports/conll/flair_column_with_whitespaces_eng.train",
    "weibo/weiboNER_2nd_conll.dev",
]
LONG = [
    "cluener/train.json",
    "cluener/test.json",
    "msra/slash/testright1.txt",
    "msra/parallel/val",
    "msra/json/msra_1000.txt",
    "weibo/weiboNER_2nd_conll.train",
    "resume/train.char.bmes",
    "wnut17/wnut17train.conll",
    "wnut17/emerging.dev.conll",
    "ncbi-disease/IOB/train.tsv",
    "bc5cdr/IOB/test.tsv",
    "sec-filings/FIN3.txt",
    "wikigold/wikigold.conll.txt",
    "europeana/enp_DE.onb.bio",
    "cws/pku_test_gold.utf8",
    "ud-zh-gsdsimp/zh_gsdsimp-ud-dev.conllu",
    "exports/brat/tianchi-tcm-zh",
    "exports/brat/conll2002-esp",
    "exports/brat/ncbi-disease",
]


def check_round_trip(name: str, format: str, folder: Path) -> None:
    source = list(read(shared("data", name), ReadOptions(on_error="skip")))
    log = ProblemLog()
    found = back(source, format, folder, log)
    differing = sum(content(x) != content(y) for x, y in zip(source, found, strict=True))
    assert [x.text for x in found] == [x.text for x in source]
    assert differing <= log.by_kind["not-held"]
    if format not in ("columns", "brat"):
        assert differing == 0


@pytest.mark.parametrize("format", list(NAMES))
@pytest.mark.parametrize("name", SHORT)
def test_a_shared_file_survives_every_format(name: str, format: str, tmp_path: Path) -> None:
    check_round_trip(name, format, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("format", list(NAMES))
@pytest.mark.parametrize("name", LONG)
def test_every_shared_file_survives_every_format(name: str, format: str, tmp_path: Path) -> None:
    check_round_trip(name, format, tmp_path)
