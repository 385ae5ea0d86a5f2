"""Kill a training run at random moments and see that what comes out is bit-equal.

    python benchmarks/chaos.py --kills 50 --signals 20

One run is left alone. Then, for each of so many uniformly random moments, a run of the same job
is killed (SIGKILL, or SIGTERM, which it may answer with exit code 75) and the same command is
given again until it ends. Final weights, optimizer state, losses and scores are compared with the
undisturbed run byte by byte. Prints a table, writes JSON.

Runs are forked from a process that has loaded everything, so that the moments fall into the run
and not into the loading of torch.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

NAMES = ("Anna", "Bert", "Carl", "Dora", "Emil", "Frida", "Gert", "Hilde")
PLACES = ("Rome", "Oslo", "Lima", "Kyoto", "Bern", "Cairo")
DONE, STOPPED = 0, 75


def write_corpus(path: Path, count: int) -> None:
    rng = random.Random(3)
    with path.open("w", encoding="utf-8") as file:
        for __ in range(count):
            name, place = rng.choice(NAMES), rng.choice(PLACES)
            text = f"{name} lives in {place} ."
            entities = [
                {"start": text.index(s), "end": text.index(s) + len(s), "label": label}
                for s, label in ((name, "PER"), (place, "LOC"))
            ]
            file.write(json.dumps({"text": text, "entities": entities}) + "\n")


def start(data: Path, output: Path, seed_of_order: int) -> int:
    """Start a run in a process of its own; return its number."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        sys.stderr = sys.stdout = (output.parent / f"{output.name}.log").open("a")
        from bertfit.config import job_config
        from bertfit.errors import BertfitError
        from bertfit.jobs.train import train

        job = job_config(
            {
                "model": "tiny",
                "train_file": data,
                "output_dir": output,
                "num_train_epochs": 3,
                "batch_size": 8,
                "eval_steps": 7,
                "logging_steps": 3,
                "save_every": "2steps",
                "device": "cpu",
                "precision": "fp32",
                "learning_rate": 1e-3,
                "seed": seed_of_order,
            }
        )
        try:
            train(job, progress=False)
            code = DONE
        except BertfitError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            code = error.exit_code
    except BaseException:  # noqa: BLE001 (a forked process must not run on as its parent)
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(process: int, seconds: float | None = None) -> int | None:
    """Return the exit code, minus the signal's number; None where it still runs after that."""
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if end is not None and time.monotonic() > end:
            return None
        time.sleep(0.002)


def result(output: Path) -> dict[str, object]:
    """Return all that must be equal to the bit."""
    newest = max((output / "checkpoints").iterdir(), key=lambda path: path.name)
    steps = [json.loads(line) for line in (output / "steps.jsonl").read_text().splitlines()]
    return {
        "model": (output / "model" / "model.safetensors").read_bytes(),
        "weights": (newest / "weights.safetensors").read_bytes(),
        "optimizer": (newest / "optimizer.safetensors").read_bytes(),
        "losses": [(s["step"], s["loss"], s["grad_norm"], s["learning_rate"]) for s in steps],
        "scores": (output / "scores.json").read_text(),
    }


def has_ended(output: Path) -> bool:
    """Say whether a run came to its end; its process may live on for some milliseconds."""
    status = output / "run.json"
    return status.exists() and json.loads(status.read_bytes())["state"] == "finished"


def disturb(
    data: Path, output: Path, kind: signal.Signals, after: float, limit: float
) -> tuple[int, float] | None:
    """Run, disturb once, and give the command again until it ends.

    Returns:
        How many commands it took and how long the process lived on after the signal; None where
        the run had ended before.
    """
    process = start(data, output, 1)
    if wait(process, after) is not None:
        return None
    os.kill(process, kind)
    sent = time.monotonic()
    code = wait(process, limit)
    lived = time.monotonic() - sent
    if code is None:
        raise SystemExit(f"{output}: alive {limit} s after {kind.name}")
    if code == DONE or has_ended(output):
        return 1, lived
    if kind == signal.SIGTERM and code not in (STOPPED, -signal.SIGTERM):
        raise SystemExit(f"{output}: exit code {code} after SIGTERM")
    for attempt in range(2, 5):
        code = wait(start(data, output, 1))
        if code == DONE:
            return attempt, lived
    said = (output.parent / f"{output.name}.log").read_text(encoding="utf-8")
    raise SystemExit(f"{output}: the same command again ends with {code}:\n{said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--signals", type=int, default=20)
    parser.add_argument("--texts", type=int, default=90)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args()

    # Before the forks, so that they begin at once.
    import transformers.models.modernbert.modeling_modernbert  # noqa: F401

    import bertfit.jobs.train  # noqa: F401

    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    data = folder / "train.jsonl"
    write_corpus(data, asked.texts)
    began = time.monotonic()
    if wait(start(data, folder / "calm", 1)) != DONE:
        raise SystemExit((folder / "calm.log").read_text())
    whole_seconds = time.monotonic() - began
    calm = result(folder / "calm")
    rows = []
    rng = random.Random(asked.seed)
    for kind, count in ((signal.SIGKILL, asked.kills), (signal.SIGTERM, asked.signals)):
        done, differing, longest, late = 0, [], 0.0, 0
        while done < count and late < 10 + count:
            output = folder / f"{kind.name}-{done}"
            found = disturb(data, output, kind, rng.uniform(0, whole_seconds), 30.0)
            if found is None:
                late += 1
                shutil.rmtree(output)
                continue
            disturbed = result(output)
            differing += [f"{output.name}: {k}" for k in calm if calm[k] != disturbed[k]]
            longest = max(longest, found[1])
            done += 1
            shutil.rmtree(output)
        if done < count:
            raise SystemExit(f"only {done} of {count} moments of {kind.name} fell into a run")
        if not count:
            continue
        rows.append(
            {
                "signal": kind.name,
                "moments": done,
                "bit_equal": done - len({line.split(":")[0] for line in differing}),
                "slowest_exit_seconds": round(longest, 2),
                "differing": differing,
            }
        )
        print(
            f"{kind.name:8} {done:3} moments of a run of {whole_seconds:.1f} s: "
            f"{rows[-1]['bit_equal']} bit-equal, slowest exit {longest:.2f} s",
            flush=True,
        )
        for line in differing:
            print("  differs:", line)
    if asked.json is not None:
        asked.json.write_text(json.dumps({"run_seconds": whole_seconds, "rows": rows}, indent=1))
    shutil.rmtree(folder)
    if any(row["differing"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
