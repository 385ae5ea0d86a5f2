"""What every job from a file to a file must bear: being killed anywhere, and going on."""

import random
from collections.abc import Callable
from pathlib import Path

from jobs.killing import run_and_kill

LETTERS = "abcdefgh 北京上海我爱👍.,"


def write_texts(path: Path, count: int, seed: int = 0) -> list[str]:
    """Write short random texts, one a line; returns them."""
    rng = random.Random(seed)
    texts = [
        "".join(rng.choices(LETTERS, k=rng.randint(1, 30))).strip() or "a" for __ in range(count)
    ]
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return texts


def check_random_kills(
    run: Callable[[Path], object],
    content: Callable[[Path], bytes],
    folder: Path,
    name: str,
    kills: int,
) -> None:
    """Kill a job at random moments until it was killed so often, going on each time.

    Args:
        run: does the job, with that output.
        content: what an output says.
        folder: where outputs may be.
        name: of the output.
        kills: how many.
    """
    run(folder / "whole" / name)
    expected = content(folder / "whole" / name)
    rng = random.Random(name)
    killed = attempts = 0
    while killed < kills:
        output = folder / f"o{attempts}" / name
        attempts += 1
        assert attempts < 10 * kills
        done = False
        while not done:
            done = run_and_kill(
                lambda output=output: run(output),  # type: ignore[misc]
                rng.randint(1, 40) if killed < kills else None,
                rng.choice([0.0, rng.uniform(0, 0.01)]),
            )
            killed += not done
            # Killed when all was done, before the process ended: nothing is left to go on with.
            done = done or (output.exists() and not list(output.parent.glob("*.part*")))
        assert content(output) == expected
        assert not list(output.parent.glob("*.part*"))


def check_kill_at_every_write(
    run: Callable[[Path], object], content: Callable[[Path], bytes], folder: Path, name: str
) -> None:
    """Die before every single fsync, rename and removal: once at the first, once at the second..."""
    run(folder / "whole" / name)
    output = folder / "o" / name
    rounds = 0
    for number in range(1, 200):
        rounds += 1
        if run_and_kill(lambda: run(output), number):  # type: ignore[arg-type,return-value]
            break
    assert rounds > 3
    assert content(output) == content(folder / "whole" / name)
    names = [path.name for path in (folder / "whole").iterdir()]
    assert sorted(path.name for path in output.parent.iterdir()) == sorted(names)
