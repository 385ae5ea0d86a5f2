"""Records what the CUDA build of PyTorch asks its allocator for, and what that gives.

Run on the stub runtime (see ../shared/tools/phantom_gpu/README.md), it writes recorded/*.json:

    PYTHON=.venv/bin/python ../shared/tools/phantom_gpu/run.sh tests/memory/record_streams.py NAME

NAME is `random`, `full`, `expandable` (streams of torch.empty; `full` wants PHANTOM_MEMORY=256MiB,
`expandable` wants PYTORCH_ALLOC_CONF=expandable_segments:True and PHANTOM_MEMORY=300MiB) or a model
of `PROGRAMS` of tiny_programs, convolution_programs or mask_programs.
"""

import json
import os
import random
import sys
from pathlib import Path

import torch

MIB = 1 << 20


def allocations(seed: int, most: int) -> None:
    """Make and drop tensors of all sizes, until memory ends or enough are made."""
    draw = random.Random(seed)
    held: list[torch.Tensor] = []
    for _ in range(700):
        if held and (draw.random() < 0.45 or sum(t.numel() for t in held) > most):
            held.pop(draw.randrange(len(held)))
            continue
        kind = draw.random()
        size = draw.randint(1, MIB) if kind < 0.5 else draw.randint(MIB, 12 * MIB)
        if kind > 0.95:
            size = draw.randint(12 * MIB, 40 * MIB)
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            held.clear()


def main() -> None:
    name = sys.argv[1]
    torch.cuda.init()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=1_000_000)
    if name in ("random", "full", "expandable"):
        allocations(7, {"random": 300, "full": 230, "expandable": 440}[name] * MIB)
    else:
        sys.path.insert(0, str(Path(__file__).parent))
        import convolution_programs
        import mask_programs
        import tiny_programs

        programs = tiny_programs.PROGRAMS | convolution_programs.PROGRAMS | mask_programs.PROGRAMS
        programs[name](torch.device("cuda"))
    numbers: dict[int, int] = {}
    events: list[list[int]] = []  # [block, size] for an allocation, [block] for its return
    for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
        if entry["action"] == "alloc":
            numbers[entry["addr"]] = sum(len(event) == 2 for event in events)
            events.append([numbers[entry["addr"]], entry["size"]])
        elif entry["action"] == "free_completed":
            events.append([numbers[entry["addr"]]])
        elif entry["action"] == "oom":
            events.append([-1, entry["size"]])
    stats = torch.cuda.memory_stats()
    record = {
        "torch": torch.__version__,
        "capacity": torch.cuda.get_device_properties(0).total_memory,
        "expandable": "True" in os.environ.get("PYTORCH_ALLOC_CONF", ""),
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
        "max_allocated": stats["allocated_bytes.all.peak"],
        "max_reserved": stats["reserved_bytes.all.peak"],
        "max_requested": stats["requested_bytes.all.peak"],
        "retries": stats["num_alloc_retries"],
        "events": events,
    }
    path = Path(__file__).parent / "recorded" / f"{name}.json"
    path.write_text(json.dumps(record, separators=(",", ":")) + "\n")
    print(name, len(events), record["max_reserved"], record["retries"])
    sys.stdout.flush()
    os._exit(0)


main()
