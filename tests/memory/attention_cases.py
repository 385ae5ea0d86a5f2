"""Calls of scaled dot product attention, and which kernel the CUDA build of PyTorch takes for each.

Run on the stub runtime (see ../shared/tools/phantom_gpu/README.md) once for each compute
capability, it adds to attention_kernels.json:

    PHANTOM_SM=8.6 PYTHON=.venv/bin/python ../shared/tools/phantom_gpu/run.sh \
        tests/memory/attention_cases.py
"""

import json
import os
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

RECORDED = Path(__file__).with_name("attention_kernels.json")
# torch.nn.attention.SDPBackend
KERNELS = ("math", "flash", "efficient", "cudnn")


class Call(NamedTuple):
    """Arguments of a call."""

    dtype: torch.dtype
    head: int = 64
    value_head: int | None = None
    heads: int = 4
    key_heads: int = 4
    queries: int = 24
    keys: int = 24
    masked: bool = False
    dropout: float = 0.0
    causal: bool = False
    grouped: bool = False
    trains: bool = True
    strided: bool = False

    def tensors(self, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Make query, key, value and mask."""
        value_head = self.value_head or self.head

        def make(heads: int, length: int, head: int) -> Tensor:
            shape = (2, heads, head, length) if self.strided else (2, heads, length, head)
            made = torch.zeros(shape, dtype=self.dtype, device=device, requires_grad=self.trains)
            return made.transpose(2, 3) if self.strided else made

        mask = None
        if self.masked:
            mask = torch.zeros(2, 1, self.queries, self.keys, dtype=torch.bool, device=device)
        return (
            make(self.heads, self.queries, self.head),
            make(self.key_heads, self.keys, self.head),
            make(self.key_heads, self.keys, value_head),
            mask,
        )


def calls() -> Iterator[Call]:
    """Give calls on all sides of every condition that the choice has."""
    types = (torch.float16, torch.bfloat16, torch.float32)
    flags = (False, True)
    heads = (1, 4, 26, 64, 136, 192, 200, 224, 232, 256, 264)
    for dtype, head, masked, dropout, trains in product(types, heads, flags, (0.0, 0.1), flags):
        yield Call(dtype, head, masked=masked, dropout=dropout, trains=trains)
    for dtype in types:
        for masked, trains in product(flags, flags):
            yield Call(dtype, masked=masked, trains=trains, key_heads=2, grouped=True)
            yield Call(dtype, masked=masked, trains=trains, key_heads=3, grouped=True)
            yield Call(dtype, masked=masked, trains=trains, key_heads=1, grouped=True)
            yield Call(dtype, masked=masked, trains=trains, strided=True)
            yield Call(dtype, 64, 32, masked=masked, trains=trains)
            yield Call(dtype, masked=masked, trains=trains, keys=40)
            yield Call(dtype, masked=masked, trains=trains, keys=1)
            yield Call(dtype, masked=masked, trains=trains, queries=0)
            yield Call(dtype, masked=masked, trains=trains, dropout=0.125)
        yield Call(dtype, causal=True)
        yield Call(dtype, causal=True, keys=40)
        yield Call(dtype, causal=True, key_heads=2, grouped=True)


def main() -> None:
    """Ask the CUDA build."""
    found = ""
    for call in calls():
        q, k, v, mask = call.tensors("cuda")
        number = torch._fused_sdp_choice(
            q, k, v, mask, call.dropout, call.causal, enable_gqa=call.grouped
        )
        found += "-" if number < 0 else str(number)
    known = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    known[os.environ["PHANTOM_SM"]] = found
    RECORDED.write_text(json.dumps(known, indent=1) + "\n")
    print(os.environ["PHANTOM_SM"], len(found), {n: found.count(n) for n in "-0123"})
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
