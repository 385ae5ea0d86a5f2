"""Word that the machine is about to be taken away: a file that appears, a command that succeeds."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from bertfit.errors import ConfigError
from bertfit.language import _

# AWS, "Spot Instance interruption notices": look every 5 seconds; the notice comes 2 minutes ahead,
# with Google and Azure 30 seconds.
COMMAND_SECONDS = 5.0
# A command that has not answered by then is ended.
PATIENCE_SECONDS = 10.0
# POSIX shell, "Exit Status for Commands": found but not to be run, and not found.
_CANNOT_RUN = (126, 127)


def try_command(command: str) -> None:
    """Run a preemption command once: a misspelt one shows before training, not when it is needed.

    Raises:
        ConfigError: the shell cannot run it, or it does not answer.
    """
    fault = _fault(_Answer(command).wait())
    if fault is not None:
        raise ConfigError(
            _(
                "--preemption-command {command}: {reason}. Give a command that ends at once: with "
                "exit code 0 when this machine is about to be taken away, else with another."
            ).format(command=command, reason=fault)
        )


def _fault(exit_code: int | None) -> str | None:
    """Say why an answer is none; None where it is one."""
    if exit_code is None:
        return _("no answer within {seconds:.0f} s").format(seconds=PATIENCE_SECONDS)
    if exit_code in _CANNOT_RUN:
        return _("the shell cannot run it (exit code {code})").format(code=exit_code)
    return None


class _Answer:
    """One run of a command; nothing that it prints is looked at."""

    def __init__(self, command: str) -> None:
        self._process = subprocess.Popen(
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is not for it, and it can be ended with its children
        )

    def wait(self) -> int | None:
        """Return its exit code; None where it did not end in time, and was ended."""
        try:
            return self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.end()
            return None

    def end(self) -> None:
        """End it, if it has not ended by itself."""
        if self._process.poll() is None:
            if sys.platform == "win32":
                self._process.kill()
            else:
                # The thread that waits for it may have seen its end in this moment.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Preemption:
    """Looks out for the word while the block runs.

    Args:
        file: it is announced by this file's being there.
        command: it is announced by this command's success; a thread runs it from time to time.
        say: told once where the command gives no answer.
    """

    def __init__(self, file: Path | None, command: str | None, say: Callable[[str], None]) -> None:
        self._file, self._command, self._say = file, command, say
        self._succeeded = False
        self._over = threading.Event()
        self._answer: _Answer | None = None
        self._thread = threading.Thread(target=self._look_out, name="preemption", daemon=True)

    def word(self) -> str:
        """Return the word that has come, empty until then; takes microseconds."""
        if self._succeeded:
            return f"--preemption-command {self._command}"
        if self._file is not None and self._file.exists():
            return f"--preemption-file {self._file}"
        return ""

    def _look_out(self) -> None:
        warned = False
        while not self._over.is_set():
            assert self._command is not None
            try:
                self._answer = _Answer(self._command)
                code = self._answer.wait()
            except OSError:  # no process can be started now
                code = _CANNOT_RUN[0]
            if code == 0:
                self._succeeded = True
                return
            fault = _fault(code)
            if fault is not None and not warned and not self._over.is_set():
                warned = True
                self._say(
                    _(
                        "Warning: --preemption-command {command}: {reason}. It is run again every "
                        "{seconds:.0f} s."
                    ).format(command=self._command, reason=fault, seconds=COMMAND_SECONDS)
                )
            self._over.wait(COMMAND_SECONDS)

    def __enter__(self) -> Self:
        if self._command is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._answer is not None:
            self._answer.end()  # the run does not wait for it
