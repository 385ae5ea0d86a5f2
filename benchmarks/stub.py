"""Jobs on the CUDA build of PyTorch over the stub runtime ../shared/tools/phantom_gpu.

Every request for memory is PyTorch's own there, and kernels do nothing. A script that has such
jobs calls `serve(run_job)` when `--serve` is its argument; `Stub(script)` starts it so, with the
runtime preloaded. Each job is a process of its own, forked from that one, which has imported what
jobs need and has touched no card.
"""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

PHANTOM = Path(__file__).resolve().parents[2] / "shared/tools/phantom_gpu"


def build_folder() -> Path:
    """Return the folder of the built runtime, PHANTOM_BUILD or one that is made here."""
    own = f"bertfit-phantom-{os.getuid()}-{version('torch')}"  # it is built for one torch
    folder = Path(os.environ.get("PHANTOM_BUILD", Path(tempfile.gettempdir()) / own))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever comes second waits for what the first builds
        if not (folder / "libnvidia-ml.so.1").exists():  # the last file that is made
            build = [PHANTOM / "build.sh", sys.executable, folder]
            subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    return folder


class Stub:
    """A card of the stub runtime, on which jobs run one after the other.

    Args:
        script: path of the script whose jobs they are.
        variables: PHANTOM_* and others; see the README of the runtime. A job may also set them
            itself, before its first use of the card.
    """

    def __init__(self, script: str, **variables: str) -> None:
        folder = build_folder()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTORCH_")}
        environment.update(
            LD_PRELOAD=f"{folder}/libphantom.so",
            LD_LIBRARY_PATH=str(folder),
            OMP_NUM_THREADS="1",
            # cuBLAS makes outer products: Triton loads what the runtime has not.
            TORCH_DISABLE_NATIVE_JIT="1",
            HF_HUB_OFFLINE="1",
            TRANSFORMERS_VERBOSITY="error",
            PYTHONWARNINGS="ignore",
            **variables,
        )
        self._server = subprocess.Popen(
            [sys.executable, script, "--serve"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, job: dict) -> dict:
        """Return what a job answers; `failed` says why it did not."""
        assert self._server.stdin and self._server.stdout
        print(json.dumps(job), file=self._server.stdin, flush=True)
        for line in self._server.stdout:
            if line.startswith("RESULT "):
                return json.loads(line[7:])
        raise SystemExit("the stub runtime's process has ended")

    def close(self) -> None:
        """End the process that jobs are forked from."""
        assert self._server.stdin and self._server.stdout
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


def serve(run_job: Callable[[dict], dict]) -> None:
    """Run the jobs that a `Stub` sends, until it goes."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                answer = run_job(json.loads(line))
            except Exception as error:  # noqa: BLE001 (whatever it is, the row says it)
                answer = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
            print("RESULT " + json.dumps(answer), flush=True)
            os._exit(0)  # the stub runtime has no orderly end
        __, status = os.waitpid(child, 0)
        if status:
            code = os.waitstatus_to_exitcode(status)
            print("RESULT " + json.dumps({"failed": f"it ended with {code}"}), flush=True)
