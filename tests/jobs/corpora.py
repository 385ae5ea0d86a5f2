"""Small corpora written by the tests."""

import json
import random
from pathlib import Path

NAMES = ("Anna", "Bert", "Carl", "Dora", "Emil", "Frida", "Gert", "Hilde")
PLACES = ("Rome", "Oslo", "Lima", "Kyoto", "Bern", "Cairo")


def sentence(rng: random.Random) -> dict[str, object]:
    """One sentence with a PER and a LOC."""
    name, place = rng.choice(NAMES), rng.choice(PLACES)
    text = rng.choice((f"{name} lives in {place} .", f"In {place} we met {name} today ."))
    return {
        "text": text,
        "entities": [
            {"start": text.index(s), "end": text.index(s) + len(s), "label": label}
            for s, label in ((name, "PER"), (place, "LOC"))
        ],
    }


def write_corpus(path: Path, count: int, seed: int = 0, **extra: object) -> Path:
    """Write `count` sentences as span JSON lines."""
    rng = random.Random(seed)
    return write_records(path, [sentence(rng) for __ in range(count)])


def write_records(path: Path, records: list[dict[str, object]]) -> Path:
    """Write records as JSON lines."""
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    path.write_text("".join(lines), encoding="utf-8")
    return path
