"""Start a command in the background, where closing the terminal does not reach it."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from bertfit.errors import ConfigError
from bertfit.jobs.run_status import LOG_FILE, read_status, status_of, write_status
from bertfit.jobs.runs import refuse_at_work, register
from bertfit.language import _

# A program that cannot even start is gone by then.
WATCH_SECONDS = 0.7


def start_detached(arguments: Sequence[str], folder: Path) -> str:
    """Run `bertfit` with some arguments in a session of its own, its words going to `log.txt`.

    Args:
        arguments: what follows `bertfit`.
        folder: the run folder that the command writes.

    Returns:
        The id of the run.

    Raises:
        ConfigError: a run is at work in the folder, the folder cannot be written, or the command
            ended at once.
    """
    refuse_at_work(folder)
    before = read_status(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOG_FILE).open("ab") as log:
            process = _start([sys.executable, "-m", "bertfit", *arguments], log.fileno())
    except OSError as error:
        raise ConfigError(
            _("{path}: cannot be written ({reason}).").format(
                path=folder, reason=error.strerror or error
            )
        ) from None
    # The command takes over as soon as it has loaded what it needs, which takes seconds.
    try:
        status = replace(
            status_of(psutil.Process(process.pid), "starting"),
            in_log=True,
            replaces=before is not None and before.holds_finished,
        )
    except psutil.Error:
        status = None
    if status is not None and read_status(folder) == before:
        write_status(folder, status)
    deadline = time.monotonic() + WATCH_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if process.poll() not in (None, 0):
        last = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
        raise ConfigError(
            _("The run ended at once: {reason} See {log}.").format(
                reason=last[-1] if last else "?", log=folder / LOG_FILE
            )
        )
    # It goes on without this process: no warning that it still runs when this object goes.
    process.returncode = 0
    return register(folder)


def _start(command: list[str], log: int) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if sys.platform == "win32":
        flags = subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            creationflags=flags,
            env=environment,
        )
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # no hang-up when the terminal closes, no Ctrl-C from it
        env=environment,
    )
