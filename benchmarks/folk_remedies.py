"""What is said to cure memory that climbs during inference, and what it does.

    python benchmarks/folk_remedies.py --encoder MINILM                  # memory of the process
    python benchmarks/folk_remedies.py --encoder MINILM --device cuda    # of the card's allocator

Each row is a loop of its own process over the same sentences: what it holds at the end beyond the
loaded model, for 1,000 sentences, and the most it held. The loop that climbs keeps every
`outputs.hidden_states`; the remedies are tried on it. On a card the bytes are those that torch
counts as allocated, and the calls of its allocator to the driver are counted.
"""

import argparse
import gc
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from bertfit.units import MIB
from inference_contenders import quiet
from inference_memory import sentences

BATCH = 32
LOOPS = {
    "keeps hidden_states": {},
    "and empty_cache() after each batch": {"empty_cache": True},
    "and del, gc.collect()": {"collect": True},
    "and a new model every 200 sentences": {"reload": 200},
    "keeps vectors without no_grad": {"keep": "vectors", "no_grad": False},
    "keeps vectors": {"keep": "vectors"},
    "keeps nothing": {"keep": None},
    "keeps nothing, checkpointing": {"keep": None, "checkpointing": True},
}


def load(folder: Path, device: str, checkpointing: bool) -> Any:
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).to(device)
    if checkpointing:
        model.gradient_checkpointing_enable()
        return model.train()  # transformers checkpoints in training mode only
    return model.eval()


class Gauge:
    """How much is held now, and the most since `begin`: of the card's allocator, or of Linux."""

    def __init__(self, device: str) -> None:
        self.on_card = device != "cpu"

    def now(self) -> int:
        """Return the bytes held now."""
        return torch.cuda.memory_allocated() if self.on_card else _status("VmRSS")

    def begin(self) -> None:
        """Forget what was."""
        if self.on_card:
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # proc(5): the peak begins anew

    def most(self) -> int:
        """Return the most since `begin`."""
        return torch.cuda.max_memory_allocated() if self.on_card else _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def loop(
    folder: Path,
    device: str,
    texts: list[str],
    *,
    keep: str | None = "states",
    no_grad: bool = True,
    collect: bool = False,
    empty_cache: bool = False,
    checkpointing: bool = False,
    reload: int = 0,
) -> dict[str, object]:
    quiet()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = load(folder, device, checkpointing)
    kept: list[Any] = []
    gauge = Gauge(device)
    for warming in (True, False):
        some = texts[: 10 * BATCH] if warming else texts
        kept.clear()
        calls = driver_calls(gauge)
        before = gauge.now()
        if not warming:
            gauge.begin()
        begin = time.perf_counter()
        for first in range(0, len(some), BATCH):
            if reload and first and first % reload < BATCH:
                del model
                model = load(folder, device, checkpointing)
            batch = tokenizer(some[first : first + BATCH], padding=True, return_tensors="pt")
            with torch.no_grad() if no_grad else torch.enable_grad():
                outputs = model(**batch.to(device), output_hidden_states=keep == "states")
                if keep == "states":
                    kept.append(outputs.hidden_states)
                elif keep == "vectors":
                    kept.append(outputs.last_hidden_state.mean(1))
            del outputs
            if collect:
                gc.collect()
            if empty_cache and gauge.on_card:
                torch.cuda.empty_cache()
    return {
        "kept_mib_per_1000": round((gauge.now() - before) / MIB / len(texts) * 1000, 1),
        "most_mib": round((gauge.most() - before) / MIB, 1),
        "driver_calls": driver_calls(gauge) - calls,
        "seconds": round(time.perf_counter() - begin, 1),
    }


def driver_calls(gauge: Gauge) -> int:
    if not gauge.on_card:
        return 0
    counts = torch.cuda.memory_stats()
    return counts["num_device_alloc"] + counts["num_device_free"]


def in_a_process(work: Callable[..., Any], *arguments: object, **options: object) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    texts = list(sentences(asked.sentences))
    rows = {}
    heads = ("kept MiB/1,000", "most MiB", "driver calls", "seconds")
    print(f"{'':38}" + "".join(f"{head:>15}" for head in heads))
    for name, options in LOOPS.items():
        if "empty_cache" in options and asked.device == "cpu":
            continue
        rows[name] = in_a_process(loop, asked.encoder, asked.device, texts, **options)
        cells = "".join(f"{value!s:>15}" for value in rows[name].values())
        print(f"{name:38}{cells}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
