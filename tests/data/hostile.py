"""Malformed inputs by the hundred, from a seed: what a download, an editor or an enemy can do.

Every case is a file, or a folder of files, of one format. Where the number of records is known it
is stated, so that a silent drop can be told.
"""

import gzip
import io
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

SEED = 8


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """One malformed input.

    Attributes:
        name: of the format and of what was done to it.
        format: the name to read it by.
        files: content by relative path; the first is opened, unless `opened` names the folder.
        opened: what is opened, below the folder of the case.
        records: how many records went in, where that is certain.
    """

    name: str
    format: str
    files: dict[str, bytes]
    opened: str
    records: int | None = None
    large: bool = False

    def write(self, folder: Path) -> Path:
        """Write the case and return what is to be opened."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder / self.opened


@dataclass
class _Sample:
    """A sound file of one format."""

    format: str
    name: str
    content: bytes
    beside: dict[str, bytes] = field(default_factory=dict)
    opened: str | None = None
    records: int = 3

    def hostile(self, what: str, content: bytes, records: int | None = None) -> Hostile:
        return Hostile(
            name=f"{self.format}-{self.name}-{what}",
            format=self.format,
            files={self.name: content, **self.beside},
            opened=self.name if self.opened is None else self.opened,
            records=records,
        )


_RECORD = '{{"id": {i}, "text": "Anna 住在 Rome {i}", "entities": [{{"start": 0, "end": 4, "label": "PER"}}]}}'


def _samples() -> list[_Sample]:
    lines = [_RECORD.format(i=i) for i in range(3)]
    columns = "".join("Anna\tB-PER\nlives\tO\nin\tO\nRome\tB-LOC\n\n" for __ in range(3))
    conllu = "".join(
        f"# sent_id = {i}\n# text = Anna sleeps\n1\tAnna\tAnna\tPROPN\tNNP\t_\t2\tnsubj\t_\t_\n"
        "2\tsleeps\tsleep\tVERB\tVBZ\t_\t0\troot\t_\t_\n\n"
        for i in range(3)
    )
    table = pa.table(
        {
            "tokens": [["Anna", "sleeps"], ["住", "在"], ["Rome"]],
            "ner_tags": [["B-PER", "O"], ["O", "O"], ["B-LOC"]],
        }
    )
    parquet, stream, file = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pa.parquet.write_table(table, parquet)
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    studio = [
        {
            "id": i,
            "data": {"text": "Anna sleeps"},
            "annotations": [
                {
                    "result": [
                        {
                            "type": "labels",
                            "from_name": "l",
                            "to_name": "t",
                            "value": {"start": 0, "end": 4, "text": "Anna", "labels": ["PER"]},
                        }
                    ]
                }
            ],
        }
        for i in range(3)
    ]
    return [
        _Sample("jsonl", "a.jsonl", "\n".join([*lines, ""]).encode()),
        _Sample("json", "a.json", ("[" + ",\n".join(lines) + "]\n").encode()),
        _Sample("json", "studio.json", json.dumps(studio, indent=1).encode()),
        _Sample("columns", "a.bio", columns.encode()),
        _Sample("conllu", "a.conllu", conllu.encode()),
        _Sample(
            "words",
            "a.seg",
            "我们  住在  北京  。\n你们  住在  上海  。\n他们  来  了  。\n".encode(),
        ),
        _Sample(
            "slash", "a.pos", "我们/r 住在/v 北京/ns 。/w\n他/r 来/v 了/u\n好/a 。/w\n".encode()
        ),
        _Sample(
            "csv",
            "a.csv",
            b'text,entities\nAnna sleeps,"[{""start"": 0, ""end"": 4, ""label"": ""PER""}]"\n'
            b'Rome,"[{""start"": 0, ""end"": 4, ""label"": ""LOC""}]"\nx,[]\n',
        ),
        _Sample(
            "csv",
            "kaggle.csv",
            b"Sentence #,Word,POS,Tag\nSentence: 1,Anna,NNP,B-per\n,sleeps,VBZ,O\n"
            b"Sentence: 2,Rome,NNP,B-geo\nSentence: 3,Hi,UH,O\n",
        ),
        _Sample("text", "a.txt", b"Anna lives in Rome.\nShe sleeps.\nGood.\n"),
        _Sample(
            "pair",
            "p/sentences.txt",
            b"Anna lives\nin Rome\nx\n",
            {"p/tags.txt": b"B-PER O\nO B-LOC\nO\n"},
            "p",
        ),
        _Sample(
            "pair",
            "q/tags.txt",
            b"B-PER O\nO B-LOC\nO\n",
            {"q/sentences.txt": b"Anna lives\nin Rome\nx\n"},
            "q",
        ),
        _Sample(
            "brat", "b/one.ann", b"T1\tPER 0 4\tAnna\n", {"b/one.txt": b"Anna lives.\n"}, "b", 1
        ),
        _Sample("brat", "c/one.txt", b"Anna.\n", {"c/one.ann": b"T1\tPER 0 4\tAnna\n"}, "c", 1),
        _Sample("parquet", "a.parquet", parquet.getvalue()),
        _Sample("arrow", "s.arrow", stream.getvalue()),
        _Sample("arrow", "f.arrow", file.getvalue()),
        _Sample(
            "datasets",
            "d/state.json",
            b'{"_data_files": [{"filename": "data.arrow"}], "_split": "train"}',
            {"d/data.arrow": stream.getvalue()},
            "d",
        ),
    ]


def _insert(content: bytes, piece: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + piece + content[at:]


def _drop_line(content: bytes, rng: random.Random) -> bytes:
    lines = content.split(b"\n")
    del lines[rng.randrange(len(lines))]
    return b"\n".join(lines)


def _flip(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for __ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _swap_lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines)


Change = Callable[[bytes, random.Random], bytes]
_CHANGES: dict[str, Change] = {
    "empty": lambda c, r: b"",
    "only-blanks": lambda c, r: b" \n\t\n \r\n",
    "only-bom": lambda c, r: b"\xef\xbb\xbf",
    "bom": lambda c, r: b"\xef\xbb\xbf" + c,
    "two-boms": lambda c, r: b"\xef\xbb\xbf\xef\xbb\xbf" + c,
    "bom-inside": lambda c, r: _insert(c, b"\xef\xbb\xbf", r),
    "utf16": lambda c, r: c.decode("utf-8", "replace").encode("utf-16"),
    "utf16-without-bom": lambda c, r: c.decode("utf-8", "replace").encode("utf-16-le"),
    "gb18030": lambda c, r: c.decode("utf-8", "replace").encode("gb18030", "replace"),
    "crlf": lambda c, r: c.replace(b"\n", b"\r\n"),
    "cr-only": lambda c, r: c.replace(b"\n", b"\r"),
    "mixed-ends": lambda c, r: c.replace(b"\n", b"\r\n", 2),
    "bad-utf8": lambda c, r: _insert(c, b"\xff", r),
    "cut-utf8": lambda c, r: c + b"\xe4\xbd",
    "overlong-utf8": lambda c, r: _insert(c, b"\xc0\xaf", r),
    "surrogate-bytes": lambda c, r: _insert(c, b"\xed\xa0\x80", r),
    "beyond-unicode": lambda c, r: _insert(c, b"\xf4\x90\x80\x80", r),
    "nul": lambda c, r: _insert(c, b"\0", r),
    "many-nuls": lambda c, r: c + b"\0" * 5000,
    "cut-in-half": lambda c, r: c[: len(c) // 2],
    "cut-last": lambda c, r: c[:-1],
    "cut-anywhere": lambda c, r: c[: r.randrange(1, len(c))],
    "begin-cut-off": lambda c, r: c[r.randrange(1, len(c)) :],
    "line-lost": _drop_line,
    "lines-shuffled": _swap_lines,
    "bits-flipped": _flip,
    "bits-flipped-2": _flip,
    "doubled": lambda c, r: c + c,
    "reversed": lambda c, r: c[::-1],
    "random-bytes": lambda c, r: r.randbytes(3000),
    "random-ascii": lambda c, r: bytes(r.randrange(32, 127) for __ in range(3000)),
    "gzip-cut": lambda c, r: gzip.compress(c, mtime=0)[:-9],
    "gzip-flipped": lambda c, r: _flip(gzip.compress(c, mtime=0), r),
    "gzip-twice": lambda c, r: gzip.compress(gzip.compress(c, mtime=0), mtime=0),
    "gzip-of-nothing": lambda c, r: gzip.compress(b"", mtime=0),
    "gzip-and-rubbish": lambda c, r: gzip.compress(c, mtime=0) + b"rubbish",
    "tabs-to-spaces": lambda c, r: c.replace(b"\t", b" "),
    "spaces-to-ideographic": lambda c, r: c.replace(b" ", "\u3000".encode()),
    "line-separators": lambda c, r: c.replace(b"\n", "\u2028".encode()),
    "quotes-lost": lambda c, r: c.replace(b'"', b"", 3),
    "quote-added": lambda c, r: _insert(c, b'"', r),
    "letters-exotic": lambda c, r: c.replace(
        b"Anna", "\u202eא\u0301\u200d👩\u200d👩\u200d👧\u0000".encode().replace(b"\0", b"")
    ),
}


def _values() -> Iterator[tuple[str, str, int]]:
    """Records of JSON lines: what was done, the line, how many records it stands for."""
    good = '{"text": "Anna sleeps", "entities": %s}'
    spans = {
        "null": "null",
        "number": "7",
        "string": '"PER"',
        "object": "{}",
        "boolean": "true",
        "list-of-null": "[null]",
        "list-of-numbers": "[1, 2]",
        "list-of-lists": "[[]]",
        "short-triple": "[[0, 4]]",
        "long-triple": '[[0, 4, "PER", 9, 9]]',
        "start-negative": '[{"start": -1, "end": 4, "label": "PER"}]',
        "end-beyond": '[{"start": 0, "end": 99, "label": "PER"}]',
        "end-huge": '[{"start": 0, "end": 1e400, "label": "PER"}]',
        "end-large-integer": '[{"start": 0, "end": ' + "9" * 5000 + ', "label": "PER"}]',
        "start-float": '[{"start": 0.5, "end": 4, "label": "PER"}]',
        "start-string": '[{"start": "0", "end": "4", "label": "PER"}]',
        "start-nan": '[{"start": NaN, "end": 4, "label": "PER"}]',
        "start-true": '[{"start": true, "end": 4, "label": "PER"}]',
        "reversed": '[{"start": 4, "end": 0, "label": "PER"}]',
        "empty-span": '[{"start": 2, "end": 2, "label": "PER"}]',
        "label-null": '[{"start": 0, "end": 4, "label": null}]',
        "label-number": '[{"start": 0, "end": 4, "label": 3}]',
        "label-list": '[{"start": 0, "end": 4, "label": ["PER", "LOC"]}]',
        "label-empty": '[{"start": 0, "end": 4, "label": ""}]',
        "label-surrogate": '[{"start": 0, "end": 4, "label": "\\ud800"}]',
        "label-newline": '[{"start": 0, "end": 4, "label": "P\\nER"}]',
        "no-label": '[{"start": 0, "end": 4}]',
        "no-end": '[{"start": 0, "label": "PER"}]',
        "text-differs": '[{"start": 0, "end": 4, "label": "PER", "text": "Otto"}]',
        "overlapping": '[{"start": 0, "end": 4, "label": "A"}, {"start": 2, "end": 6, "label": "B"}]',
        "repeated": "[" + ", ".join(['{"start": 0, "end": 4, "label": "PER"}'] * 500) + "]",
        "by-label": '{"PER": {"Anna": [[0, 3]]}}',
        "by-label-broken": '{"PER": {"Anna": [[0]], "x": 3, "y": null}}',
        "by-label-deep": '{"PER": {"Anna": [[[0, 3]]]}}',
    }
    for name, value in spans.items():
        yield f"spans-{name}", good % value, 1
    texts = {
        "null": "null",
        "number": "3",
        "list": '["Anna"]',
        "object": '{"a": 1}',
        "empty": '""',
        "surrogate": '"a\\ud83d b"',
        "nul": '"a\\u0000b"',
        "unclosed": '"Anna',
        "bad-escape": '"\\x"',
        "control": '"a\tb\x01"',
        "rtl": '"\u202eABC\u202c שלום"',
        "marks": '"e\u0301\u0301\u0301 z\u200b\u200d\ufeff"',
        "lines": '"a\u2028b\u2029c\u0085d\x0ce"',
    }
    for name, value in texts.items():
        yield f"text-{name}", '{"text": ' + value + ', "entities": []}', 1
    tokens = {
        "unequal": ('["a", "b"]', '["O"]'),
        "null-token": ('["a", null]', '["O", "O"]'),
        "number-token": ('["a", 3]', '["O", "O"]'),
        "empty-token": ('["a", ""]', '["O", "B-PER"]'),
        "blank-token": ('["a", " "]', '["O", "B-PER"]'),
        "newline-token": ('["a", "b\\nc"]', '["O", "B-PER"]'),
        "null-tag": ('["a", "b"]', '["O", null]'),
        "number-tags": ('["a", "b"]', "[0, 1]"),
        "negative-tags": ('["a", "b"]', "[0, -1]"),
        "tags-string": ('["a", "b"]', '"O O"'),
        "empty-tag": ('["a", "b"]', '["O", ""]'),
        "bare-b": ('["a", "b"]', '["B-", "I-"]'),
        "unknown-prefix": ('["a", "b"]', '["O", "Q-PER"]'),
        "no-tokens": ("[]", "[]"),
        "nested": ('[["a"]]', '[["O"]]'),
    }
    for name, (words, tags) in tokens.items():
        yield f"tokens-{name}", '{"tokens": ' + words + ', "ner_tags": ' + tags + "}", 1
    others = {
        "not-a-record": "3",
        "null": "null",
        "list": "[1, 2]",
        "string": '"x"',
        "no-fields": "{}",
        "other-fields": '{"a": 1}',
        "empty-key": '{"": "x"}',
        "repeated-keys": '{"text": "a", "text": "b", "entities": []}',
        "cut-off": '{"text": "Anna", "enti',
        "single-quotes": "{'text': 'Anna', 'entities': []}",
        "trailing-comma": '{"text": "Anna", "entities": [],}',
        "two-on-a-line": '{"text": "a", "entities": []} {"text": "b", "entities": []}',
        "comment": "// a comment",
        "deep-list": "[" * 10_000 + "]" * 10_000,
        "deep-open": "[" * 10_000,
        "deep-object": '{"text": "a", "entities": ' + '{"a":' * 10_000 + "1" + "}" * 10_001,
        "deep-extra": '{"text": "a", "entities": [], "extra": ' + "[" * 500 + "]" * 500 + "}",
        "large-number": '{"text": "a", "entities": [], "n": ' + "1" * 6000 + "}",
        "many-keys": "{" + ", ".join(f'"k{i}": {i}' for i in range(20_000)) + "}",
    }
    for name, value in others.items():
        yield name, value, 1


def _json_cases() -> Iterator[Hostile]:
    good = _RECORD.format(i=1)
    for name, line, records in _values():
        content = f"{good}\n{line}\n{good}\n".encode("utf-8", "surrogatepass")
        yield Hostile(
            name=f"jsonl-value-{name}",
            format="jsonl",
            files={"v.jsonl": content},
            opened="v.jsonl",
            records=2 + records,
        )
        array = f"[{good},\n{line},\n{good}]".encode("utf-8", "surrogatepass")
        yield Hostile(
            name=f"json-value-{name}", format="json", files={"v.json": array}, opened="v.json"
        )
        alone = f"{line}\n".encode("utf-8", "surrogatepass")
        yield Hostile(
            name=f"jsonl-alone-{name}", format="jsonl", files={"w.jsonl": alone}, opened="w.jsonl"
        )


def _column_cases() -> Iterator[Hostile]:
    sentence = "Anna\tB-PER\nsleeps\tO\n\n"
    rows = {
        "missing-column": "Anna\n",
        "third-column": "Anna\tX\tB-PER\n",
        "empty-word": "\tB-PER\n",
        "empty-tag": "Anna\t\n",
        "only-tab": "\t\n",
        "blank-word": " \tO\n",
        "ideographic-blank-word": "\u3000\tO\n",
        "no-break-blank-word": "\u00a0\tO\n",
        "inside-first": "Anna\tI-PER\n",
        "bare-prefix": "Anna\tB-\n",
        "unknown-prefix": "Anna\tX-PER\n",
        "tag-without-label": "Anna\tB\n",
        "lower-case": "Anna\tb-per\n",
        "comment": "# a comment\n",
        "docstart": "-DOCSTART-\tO\n",
        "quote": '"\tO\n',
        "ten-columns": "a\t" * 9 + "O\n",
        "thousand-columns": "a\t" * 999 + "O\n",
        "zero-width-word": "\u200b\tO\n",
        "marks-word": "\u0301\u0301\tO\n",
        "rtl-word": "\u202eשלום\u202c\tB-PER\n",
        "emoji-word": "👩\u200d👩\u200d👧\tB-PER\n",
        "space-inside-word": "New York\tB-LOC\n",
        "line-separator-word": "a\u2028b\tO\n",
        "form-feed-word": "a\x0cb\tO\n",
        "backspace-word": "a\x08b\tO\n",
    }
    for name, row in rows.items():
        for where, content in (
            ("first", row + sentence + sentence),
            ("amid", sentence + row + sentence),
            ("last", sentence + sentence + row),
        ):
            yield Hostile(
                name=f"columns-{name}-{where}",
                format="columns",
                files={"r.bio": content.encode()},
                opened="r.bio",
            )


def _brat_cases() -> Iterator[Hostile]:
    annotations = {
        "no-tabs": "T1 PER 0 4 Anna\n",
        "beyond": "T1\tPER 0 400\tAnna\n",
        "negative": "T1\tPER -1 4\tAnna\n",
        "reversed": "T1\tPER 4 0\tAnna\n",
        "huge": f"T1\tPER 0 {'9' * 5000}\tAnna\n",
        "words-for-numbers": "T1\tPER zero four\tAnna\n",
        "other-digits": "T1\tPER ０ ４\tAnna\n",
        "no-label": "T1\t0 4\tAnna\n",
        "pieces": "T1\tPER 0 1;2 3;3 4\tA na\n",
        "pieces-broken": "T1\tPER 0 1;;3 4\tAnna\n",
        "relation-to-nothing": "R1\tLives Arg1:T8 Arg2:T9\n",
        "other-surface": "T1\tPER 0 4\tOtto\n",
        "same-id-twice": "T1\tPER 0 4\tAnna\nT1\tLOC 0 4\tAnna\n",
        "rubbish": "%%%\n\n\t\t\t\n",
    }
    for name, content in annotations.items():
        yield Hostile(
            name=f"brat-{name}",
            format="brat",
            files={"x/a.txt": b"Anna lives.\n", "x/a.ann": content.encode()},
            opened="x",
            records=1,
        )
    yield Hostile(
        name="brat-annotation-without-text",
        format="brat",
        files={"y/a.ann": b"T1\tPER 0 4\tAnna\n"},
        opened="y",
    )


def _table_cases() -> Iterator[Hostile]:
    def parquet(columns: dict[str, object], metadata: dict[bytes, bytes] | None = None) -> bytes:
        table = pa.table(columns).replace_schema_metadata(metadata)
        target = io.BytesIO()
        pa.parquet.write_table(table, target)
        return target.getvalue()

    tables = {
        "no-rows": parquet({"text": pa.array([], pa.string())}),
        "no-columns": parquet({}),
        "only-nulls": parquet({"text": pa.nulls(3), "entities": pa.nulls(3)}),
        "binary-text": parquet({"text": [b"\xff\xfe", b"a"], "entities": [[], []]}),
        "numbers": parquet({"text": [1, 2], "entities": [3, 4]}),
        "other-columns": parquet({"a": [1], "b": [2]}),
        "tags-beyond-names": parquet(
            {"tokens": [["a"]], "ner_tags": [[9]]},
            {
                b"huggingface": json.dumps(
                    {"info": {"features": {"ner_tags": {"feature": {"names": ["O"]}}}}}
                ).encode()
            },
        ),
        "metadata-rubbish": parquet({"tokens": [["a"]], "ner_tags": [[0]]}, {b"huggingface": b"{"}),
        "metadata-list": parquet(
            {"tokens": [["a"]], "ner_tags": [[0]]},
            {b"huggingface": b'{"info": {"features": ["x"]}}'},
        ),
        "metadata-deep": parquet(
            {"tokens": [["a"]], "ner_tags": [[0]]}, {b"huggingface": b"[" * 10_000}
        ),
        "tokens-unequal": parquet({"tokens": [["a", "b"]], "ner_tags": [["O"]]}),
        "tokens-null": parquet({"tokens": [["a", None]], "ner_tags": [["O", None]]}),
        "dates": parquet(
            {"text": ["a"], "entities": [[]], "t": pa.array([2**52], pa.timestamp("s"))}
        ),
    }
    for name, content in tables.items():
        yield Hostile(
            name=f"parquet-{name}",
            format="parquet",
            files={"t.parquet": content},
            opened="t.parquet",
        )
    for name, content in {
        "files-missing": b'{"_data_files": [{"filename": "nowhere.arrow"}]}',
        "files-number": b'{"_data_files": 3}',
        "file-number": b'{"_data_files": [{"filename": 3}]}',
        "files-none": b'{"_data_files": []}',
        "no-files": b"{}",
        "list": b"[]",
        "deep": b"[" * 10_000,
    }.items():
        yield Hostile(
            name=f"datasets-{name}", format="datasets", files={"s/state.json": content}, opened="s"
        )


def _large_cases() -> Iterator[Hostile]:
    good = _RECORD.format(i=1).encode()
    long_text = b"Anna " * (2 << 20)
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", compresslevel=9, mtime=0) as packed:
        zeros = b"a" * (1 << 20)
        for __ in range(512):
            packed.write(zeros)
    cases: dict[str, tuple[str, bytes, int | None]] = {
        "jsonl-10-mb-line": (
            "jsonl",
            good + b'\n{"text": "' + long_text + b'", "entities": []}\n' + good + b"\n",
            3,
        ),
        "text-10-mb-line": ("text", b"a\n" + long_text + b"\nb\n", None),
        "text-20-mb-line": ("text", b"a\n" + long_text * 2 + b"\nb\n", None),
        "columns-10-mb-word": ("columns", b"a\tO\n" + b"x" * (10 << 20) + b"\tO\n\n", 1),
        "columns-10-mb-without-line": ("columns", b"a\tO\n" + b"x" * (10 << 20), None),
        "words-10-mb-line": ("words", "我们  住在  ".encode() * (1 << 19) + b"\n", 1),
        "slash-10-mb-line": ("slash", "我/r 在/v ".encode() * (1 << 19) + b"\n", 1),
        "csv-10-mb-cell": (
            "csv",
            b'text,entities\na,[]\n"' + long_text + b'",[]\nb,[]\n',
            3,
        ),
        "csv-quote-never-closed": ("csv", b'text,entities\n"a' + b"x,y\n" * (2 << 20), None),
        "gzip-bomb": ("text", bomb.getvalue(), None),
        "million-blank-lines": ("columns", b"a\tO\n" + b"\n" * 1_000_000 + b"b\tO\n", 2),
        "sentence-of-200-000-tokens": ("columns", b"a\tO\n" * 200_000 + b"\n", 1),
        "json-array-of-a-million-numbers": ("json", b"[" + b"1," * 1_000_000 + b"1]", None),
        "jsonl-record-of-100-000-spans": (
            "jsonl",
            b'{"text": "Anna", "entities": ['
            + b",".join([b'{"start": 0, "end": 4, "label": "PER"}'] * 100_000)
            + b"]}\n",
            1,
        ),
    }
    for name, (kind, content, records) in cases.items():
        yield Hostile(
            name=f"large-{name}",
            format=kind,
            files={"large.dat": content},
            opened="large.dat",
            records=records,
            large=True,
        )


def _million_columnar(file_format: str) -> bytes:
    offsets = pa.array(range(_MILLION + 1), pa.int32())
    table = pa.table(
        {
            name: pa.ListArray.from_arrays(offsets, pa.repeat(pa.scalar(value), _MILLION))
            for name, value in (("tokens", "a"), ("ner_tags", "O"))
        }
    )
    out = io.BytesIO()
    if file_format == "parquet":
        pa.parquet.write_table(table, out)
    else:
        with pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
    return out.getvalue()


_MILLION = 1_000_000
# Name -> format and what makes its files; the first is opened. Made one at a time: they are large.
_MILLIONS: dict[str, tuple[str, Callable[[], dict[str, bytes]]]] = {
    "spans.jsonl": ("jsonl", lambda: {"a": b'{"text": "a", "entities": []}\n' * _MILLION}),
    "words.jsonl": ("jsonl", lambda: {"a": b'{"tokens": ["a"], "ner_tags": ["O"]}\n' * _MILLION}),
    "json": (
        "json",
        lambda: {
            "a": b"[" + b'{"text": "a", "entities": []},\n' * (_MILLION - 1) + b'{"text": ""}]'
        },
    ),
    "columns": ("columns", lambda: {"a": b"a\tO\n\n" * _MILLION}),
    "columns-of-entities": ("columns", lambda: {"a": b"a\tB-PER\n\n" * _MILLION}),
    "conllu": ("conllu", lambda: {"a": b"1\ta\ta\tX\tX\t_\t0\troot\t_\t_\n\n" * _MILLION}),
    "words": ("words", lambda: {"a": "我们\n".encode() * _MILLION}),
    "slash": ("slash", lambda: {"a": b"a/n\n" * _MILLION}),
    "text": ("text", lambda: {"a": b"a\n" * _MILLION}),
    "csv": ("csv", lambda: {"a": b"text,entities\n" + b"a,[]\n" * _MILLION}),
    "csv-of-words": (
        "csv",
        lambda: {"a": b"Sentence #,Word,Tag\n" + b"1,a,O\n2,a,O\n" * (_MILLION // 2)},
    ),
    "pair": ("pair", lambda: {"sentences.txt": b"a\n" * _MILLION, "tags.txt": b"O\n" * _MILLION}),
    "parquet": ("parquet", lambda: {"a.parquet": _million_columnar("parquet")}),
    "arrow": ("arrow", lambda: {"a.arrow": _million_columnar("arrow")}),
}
MILLION_NAMES = tuple(_MILLIONS)


def million_sentences(name: str) -> Hostile:
    """Make one of the files of a million one-token sentences."""
    kind, make = _MILLIONS[name]
    files = make()
    return Hostile(
        name=f"million-{name}", format=kind, files=files, opened=next(iter(files)), records=_MILLION
    )


def hostile_inputs(seed: int = SEED) -> Iterator[Hostile]:
    """Yield all cases, the same for the same seed."""
    rng = random.Random(seed)
    for sample in _samples():
        yield sample.hostile("sound", sample.content, sample.records)
        for what, change in _CHANGES.items():
            yield sample.hostile(what, change(sample.content, rng))
    yield from _json_cases()
    yield from _column_cases()
    yield from _brat_cases()
    yield from _table_cases()
    yield from _large_cases()
