"""What others measured on real cards, beside the replay of the same program with today's libraries.

    python benchmarks/published_memory.py

Two copies of bert-large in fp16 are on the card, one tags a batch: peak of allocated memory in 1e6
bytes, on an A100, transformers of January 2024 (gist.github.com/fxmarty/7e75cc3942d6974e4849093ebea
0a331, gist.github.com/hackyon/2bfcfb59666fab23655f6e62bc0752ba). The differences are explained in
docs/memory.md; nothing is fitted to them.
"""

import torch
import transformers

from bertfit.memory.allocator import CachingAllocator
from bertfit.memory.kernels import Chip
from bertfit.memory.trace import record

A100 = Chip(compute_capability=(8, 0), multiprocessors=108)
PUBLISHED = {
    ("eager", (8, 512)): 1531.886,
    ("eager", (128, 512)): 4430.273,
    ("sdpa", (8, 512)): 1435.408,
    ("sdpa", (128, 512)): 2886.638,
}


def peak_mb(attention, shape, *, padded):
    """Return the peak of allocated memory, in 1e6 bytes."""
    config = transformers.BertConfig(
        vocab_size=30522,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
    )
    config._attn_implementation = attention
    with torch.device("meta"):
        models = [transformers.BertForTokenClassification(config).half() for _copy in range(2)]
    with record(A100) as trace, torch.inference_mode():
        first, _second = [model.to("cuda").eval() for model in models]
        ids = torch.zeros(shape, dtype=torch.int64).to("cuda")
        mask = torch.ones(shape, dtype=torch.int64)
        mask[0, -1] = int(not padded)
        mask = mask.to("cuda")
        for _batch in range(2):
            out = first(input_ids=ids, attention_mask=mask)  # noqa: F841 (the old one lives on)
    allocator = CachingAllocator()
    allocator.replay(trace.events())
    return allocator.peak_allocated_bytes / 1e6


def main():
    print("attention  batch      published  padded: ours         full: ours")
    for (attention, shape), published in PUBLISHED.items():
        row = f"{attention:9}  {shape[0]:3} x {shape[1]}  {published:9.3f}"
        for padded in (True, False):
            found = peak_mb(attention, shape, padded=padded)
            row += f"  {found:9.3f} ({found / published - 1:+.2%})"
        print(row)


if __name__ == "__main__":
    main()
