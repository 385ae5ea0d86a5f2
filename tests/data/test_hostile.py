"""Hundreds of malformed inputs at every reader: a repair or an error with its place, never worse.

Never a traceback, never longer than 5 s of processor time, never 1 GB of memory, never a record
that is gone without a word.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from bertfit.data.formats import FORMATS, OnError, ProblemLog, ReadOptions, read
from bertfit.errors import BertfitError
from data.hostile import MILLION_NAMES, Hostile, hostile_inputs, million_sentences

CASES = list(hostile_inputs())
SMALL = [case for case in CASES if not case.large]
LARGE = [case for case in CASES if case.large]
READERS = [name for name in FORMATS if name != "hub"]
MOST_SECONDS = 5.0
# Ten megabytes in one line are work, at a rate, and no hang: the slowest took 10 s on a busy
# machine.
MOST_SECONDS_LARGE = 20.0
# A million records are 2 to 7 s of work; a reader that takes this long stands still.
MOST_SECONDS_MILLION = 60.0
MOST_BYTES = 1 << 30


class Hanging(BaseException):
    """The reader took too long."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise after so much processor time, whatever else this machine does meanwhile."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hanging

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def peak_bytes(*, reset: bool = False) -> int:
    """Return the most memory this process held since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def attack(case: Hostile, folder: Path, reader: str | None, on_error: OnError) -> str | None:
    """Read a case and return what is wrong with how it went."""
    path = case.write(folder)
    log, count, refusal = ProblemLog(), 0, None
    before = peak_bytes(reset=True)
    try:
        with time_limit(MOST_SECONDS_LARGE if case.large else MOST_SECONDS):
            for __ in read(path, ReadOptions(format=reader, on_error=on_error), log):
                count += 1
    except BertfitError as error:
        refusal = str(error)
    except Hanging:
        return "too slow"
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    if peak_bytes() - before > MOST_BYTES:
        return f"{(peak_bytes() - before) >> 20} MiB"
    if refusal is not None:
        return None if str(folder) in refusal else f"no file in {refusal!r}"
    if count != log.records_read:
        return f"{count} records came, {log.records_read} were counted"
    if log.records_dropped and not log.count("error"):
        return f"{log.records_dropped} records were dropped in silence"
    known = case.records is not None and reader in (None, case.format) and on_error == "skip"
    if known and log.records_read + log.records_dropped != case.records:
        return f"{case.records} in, {log.records_read} out, {log.records_dropped} reported"
    return None


def faults(
    cases: list[Hostile], folder: Path, readers: list[str | None], on_error: OnError
) -> list[str]:
    found = []
    for number, case in enumerate(cases):
        for reader in readers:
            fault = attack(case, folder / str(number), reader, on_error)
            if fault is not None:
                found.append(f"{case.name}, read as {reader}, {on_error}: {fault}")
    return found


def test_there_are_hundreds_and_they_are_the_same_every_time() -> None:
    assert len(SMALL) >= 300
    assert len({case.name for case in CASES}) == len(CASES)
    again = list(hostile_inputs())
    assert [case.files for case in again if not case.large] == [case.files for case in SMALL]


def test_the_sound_files_that_were_broken_are_read_whole(tmp_path: Path) -> None:
    sound = [case for case in SMALL if case.name.endswith("-sound")]
    assert len(sound) > 15
    for number, case in enumerate(sound):
        log = ProblemLog()
        options = ReadOptions(format=case.format)
        assert len(list(read(case.write(tmp_path / str(number)), options, log))) == case.records
        assert not log.count("error"), case.name


def test_every_small_case_at_its_own_reader_and_by_content(tmp_path: Path) -> None:
    found = []
    for number, case in enumerate(SMALL):
        found += faults([case], tmp_path / str(number), [None, case.format], "skip")
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("on_error", ["refuse", "skip", "keep"])
def test_every_small_case_at_every_reader(tmp_path: Path, reader: str, on_error: OnError) -> None:
    found = faults(SMALL, tmp_path, [reader], on_error)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.name)
def test_large_cases_take_neither_memory_nor_time(tmp_path: Path, case: Hostile) -> None:
    found = faults([case], tmp_path, [None, case.format], "skip")
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", MILLION_NAMES)
def test_a_million_one_token_sentences_are_all_read(tmp_path: Path, name: str) -> None:
    # How long that takes is for benchmarks/million_sentences.py to say, on a quiet machine. No
    # reader is silent for long meanwhile.
    case = million_sentences(name)
    path = case.write(tmp_path)
    log = ProblemLog()
    before = peak_bytes(reset=True)
    count, longest, last = 0, 0.0, time.process_time()
    with time_limit(MOST_SECONDS_MILLION):
        for __ in read(path, ReadOptions(format=case.format), log):
            now = time.process_time()
            count, longest, last = count + 1, max(longest, now - last), now
    assert longest < MOST_SECONDS
    assert count == log.records_read == case.records
    assert not log.records_dropped and not log.count("error")
    assert peak_bytes() - before < MOST_BYTES
