"""Every shared file reads with the counts of the README beside it, or is refused with its place."""

import re
from pathlib import Path

import pytest

from bertfit.data.formats import ProblemLog, ReadOptions, read, sniff, task_of
from bertfit.errors import DataError
from bertfit.types import Example
from shared import shared

DATA = ("data",)

# path, format, texts, entities, longest text or None
COUNTS = [
    ("cluener/train.json", "jsonl", 10748, 23971, 50),
    ("cluener/dev.json", "jsonl", 1343, 3072, None),
    ("cluener/test.json", "jsonl", 1345, 0, None),
    ("msra/parallel/test/sentences.txt", "pair", 3442, 6190, 2427),
    ("msra/parallel/val", "pair", 3000, 5011, 587),
    ("msra/bio/msra_test_bio.txt", "columns", 3442, 6190, 2427),
    ("msra/bmes/test.char.bmes", "columns", 4365, 6181, 1475),
    ("msra/slash/testright1.txt", "slash", 4365, 6181, 1475),
    ("msra/json/msra_1000.txt", "jsonl", 1000, 643, None),
    ("weibo/weiboNER_2nd_conll.train", "columns", 1350, 1895, 175),
    ("weibo/weiboNER_2nd_conll.dev", "columns", 270, 389, None),
    ("weibo/weiboNER_2nd_conll.test", "columns", 270, 418, None),
    ("weibo/bmes/train.all.bmes", "columns", 1350, 1895, 175),
    ("weibo/bmes/dev.all.bmes", "columns", 270, 389, None),
    ("weibo/bmes/test.all.bmes", "columns", 270, 418, None),
    ("resume/train.char.bmes", "columns", 3821, 13440, 178),
    ("resume/dev.char.bmes", "columns", 463, 1497, None),
    ("resume/test.char.bmes", "columns", 477, 1630, None),
    ("wnut17/wnut17train.conll", "columns", 3394, 1975, None),
    ("wnut17/emerging.dev.conll", "columns", 1009, 836, None),
    ("wnut17/emerging.test.annotated", "columns", 1287, 1079, None),
    ("wnut17/emerging.test", "columns", 1287, 0, None),
    ("ncbi-disease/IOB/train.tsv", "columns", 5424, 5134, None),
    ("ncbi-disease/IOB/devel.tsv", "columns", 923, 787, None),
    ("ncbi-disease/IOB/test.tsv", "columns", 940, 960, None),
    ("ncbi-disease/IOBES/test.tsv", "columns", 940, 960, None),
    ("bc5cdr/IOB/train.tsv", "columns", 4560, 9385, None),
    ("bc5cdr/IOB/devel.tsv", "columns", 4581, 9593, None),
    ("bc5cdr/IOB/test.tsv", "columns", 4797, 9809, None),
    ("sec-filings/FIN5.txt", "columns", 1164, 1168, None),
    ("sec-filings/FIN3.txt", "columns", 303, 318, None),
    ("wikigold/wikigold.conll.txt", "columns", 1696, 3558, None),
    ("europeana/enp_DE.onb.bio", "columns", 1, 3343, None),
    ("cws/pku_test_gold.utf8", "words", 1944, 104372, 626),
    ("cws/msr_test_gold.utf8", "words", 3985, 106873, 308),
    ("cws/msr_test.utf8", "text", 3985, 0, 308),
    ("ud-zh-gsdsimp/zh_gsdsimp-ud-dev.conllu", "conllu", 500, 12663, 135),
    ("ud-zh-gsdsimp/zh_gsdsimp-ud-test.conllu", "conllu", 500, 12012, 156),
    ("exports/label_studio/lue01_uie_test2_label_studio.json", "json", 160, 514, None),
    ("exports/label_studio/spacycleanse_label_studio_annotations.json", "json", 1, 30, 5855),
    ("exports/doccano/cluener_dev_entities.jsonl", "jsonl", 1343, 3072, None),
    ("exports/doccano/298977887_uie_admin_entities.jsonl", "jsonl", 100, 39, None),
    ("exports/doccano/bsner_bw_admin_label.jsonl", "jsonl", 454, 444, None),
    ("exports/doccano/cbdb_xyj_admin_data_label.jsonl", "jsonl", 36, 435, 724),
    ("exports/doccano/doccano_export_example.jsonl", "jsonl", 3, 4, None),
    ("exports/doccano/doccano_import_example.jsonl", "jsonl", 3, 3, None),
    ("exports/doccano/doccano_relation_example.jsonl", "json", 1, 4, None),
    ("exports/doccano/doccano_test_example_overlapping.jsonl", "jsonl", 1, 2, None),
    ("exports/doccano/doccano_transformer_labeling.jsonl", "jsonl", 2, 16, None),
    ("exports/doccano/doccano_transformer_labeling_text_label.jsonl", "jsonl", 2, 11, None),
    ("exports/doccano/flair_jsonl_train.jsonl", "jsonl", 5, 7, None),
    ("exports/doccano/flair_jsonl_testa.jsonl", "jsonl", 3, 5, None),
    ("exports/doccano/flair_jsonl_testb.jsonl", "jsonl", 3, 5, None),
    ("exports/brat/tianchi-tcm-zh", "brat", 40, 807, 1575),
    ("exports/brat/ncbi-disease", "brat", 20, 226, None),
    ("exports/brat/conll2002-esp", "brat", 3, 192, 6652),
    ("exports/brat/bionlp2011-id", "brat", 3, 162, None),
    ("exports/brat/tutorial-news", "brat", 9, 110, None),
    ("exports/conll/doccano_example.conll", "columns", 2, 2, None),
    ("exports/conll/doccano_labeling.trailing.conll", "columns", 1, 2, None),
    ("exports/conll/doccano_transformer_labeling.conll2003.user1", "columns", 3, 5, None),
    ("exports/conll/doccano_transformer_labeling.conll2003.user2", "columns", 6, 11, None),
    (
        "exports/conll/doccano_transformer_labeling_text_label.conll2003.user0",
        "columns",
        6,
        11,
        None,
    ),
    ("exports/conll/flair_fashion_eng.train", "columns", 6, 23, None),
    ("exports/conll/flair_fashion_eng.testa", "columns", 1, 3, None),
    ("exports/conll/flair_fashion_eng.testb", "columns", 1, 2, None),
    ("exports/conll/flair_trivial_trivial_bioes_train.txt", "columns", 16, 16, None),
    (
        "exports/conll/flair_trivial_trivial_bioes_with_boundaries_train.txt",
        "columns",
        12,
        12,
        None,
    ),
    ("exports/conll/flair_ner_german_germeval_NER-de-train.tsv", "columns", 2, 5, None),
    ("exports/conll/flair_ner_german_germeval_NER-de-test.tsv", "columns", 1, 1, None),
    ("exports/conll/flair_span_labels_span_first.txt", "columns", 1, 3, None),
    ("exports/conll/flair_span_labels_span_second.txt", "columns", 1, 3, None),
    ("exports/conll/flair_span_labels_span_third.txt", "columns", 2, 3, None),
    ("exports/conll/flair_column_with_whitespaces_eng.train", "columns", 1, 1, None),
    ("exports/conll/flair_column_corpus_options_eng.train", "columns", 1, 1, None),
]

# path, what the message names
REFUSED = [
    ("cluener/cluener_predict.json", ["cluener_predict.json:1: ", ":5: not valid JSON", ":7: "]),
    ("exports/conll/doccano_labeling.invalid.conll", ["invalid.conll:1: 1 columns"]),
    ("exports/doccano/doccano_test_example.jsonl", ["example.jsonl:3: no text"]),
    ("exports/doccano/ner_text_extractor_admin_label.jsonl", [":25: ", "540-551", "547"]),
]


def spans(path: Path) -> list[tuple[str, list[tuple[int, int]]]]:
    return [(x.text, [(e.start, e.end) for e in sorted(x.entities or ())]) for x in read(path)]


@pytest.mark.parametrize(("name", "format", "texts", "entities", "longest"), COUNTS)
def test_a_shared_file_has_the_counts_of_its_readme(
    name: str, format: str, texts: int, entities: int, longest: int | None
) -> None:
    path = shared(*DATA, name)
    assert sniff(path) == format
    examples = list(read(path))
    assert len(examples) == texts
    assert sum(len(x.entities or ()) for x in examples) == entities
    if longest is not None:
        assert max(len(x.text) for x in examples) == longest
    assert len({x.id for x in examples}) == texts
    for example in examples:
        check_offsets(example)


def check_offsets(example: Example) -> None:
    for entity in example.entities or ():
        assert 0 <= entity.start < entity.end <= len(example.text)
    for start, end in example.words or ():
        assert 0 <= start < end <= len(example.text)


@pytest.mark.parametrize(("name", "parts"), REFUSED)
def test_a_faulty_shared_file_is_refused_with_file_and_line(name: str, parts: list[str]) -> None:
    path = shared(*DATA, name)
    with pytest.raises(DataError) as caught:
        list(read(path))
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(("name", "parts"), REFUSED)
def test_skipping_counts_what_it_drops(name: str, parts: list[str]) -> None:
    log = ProblemLog()
    kept = list(read(shared(*DATA, name), ReadOptions(on_error="skip"), log))
    assert len(kept) == log.records_read
    assert log.records_dropped == log.count("error") > 0


def test_no_shared_file_is_forgotten() -> None:
    folder = shared(*DATA)
    named = {name for name, *_rest in COUNTS} | {name for name, _parts in REFUSED}
    inside = ("msra/parallel", "exports/brat")  # read as folders, or one file of two
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if (
            path.is_file()
            and not name.startswith((*inside, "memory_truth"))
            and "README" not in name
        ):
            assert name in named


def test_the_same_entities_in_two_formats_are_the_same() -> None:
    data = shared(*DATA)
    assert spans(data / "msra/bio/msra_test_bio.txt") == spans(data / "msra/parallel/test")
    assert spans(data / "ncbi-disease/IOB/test.tsv") == spans(data / "ncbi-disease/IOBES/test.tsv")
    assert spans(data / "msra/bmes/test.char.bmes") == spans(data / "msra/slash/testright1.txt")
    ours, theirs = data / "cluener/dev.json", data / "exports/doccano/cluener_dev_entities.jsonl"
    assert spans(ours) == spans(theirs)


def test_weibo_reads_alike_with_and_without_position_numbers() -> None:
    indexed = list(read(shared(*DATA, "weibo/weiboNER_2nd_conll.dev")))
    plain = list(read(shared(*DATA, "weibo/bmes/dev.all.bmes")))
    # The lost emoji are two replacement characters in one file and one in the other.
    texts = [[re.sub("\ufffd+", "\ufffd", x.text) for x in each] for each in (indexed, plain)]
    assert texts[0] == texts[1]


def test_segmented_text_is_the_raw_text() -> None:
    gold = "".join(x.text for x in read(shared(*DATA, "cws/msr_test_gold.utf8")))
    raw = "".join(x.text for x in read(shared(*DATA, "cws/msr_test.utf8")))
    assert "".join(gold.split()) == "".join(raw.split())


def test_conllu_text_is_its_text_comment() -> None:
    path = shared(*DATA, "ud-zh-gsdsimp/zh_gsdsimp-ud-dev.conllu")
    comments = [
        line[9:] for line in path.read_text("utf-8").split("\n") if line.startswith("# text = ")
    ]
    assert [x.text for x in read(path)] == comments


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("cws/pku_test_gold.utf8", "segmentation"),
        ("ud-zh-gsdsimp/zh_gsdsimp-ud-dev.conllu", "pos"),
        ("weibo/bmes/dev.all.bmes", "ner"),
        ("cluener/dev.json", "ner"),
    ],
)
def test_the_task_follows_from_the_content(name: str, task: str) -> None:
    assert task_of(shared(*DATA, name)) == task


def test_conllu_gives_its_words_for_segmentation() -> None:
    path = shared(*DATA, "ud-zh-gsdsimp/zh_gsdsimp-ud-dev.conllu")
    first = next(iter(read(path, ReadOptions(task="segmentation"))))
    assert {entity.label for entity in first.entities or ()} == {"W"}


def test_orphans_are_repaired_counted_and_placed() -> None:
    log = ProblemLog()
    list(read(shared(*DATA, "weibo/weiboNER_2nd_conll.train"), problems=log))
    assert log.count("repair") == 10
    assert log.first("repair")[0].line == 1266
