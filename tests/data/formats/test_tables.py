"""CSV, Parquet, Arrow, data sets saved by `datasets`, parallel files, words and word/tag lines."""

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from bertfit.data.formats import ReadOptions, read, sniff, task_of
from bertfit.errors import DataError
from bertfit.types import Example

ADA = [("Ada", "PER"), ("Bonn", "LOC")]


def found(example: Example) -> list[tuple[str, str]]:
    return [(example.text[e.start : e.end], e.label) for e in example.entities or ()]


def read_csv(tmp_path: Path, text: str) -> list[Example]:
    path = tmp_path / "data.csv"
    path.write_text(text, "utf-8", newline="")
    return list(read(path))


@pytest.mark.parametrize(
    "rows",
    [
        'tokens,tags\n"[""Ada"", ""in"", ""Bonn""]","[""B-PER"", ""O"", ""B-LOC""]"\n',
        "id,tokens,ner_tags\n1,\"['Ada', 'in', 'Bonn']\",\"['B-PER', 'O', 'B-LOC']\"\n",
        "tokens;ner_tags\n['Ada' 'in' 'Bonn'];['B-PER' 'O' 'B-LOC']\n",
        "text,tags\nAda in Bonn,B-PER O B-LOC\n",
        'text,label\nAda in Bonn,"[[0, 3, ""PER""], [7, 11, ""LOC""]]"\n',
        'text\tentities\nAda in Bonn\t[{"start": 0, "end": 3, "label": "PER"}, [7, 11, "LOC"]]\n',
        "Sentence #,Word,POS,Tag\nSentence: 1,Ada,N,B-PER\n,in,P,O\n,Bonn,N,B-LOC\n",
        "sentence_id,word,tag\n1,Ada,B-PER\n1,in,O\n1,Bonn,B-LOC\n",
    ],
)
def test_every_kind_of_csv_gives_the_same_entities(tmp_path: Path, rows: str) -> None:
    (example,) = read_csv(tmp_path, rows)
    assert found(example) == ADA


@pytest.mark.parametrize(
    "rows", ['text,x\nAda came,1\n"Bonn, too",O1\n', "x;text\n1;Ada came\n2;Bonn, too\n"]
)
def test_a_table_of_texts_alone_is_one_by_its_name(tmp_path: Path, rows: str) -> None:
    first, second = read_csv(tmp_path, rows)
    assert (first.text, second.text, first.entities) == ("Ada came", "Bonn, too", None)
    path = tmp_path / "data.txt"
    path.write_text(rows)
    assert sniff(path) == "text"
    assert sniff(path, ReadOptions(format="csv")) == "csv"


def test_a_file_without_a_header_is_refused_as_csv_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("Ada came to Bonn\nyesterday\n")
    with pytest.raises(DataError, match=r"to name the columns, one of them text, .*'Ada came to B"):
        sniff(path, ReadOptions(format="csv"))


def test_words_of_a_table_are_grouped_by_their_sentence(tmp_path: Path) -> None:
    rows = 'sentence_id,word,tag\n1,Ada,B-PER\n2,Bonn,B-LOC\n2,now,O\n3,",",O\n'
    assert [x.text for x in read_csv(tmp_path, rows)] == ["Ada", "Bonn now", ","]


def test_a_cell_may_hold_line_breaks(tmp_path: Path) -> None:
    rows = 'text,label\r\n"a\r\nb",[]\r\n"c","[[0, 1, ""X""]]"\r\n'
    first, second = read_csv(tmp_path, rows)
    assert first.text == "a\r\nb"
    assert second.source is not None and second.source.line == 4


def test_a_csv_row_of_another_length_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.csv:3: 1 cells where the header has 2"):
        read_csv(tmp_path, 'text,label\na,"[[0, 1, ""X""]]"\nb\n')


def table() -> pyarrow.Table:
    names = ["O", "B-PER", "B-LOC"]
    feature = {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "Sequence"}
    features = {"tokens": {"feature": {"dtype": "string"}}, "ner_tags": feature}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    rows = {"tokens": [["Ada", "in", "Bonn"], []], "ner_tags": [[1, 0, 2], []]}
    return pyarrow.table(rows).replace_schema_metadata(metadata)


def test_parquet_with_numbered_tags_reads_their_names(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(table(), path)
    first, second = read(path)
    assert found(first) == ADA
    assert (second.text, second.entities) == ("", ())


def test_numbered_tags_without_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(table().replace_schema_metadata(None), path)
    with pytest.raises(DataError, match=r"data.parquet:1: the tag 1 is a number without a name"):
        list(read(path))


def save(folder: Path) -> None:
    """Write what `Dataset.save_to_disk` writes."""
    folder.mkdir(parents=True)
    name = "data-00000-of-00001.arrow"
    with pyarrow.ipc.new_stream(folder / name, table().schema) as writer:
        writer.write_table(table())
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    (folder / "dataset_info.json").write_text("{}")


def test_a_saved_data_set_reads_and_several_splits_are_asked_for(tmp_path: Path) -> None:
    save(tmp_path / "set" / "train")
    save(tmp_path / "set" / "test")
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert found(next(iter(read(tmp_path / "set" / "train")))) == ADA
    with pytest.raises(DataError, match=r"several splits. Name one of them: .*test, .*train"):
        read(tmp_path / "set")


def test_a_folder_of_shards_reads_as_one(tmp_path: Path) -> None:
    for number in range(2):
        path = tmp_path / f"train-0000{number}-of-00002.parquet"
        pyarrow.parquet.write_table(table(), path)
    assert len(list(read(tmp_path))) == 4


def test_the_hub_needs_its_package(tmp_path: Path) -> None:
    try:
        import datasets  # noqa: F401
    except ImportError:
        with pytest.raises(DataError, match=r"bertfit\[datasets\]"):
            read("hub:someone/something")


def test_two_parallel_files_read_from_either_and_from_their_folder(tmp_path: Path) -> None:
    (tmp_path / "sentences.txt").write_text("Ada in Bonn\nno one\n")
    (tmp_path / "tags.txt").write_text("B-PER O B-LOC\nO O\n")
    for path in (tmp_path, tmp_path / "sentences.txt", tmp_path / "tags.txt"):
        assert [found(x) for x in read(path)] == [ADA, []]


def test_parallel_files_of_other_lengths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "sentences.txt").write_text("Ada in Bonn\nno one\nmore\n")
    (tmp_path / "tags.txt").write_text("B-PER O\nO O\n")
    with pytest.raises(DataError) as caught:
        list(read(tmp_path))
    assert "sentences.txt:1: 3 words, but 2 tags" in str(caught.value)
    assert "sentences.txt:3: line without a partner" in str(caught.value)


def test_tags_without_their_words_are_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("B-PER O B-LOC\nO O\n")
    with pytest.raises(DataError, match="only tags"):
        read(tmp_path / "labels.txt")


def test_segmented_words(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text(
        "我  爱  北京  天安门  \r\n\r\n他  买  了  iPhone  6  手机\r\n", "utf-8", newline=""
    )
    assert (sniff(path), task_of(path)) == ("words", "segmentation")
    first, second = read(path)
    assert first.text == "我爱北京天安门"
    assert [word for word, _label in found(second)] == ["他", "买", "了", "iPhone", "6", "手机"]


def test_slashes(tmp_path: Path) -> None:
    path = tmp_path / "slash.txt"
    path.write_text(
        "迈向/v 充满/v 希望/n 的/u 世纪/n\n/w 北京/ns 的/u 人/n 民/n 去/v\n" * 3, "utf-8"
    )
    assert task_of(path) == "pos"
    with pytest.raises(DataError, match=r"slash.txt:2: '/w' has no tag"):
        list(read(path))


@pytest.mark.parametrize("name", ["data.jsonl", "data.conll", "data.csv"])
def test_gzip_and_a_byte_order_mark_change_nothing(tmp_path: Path, name: str) -> None:
    contents = {
        "data.jsonl": '{"text": "Ada in Bonn", "label": [[0, 3, "PER"], [7, 11, "LOC"]]}\n',
        "data.conll": "Ada\tB-PER\nin\tO\nBonn\tB-LOC\n",
        "data.csv": "text,tags\nAda in Bonn,B-PER O B-LOC\n",
    }
    path = tmp_path / f"{name}.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + contents[name].encode()))
    (example,) = read(path)
    assert found(example) == ADA


def test_a_format_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(
        DataError, match=r"no format 'conll2003'. Choose one of jsonl, json, columns"
    ):
        read(tmp_path / "a.txt", ReadOptions(format="conll2003"))


def test_a_quote_without_end_in_the_first_row_is_refused_and_not_taken_for_text(
    tmp_path: Path,
) -> None:
    with pytest.raises(DataError, match=":2: not valid CSV"):
        read_csv(tmp_path, 'text,label\n"Ada lives,[]\nBonn,[]\n')


def test_a_table_in_a_gzip_reads_like_the_table(tmp_path: Path) -> None:

    table = pyarrow.table({"tokens": [["Anna", "left"]], "ner_tags": [["B-PER", "O"]]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    packed = tmp_path / "t.parquet.gz"
    packed.write_bytes(gzip.compress((tmp_path / "t.parquet").read_bytes()))
    plain, found = list(read(tmp_path / "t.parquet")), list(read(packed))
    assert [(x.text, x.entities) for x in found] == [(x.text, x.entities) for x in plain]
    assert found[0].source is not None and found[0].source.path == str(packed)
