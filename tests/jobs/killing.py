"""Run work in a child that is killed, as the kernel kills: no handler, no cleaning up."""

import os
import signal
import threading
from collections.abc import Callable


def run_and_kill(work: Callable[[], None], at_call: int | None, delay_seconds: float = 0.0) -> bool:
    """Run work in a forked child; kill it at a call that writes. True if it was done before.

    Moments are counted in calls (fsync, rename, removal), not on a clock, so that a busy machine
    kills at the same ones.

    Args:
        work: what to do.
        at_call: the call before which the child is killed; None lets it live.
        delay_seconds: the death comes so much later, in the middle of whatever is done then.

    Raises:
        AssertionError: the child failed by itself.
    """
    child = os.fork()
    if child == 0:
        try:
            import torch

            torch.set_num_threads(1)  # the threads of the parent's pool are not here
            if at_call is not None:
                on_writing_call(at_call, lambda: _die(delay_seconds))
            work()
        except BaseException:  # noqa: BLE001 (the child must not run on as a second pytest)
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    __, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    assert os.waitstatus_to_exitcode(status) == 0, "the child failed"
    return True


def _die(delay_seconds: float) -> None:
    if not delay_seconds:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Timer(delay_seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


def on_writing_call(number: int, action: Callable[[], None]) -> Callable[[], None]:
    """Do something before the `number`-th call that writes; returns what undoes the watching."""
    originals = {name: getattr(os, name) for name in ("fsync", "replace", "unlink")}
    calls = 0

    def watched(name: str) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == number:
                action()
            result: object = originals[name](*arguments, **options)
            return result

        return call

    for name in originals:
        setattr(os, name, watched(name))

    def undo() -> None:
        for name, original in originals.items():
            setattr(os, name, original)

    return undo
