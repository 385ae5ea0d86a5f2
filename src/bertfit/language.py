"""The language of messages: English in the code, Chinese in `locale/zh/*.po`.

One `.po` file per folder of the source. They are read when the first message is translated, so
English costs nothing. Placeholders are named: `_("{path} is missing.").format(path=path)`.
"""

import locale
import os
import re
from functools import lru_cache
from pathlib import Path

LANGUAGES = ("en", "zh")
LOCALE_FOLDER = Path(__file__).parent / "locale"

_CHINESE = ("zh", "chinese")
_chosen: str | None = None


def use_language(name: str | None) -> None:
    """Choose the language of all later messages; None goes back to the environment's.

    Raises:
        ValueError: a language that is not in `LANGUAGES`.
    """
    global _chosen
    if name is not None and name not in LANGUAGES:
        raise ValueError(name)
    _chosen = name


def unknown_language() -> str | None:
    """Return the language that `BERTFIT_LANG` asks for in vain; None where it does not."""
    wanted = os.environ.get("BERTFIT_LANG", "")
    language = re.split(r"[-_.@]", wanted.lower())[0]
    known = language in ("", "c", "posix", "en", "english") or language.startswith(_CHINESE)
    return None if known or _chosen is not None else wanted


def current_language() -> str:
    """Return the chosen language, else `BERTFIT_LANG`, else the locale's, else English."""
    if _chosen is not None:
        return _chosen
    wanted = os.environ.get("BERTFIT_LANG", "")
    if not wanted:
        for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
            if os.environ.get(name):
                wanted = os.environ[name]
                break
        else:
            wanted = locale.getlocale()[0] or ""
    return "zh" if wanted.lower().startswith(_CHINESE) else "en"


@lru_cache(maxsize=1)
def _chinese() -> dict[str, str]:
    from babel.messages.pofile import read_po

    messages: dict[str, str] = {}
    for path in sorted((LOCALE_FOLDER / "zh").glob("*.po")):
        with path.open("rb") as file:
            for message in read_po(file, locale="zh"):
                if message.id and message.string and not message.fuzzy:
                    messages[str(message.id)] = str(message.string)
    return messages


def _(message: str) -> str:
    """Translate a message of the program, or return it as it is."""
    return _chinese().get(message, message) if current_language() == "zh" else message


def N_(message: str) -> str:
    """Mark a constant for translation; `_` translates it where it is shown."""
    return message
