"""Chunks, even batches, and the two threads around the model."""

import threading
import time
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertfit.jobs.chunks import Chunk, ahead, chunks
from bertfit.jobs.writing import WriterThread
from bertfit.types import Example, Window
from tiny_models import random_window


def cut(examples: Iterable[Example]) -> Iterator[Window]:
    """One window of as many tokens as the text has letters; none for an empty one."""
    import dataclasses

    for index, example in enumerate(examples):
        if example.text:
            yield dataclasses.replace(random_window(len(example.text), 0), index=index)


def of_lengths(lengths: Iterable[int]) -> list[Chunk]:
    examples = [Example(id=str(i), text="x" * n) for i, n in enumerate(lengths)]
    return list(chunks(examples, cut, 20))


@given(st.lists(st.one_of(st.just(0), st.integers(3, 30)), max_size=60))
def test_chunks_are_the_input_in_order(lengths: list[int]) -> None:
    found = of_lengths(lengths)
    assert [int(e.id) for chunk in found for e in chunk.examples] == list(range(len(lengths)))
    for chunk in found:
        sizes = [len(window.input_ids) for window in chunk.windows]
        assert sizes == [len(e.text) for e in chunk.examples if e.text]
        assert [w.index for w in chunk.windows] == [
            i for i, e in enumerate(chunk.examples) if e.text
        ]
        assert sum(sizes[:-1]) < 20


@given(st.lists(st.integers(3, 30), min_size=1, max_size=60), st.integers(0, 59))
def test_a_chunk_is_a_function_of_where_it_begins(lengths: list[int], at: int) -> None:
    """Going on at the beginning of a chunk gives the chunks of the undisturbed run."""
    found = of_lengths(lengths)
    sizes = [[len(e.text) for e in chunk.examples] for chunk in found]
    at %= len(found)
    done = sum(len(chunk.examples) for chunk in found[:at])
    assert [[len(e.text) for e in chunk.examples] for chunk in of_lengths(lengths[done:])] == sizes[
        at:
    ]


def test_empty_texts_alone_do_not_make_an_endless_chunk() -> None:
    found = of_lengths([0] * 10_000)
    assert max(len(chunk.examples) for chunk in found) == 4096
    assert sum(len(chunk.examples) for chunk in found) == 10_000


def test_reading_ahead_is_bounded_and_ends_with_the_reader() -> None:
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    stream = ahead(endless(), depth=2)
    assert [next(stream) for __ in range(3)] == [1, 2, 3]
    time.sleep(0.05)
    assert taken <= 7
    stream.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name == "bertfit-reader"]


def test_what_the_reading_thread_raises_is_raised_where_it_is_asked() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("line 2")

    stream = ahead(broken())
    assert next(stream) == 1
    with pytest.raises(ValueError, match="line 2"):
        next(stream)


def test_the_writer_writes_in_order_and_behind_a_bounded_queue() -> None:
    written: list[int] = []
    gate = threading.Event()

    def write(item: int) -> None:
        gate.wait()
        written.append(item)

    with WriterThread(write) as writer:
        for item in range(3):
            writer.put(item)
        late = threading.Timer(0.05, gate.set)
        late.start()
        begin = time.monotonic()
        writer.put(3)  # one is being written and two wait: this one has to
        assert time.monotonic() - begin > 0.02
    assert written == [0, 1, 2, 3]
    assert not [t for t in threading.enumerate() if t.name == "bertfit-writer"]


def test_after_a_failed_write_nothing_more_is_written() -> None:
    written: list[int] = []

    def write(item: int) -> None:
        if item == 1:
            raise OSError("disk full")
        written.append(item)

    with pytest.raises(OSError, match="disk full"), WriterThread(write) as writer:
        for item in range(50):
            writer.put(item)
    assert written == [0]


def test_what_was_put_is_written_even_when_the_work_is_interrupted() -> None:
    written: list[int] = []
    with pytest.raises(KeyboardInterrupt), WriterThread(written.append) as writer:
        writer.put(1)
        writer.put(2)
        raise KeyboardInterrupt
    assert written == [1, 2]
