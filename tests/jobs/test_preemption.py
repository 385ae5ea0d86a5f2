import pytest

from bertfit.jobs import preemption


def test_a_command_that_ends_in_the_moment_it_is_stopped_is_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread waits for it, and sees its end between our question and our signal."""

    def gone(group: int, number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(preemption.os, "killpg", gone)
    answer = preemption._Answer("sleep 0.3; exit 3")
    answer.end()
    assert answer.wait() == 3


def test_a_command_that_does_not_end_is_ended() -> None:
    answer = preemption._Answer("sleep 60")
    answer.end()
    assert answer.wait() == -9
