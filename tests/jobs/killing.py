"""Run work in a child that is killed, as the kernel kills: no handler, no cleaning up."""

import os
import signal
import time
from collections.abc import Callable


def run_and_kill(work: Callable[[], None], seconds: float | None) -> bool:
    """Run work in a forked child; kill it after some seconds. True if it was done before.

    Raises:
        AssertionError: the child failed by itself.
    """
    child = os.fork()
    if child == 0:
        try:
            import torch

            torch.set_num_threads(1)  # the threads of the parent's pool are not here
            work()
        except BaseException:  # noqa: BLE001 (the child must not run on as a second pytest)
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if end is not None and time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            end = None
        time.sleep(0.0005)
    if os.WIFSIGNALED(status):
        return False
    assert os.waitstatus_to_exitcode(status) == 0, "the child failed"
    return True


def die_at_call(number: int) -> Callable[[], None]:
    """Return a function that kills this process when it is called for the `number`-th time."""
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return count
