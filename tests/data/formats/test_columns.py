"""Column files of every kind, worked by hand."""

from pathlib import Path

import pytest

from bertfit.data.formats import ProblemLog, ReadOptions, read, sniff, task_of
from bertfit.errors import DataError
from bertfit.types import Example


def read_text(tmp_path: Path, text: str, **options: object) -> list[Example]:
    path = tmp_path / "data.txt"
    path.write_bytes(text.encode())
    return list(read(path, ReadOptions(**options)))  # type: ignore[arg-type]


def found(example: Example) -> list[tuple[str, str]]:
    return [(example.text[e.start : e.end], e.label) for e in example.entities or ()]


BERLIN = [("New Berlin", "LOC"), ("Ada", "PER")]


@pytest.mark.parametrize(
    "tags",
    [
        ["B-LOC", "I-LOC", "O", "B-PER"],
        ["I-LOC", "I-LOC", "O", "I-PER"],
        ["B-LOC", "E-LOC", "O", "S-PER"],
        ["B-LOC", "L-LOC", "O", "U-PER"],
        ["B-LOC", "E-LOC", "O", "W-PER"],
        ["B_LOC", "I_LOC", "O", "B_PER"],
    ],
)
@pytest.mark.parametrize("separator", ["\t", " ", "   ", "|", ";", ","])
def test_every_scheme_and_separator_gives_the_same_entities(
    tmp_path: Path, tags: list[str], separator: str
) -> None:
    words = ["New", "Berlin", "likes", "Ada"]
    lines = [f"{word}{separator}{tag}" for word, tag in zip(words, tags, strict=True)]
    examples = read_text(tmp_path, "\n".join([*lines, "", *lines, ""]))
    assert [found(x) for x in examples] == [BERLIN, BERLIN]
    assert examples[0].text == "New Berlin likes Ada"
    assert examples[0].words == ((0, 3), (4, 10), (11, 16), (17, 20))


def test_characters_are_joined_with_nothing(tmp_path: Path) -> None:
    (example,) = read_text(tmp_path, "1 O\n9 O\n年 O\n上 B-LOC\n海 E-LOC\nA O\nB O\n")
    assert example.text == "19年上海AB"
    assert found(example) == [("上海", "LOC")]


def test_chinese_words_are_joined_with_nothing_and_latin_words_with_a_space(tmp_path: Path) -> None:
    rows = "我们 O\n使用 O\nMicrosoft B-ORG\nOffice I-ORG\n软件 O\n2010 O\n年 O\n"
    (example,) = read_text(tmp_path, rows)
    assert example.text == "我们使用Microsoft Office软件2010年"
    assert found(example) == [("Microsoft Office", "ORG")]


def test_a_word_can_be_a_space(tmp_path: Path) -> None:
    (example,) = read_text(tmp_path, "我 O\n  O\n\u3000 O\n北 B-LOC\n京 I-LOC\n")
    assert example.text == "我 \u3000北京"
    assert found(example) == [("北京", "LOC")]


def test_a_number_sign_can_be_a_word_or_a_comment(tmp_path: Path) -> None:
    (example,) = read_text(tmp_path, "# id 7 and more\n#\tO\n#tag\tB-X\nend\tO\n")
    assert found(example) == [("#tag", "X")]
    assert example.text == "# #tag end"


def test_the_tag_column_has_a_position_or_a_name(tmp_path: Path) -> None:
    rows = "word\tner\tchunk\nJohn\tB-PER\tB-NP\nruns\tO\tB-VP\n"
    assert found(read_text(tmp_path, rows)[0]) == [("John", "PER")]
    for column in ("ner", 2, "2", -2):
        assert found(read_text(tmp_path, rows, tag_column=column)[0]) == [("John", "PER")]
    assert found(read_text(tmp_path, rows, tag_column=3)[0]) == [("John", "NP"), ("runs", "VP")]
    for absent in ("pos", "²", "--5", "9" * 5000, 0):
        with pytest.raises(DataError, match=f"no column '{absent}'"):
            read_text(tmp_path, rows, tag_column=absent)


def test_chunks_are_not_entities(tmp_path: Path) -> None:
    rows = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\n\n"
    assert found(read_text(tmp_path, rows)[0]) == [("EU", "ORG"), ("German", "MISC")]


def test_a_second_column_of_the_same_labels_holds_nested_entities(tmp_path: Path) -> None:
    rows = (
        "1\tUni\tB-ORG\tO\n2\tBonn\tI-ORG\tB-LOC\n3\tist\tO\tO\n\n1\tIn\tO\tO\n2\tKöln\tB-LOC\tO\n"
    )
    first, second = read_text(tmp_path, rows)
    assert found(first) == [("Uni Bonn", "ORG"), ("Bonn", "LOC")]
    assert found(second) == [("Köln", "LOC")]


def test_parts_of_speech_are_read_as_such(tmp_path: Path) -> None:
    rows = "The DT\ncat NN\nsat VB\n\nA DT\ndog NN\nran VB\n\n" * 4
    path = tmp_path / "data.txt"
    path.write_text(rows)
    assert task_of(path) == "pos"
    assert found(next(iter(read(path)))) == [("The", "DT"), ("cat", "NN"), ("sat", "VB")]


def test_bare_segmentation_tags_give_words(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("北\tB\n京\tE\n是\tS\n\n首\tB\n都\tE\n")
    assert task_of(path) == "segmentation"
    assert found(next(iter(read(path)))) == [("北京", "W"), ("是", "W")]


@pytest.mark.parametrize(
    ("tags", "entities", "repairs"),
    [
        (["O", "I-PER", "I-PER", "O"], [("b c", "PER")], ["orphan-inside"]),
        (["B-PER", "I-LOC", "O", "O"], [("a", "PER"), ("b", "LOC")], ["label-change"]),
        (["B-PER", "O", "B-LOC", "I-LOC"], [("a", "PER"), ("c d", "LOC")], []),
        (["M-X", "E-X", "O", "S-X"], [("a b", "X"), ("d", "X")], ["orphan-inside"]),
        (["B-X", "M-X", "O", "S-X"], [("a b", "X"), ("d", "X")], ["unclosed"]),
        (["O", "E-X", "B-X", "E-X"], [("b", "X"), ("c d", "X")], ["orphan-end"]),
    ],
)
def test_illegal_sequences_are_repaired_and_listed(
    tmp_path: Path, tags: list[str], entities: list[tuple[str, str]], repairs: list[str]
) -> None:
    rows = "\n".join(f"{word}\t{tag}" for word, tag in zip("abcd", tags, strict=True))
    legal = "\n\nx\tB-X\ny\tE-X\n" if "E-X" in tags or "M-X" in tags else "\n\nx\tB-X\ny\tO\n"
    path = tmp_path / "data.txt"
    path.write_text(rows + legal * 3)
    log = ProblemLog()
    first = next(iter(list(read(path, problems=log))))
    assert found(first) == entities
    assert [problem.kind for problem in log.first("repair")] == repairs


def test_lines_of_white_space_end_a_sentence(tmp_path: Path) -> None:
    examples = read_text(tmp_path, "\na\tB-X\n\t\nb\tO\n  \r\nc\tO\r\n\r\n")
    assert [x.text for x in examples] == ["a", "b", "c"]


def test_a_broken_line_is_refused_with_its_number_and_only_its_sentence_is_dropped(
    tmp_path: Path,
) -> None:
    rows = "a\tO\nb\tB-X\n\nc\n\nd\tO\n\n" * 3
    with pytest.raises(DataError, match=r"data.txt:4: 1 columns where the file has 2"):
        read_text(tmp_path, rows)
    assert len(read_text(tmp_path, rows, on_error="skip")) == 6


def test_a_tag_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    rows = "a\tB-X\nb\tI-X\nc\tO\nd\tO\n\n" * 20 + "e\tB-X\nf\tPER\n"
    with pytest.raises(DataError, match=r"data.txt:102: 'PER' is not a tag"):
        read_text(tmp_path, rows)


def test_the_scheme_can_be_said(tmp_path: Path) -> None:
    rows = "a\tI-X\nb\tB-X\n"
    assert found(read_text(tmp_path, rows, scheme="iob1")[0]) == [("a", "X"), ("b", "X")]
    with pytest.raises(DataError, match="no tag scheme 'bioe'"):
        read_text(tmp_path, rows, scheme="bioe")
    with pytest.raises(DataError, match=r"no tag scheme 'bioe'\. Choose one of bio, iob1"):
        read_text(tmp_path, "Ada came to Bonn yesterday .\n", scheme="bioe")  # text has no tags


def test_words_without_tags_are_not_annotated(tmp_path: Path) -> None:
    examples = read_text(tmp_path, "One\nword\n\nper\nline\n")
    assert [(x.text, x.entities) for x in examples] == [("One word", None), ("per line", None)]


def test_hyphens_dots_and_spaces_stay_in_labels(tmp_path: Path) -> None:
    rows = "a\tB-creative-work\nb\tB-PER.NOM\nc\tB-Job title\nd\tO\n"
    labels = [label for _surface, label in found(read_text(tmp_path, rows)[0])]
    assert labels == ["creative-work", "PER.NOM", "Job title"]


def test_a_bracket_at_the_beginning_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("[ O\n{ O\nBerlin B-LOC\n] O\n")
    assert sniff(path) == "columns"


@pytest.mark.parametrize("rest", [" ", " _ _ "])
def test_a_comment_with_as_many_cells_as_a_row_is_still_a_comment(
    tmp_path: Path, rest: str
) -> None:
    # MultiCoNER writes "# id <id>\tdomain=<name>" over sentences of four columns.
    comment = "# next" if rest == " " else "# id 5239d808\tdomain=train"
    lines = [comment, f"Ada{rest}B-PER", f"lives{rest}O", "", comment, f"Bonn{rest}B-LOC", ""]
    examples = read_text(tmp_path, "\n".join(lines))
    assert [found(example) for example in examples] == [[("Ada", "PER")], [("Bonn", "LOC")]]


@pytest.mark.parametrize("header", ["", "Word,Tag"])
@pytest.mark.parametrize("blank", ["", ",", '"",""'])
def test_empty_cells_of_a_spreadsheet_end_a_sentence(
    tmp_path: Path, header: str, blank: str
) -> None:
    lines = [*([header] if header else []), "Ada,B-PER", "lives,O", ",,O", blank, "Bonn,B-LOC", ""]
    examples = read_text(tmp_path, "\n".join(lines))
    assert [found(example) for example in examples] == [[("Ada", "PER")], [("Bonn", "LOC")]]
    assert examples[0].text == "Ada lives ,"
