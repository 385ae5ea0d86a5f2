"""Every message of the program has its Chinese, and the Chinese fits the message."""

import ast
import re
from functools import cache
from pathlib import Path
from string import Formatter

import pytest
from babel.messages.catalog import Message
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po

import bertfit
from bertfit.cli import main
from bertfit.config import job_config
from bertfit.errors import ConfigError
from bertfit.language import LOCALE_FOLDER, _, current_language, use_language

SOURCE = Path(bertfit.__file__).parent
ENVIRONMENT = ("BERTFIT_LANG", "LC_ALL", "LC_MESSAGES", "LANG")


@cache
def source_messages() -> dict[str, str]:
    """Message -> the first place in the source that shows it."""
    found: dict[str, str] = {}
    for name, line, message, *__ in extract_from_dir(
        SOURCE, method_map=[("**.py", "python")], keywords={"_": None, "N_": None}
    ):
        found.setdefault(str(message), f"src/bertfit/{name}:{line}")
    return found


@cache
def translations() -> list[tuple[str, Message]]:
    """All entries of all .po files, with the name of the file."""
    entries = []
    for path in sorted((LOCALE_FOLDER / "zh").glob("*.po")):
        with path.open("rb") as file:
            entries += [(path.name, entry) for entry in read_po(file, locale="zh") if entry.id]
    return entries


def placeholders(message: str) -> set[str]:
    return {name for __, name, __, __ in Formatter().parse(message) if name is not None}


def complain(faults: list[str]) -> None:
    assert not faults, "\n" + "\n".join(faults)


def test_the_source_is_searched() -> None:
    assert "'{text}' is not a size above zero." in source_messages()


def test_every_message_has_its_chinese() -> None:
    chinese = {str(entry.id) for __, entry in translations() if entry.string}
    complain(
        [
            f"{place}: no Chinese for {message!r}"
            for message, place in source_messages().items()
            if message not in chinese
        ]
    )


def test_no_chinese_is_left_over() -> None:
    complain(
        [
            f"{file}: no source shows {entry.id!r}"
            for file, entry in translations()
            if entry.id not in source_messages()
        ]
    )


def test_no_message_is_translated_twice() -> None:
    files: dict[str, list[str]] = {}
    for file, entry in translations():
        files.setdefault(str(entry.id), []).append(file)
    complain([f"{names}: both have {key!r}" for key, names in files.items() if len(names) > 1])


def test_no_entry_is_fuzzy() -> None:
    complain([f"{file}: fuzzy {entry.id!r}" for file, entry in translations() if entry.fuzzy])


def test_chinese_has_the_placeholders_of_the_english() -> None:
    complain(
        [
            f"{file}: {entry.string!r} has other placeholders than {entry.id!r}"
            for file, entry in translations()
            if placeholders(str(entry.id)) != placeholders(str(entry.string))
        ]
    )


def test_placeholders_have_names() -> None:
    complain(
        [
            f"{place}: a placeholder without a name in {message!r}"
            for message, place in source_messages().items()
            if any(not name or name.isdigit() for name in placeholders(message))
        ]
    )


def test_chinese_is_written_in_chinese() -> None:
    complain(
        [
            f"{file}: {entry.string!r}"
            for file, entry in translations()
            if re.search("[A-Za-z]{3}", re.sub(r"\{[^}]*\}", "", str(entry.id)))
            and not re.search("[\u4e00-\u9fff]", str(entry.string))
        ]
    )


def test_space_around_a_message_is_kept() -> None:
    def edges(message: str) -> tuple[bool, bool]:
        return message[:1] == "\n", message[-1:] == "\n"

    complain(
        [
            f"{file}: {entry.string!r} begins or ends its lines otherwise than {entry.id!r}"
            for file, entry in translations()
            if edges(str(entry.id)) != edges(str(entry.string))
        ]
    )


def test_messages_are_plain_texts_that_can_be_looked_up() -> None:
    """An f-string, or a text that was formatted first, would never match an entry."""
    faults = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("_", "N_")
                and isinstance(node.args[0], ast.JoinedStr | ast.Call | ast.BinOp)
            ):
                faults.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}")
    complain(faults)


def test_a_message_is_shown_in_the_chosen_language() -> None:
    message = "'{text}' is not a size above zero."
    assert _(message) == message
    use_language("zh")
    assert _(message).format(text="0 GB") == "“0 GB”不是大于零的大小。"
    with pytest.raises(ConfigError) as caught:
        job_config({"model": "m", "train_file": "x", "budget": "3 parsecs"})
    assert str(caught.value).endswith("或只写字节数。"), "and no second full stop"


def test_a_message_without_translation_is_shown_as_it_is() -> None:
    use_language("zh")
    assert _("no such message") == "no such message"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"BERTFIT_LANG": "zh", "LANG": "en_US.UTF-8"}, "zh"),
        ({"BERTFIT_LANG": "en", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LC_ALL": "C.UTF-8", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LC_MESSAGES": "zh_TW.UTF-8", "LANG": "de_DE.UTF-8"}, "zh"),
        ({"LANG": "fr_FR.UTF-8"}, "en"),
    ],
)
def test_the_environment_chooses_the_language(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_language(None)
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert current_language() == expected


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        *((name, False) for name in ("", "en", "en_US.UTF-8", "zh-TW", "zhongwen", "C.UTF-8")),
        *((name, True) for name in ("fr", "cs_CZ", "english2")),
    ],
)
def test_a_language_that_is_asked_for_in_vain_is_noted_once(
    name: str,
    unknown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use_language(None)
    monkeypatch.setenv("BERTFIT_LANG", name)
    assert main(["--version"]) == 0
    noted = f"BERTFIT_LANG '{name}': no such language here; it is English. Use one of en, zh.\n"
    assert capsys.readouterr().err == (noted if unknown else "")
    assert main(["--version", "--lang", "zh"]) == 0
    assert not capsys.readouterr().err, "another word has it"


def test_an_unknown_language_is_refused() -> None:
    with pytest.raises(ValueError, match="klingon"):
        use_language("klingon")
