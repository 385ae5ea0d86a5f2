"""Small programs whose memory requests were recorded on the CUDA build: what the trace must equal."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    """An encoder layer in miniature, with everything that has a rule of its own."""

    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(drop)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None, eager: bool) -> torch.Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (f(x).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        if eager:
            weights = (q @ k.transpose(2, 3) * 0.125).softmax(-1)
            mixed = self.drop(weights) @ v
        else:
            rate = self.drop.p if self.training else 0.0
            mixed = F.scaled_dot_product_attention(q, k, v, mask, rate)
        mixed = mixed.transpose(1, 2).reshape(x.shape)
        return self.norm(x + self.drop(F.gelu(self.out(mixed))))


class Tagger(nn.Module):
    """Embedding, two layers and a head."""

    def __init__(self, rows: int, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(rows, width)
        self.first, self.second = Layer(width, heads, drop), Layer(width, heads, drop)
        self.head = nn.Linear(width, 9)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None, eager: bool) -> torch.Tensor:
        x = self.embed(ids)
        return self.head(self.second(self.first(x, mask, eager), mask, eager))


def train(
    device: torch.device,
    *,
    shape: tuple[int, int],
    rows: int = 3000,
    width: int = 128,
    heads: int = 2,
    drop: float = 0.1,
    masked: bool = True,
    eager: bool = False,
    amp: torch.dtype | None = None,
    fused: bool = True,
) -> None:
    """Run two steps."""
    model = Tagger(rows, width, heads, drop).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused, foreach=not fused)
    scaler = torch.amp.GradScaler("cuda", enabled=amp == torch.float16)
    for _ in range(2):
        optimizer.zero_grad()
        ids = torch.zeros(shape, dtype=torch.long).to(device)
        mask = torch.ones(shape, dtype=torch.bool).to(device) if masked else None
        if mask is not None:
            mask = mask[:, None, None, :].expand(-1, 1, shape[1], -1)
        with torch.autocast("cuda", dtype=amp or torch.bfloat16, enabled=amp is not None):
            logits = model(ids, mask, eager)
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids.flatten() * 0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def learn_a_bias(device: torch.device, length: int = 77) -> None:
    """Train attention whose bias is learnt, as T5's by distance is; in bf16 and in fp32."""
    layer = Layer(128, 2, 0.1).to(device)
    bias = nn.Parameter(torch.zeros(1, 2, length, length).to(device))
    for amp in (True, False):
        x = torch.zeros(4, length, 128).to(device)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=amp):
            out = layer(x, bias, False)
        out.float().mean().backward()


def compose(device: torch.device) -> None:
    """Call what torch has written in Python, under autocast: each operation in it is cast."""
    x = torch.zeros(6, 40, 64).to(device)
    attention = nn.MultiheadAttention(64, 4, batch_first=True).to(device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = attention(x, x, x)[0]
        unit = F.normalize(y, dim=-1)
        row = unit[0, 0]
        parts = [
            F.kl_div(unit, y, reduction="sum"),
            y.norm(dim=1).sum(),
            torch.norm(y, dim=(0, 1)).sum(),
            torch.linalg.vector_norm(y, dim=2).sum(),
            torch.einsum("btd,bsd->bts", x, unit).sum(),
            torch.addcmul(row, row, x[0, 0]).sum(),
        ]
    sum(part.float() for part in parts).backward()


def activate(device: torch.device) -> None:
    """Call activations whose backward is a kernel of its own on a card, and compare numbers."""
    layer = nn.Linear(48, 48).to(device)
    slope = nn.PReLU().to(device)
    x = torch.zeros(9, 48).to(device)
    for function in (
        *(F.mish, F.silu, F.relu6, F.hardswish, F.hardsigmoid, F.leaky_relu, F.elu, slope),
        lambda y: torch.maximum(y, x),
        lambda y: torch.minimum(x, y * 2),
    ):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = layer(x).float()
        function(function(y)).sum().backward()


PROGRAMS: dict[str, Callable[[torch.device], None]] = {
    "fp32_masked": lambda device: train(device, shape=(4, 77)),
    "fp16_eager": lambda device: train(device, shape=(3, 50), eager=True, amp=torch.float16),
    "bf16_flash": lambda device: train(device, shape=(5, 33), masked=False, amp=torch.bfloat16),
    # Few blocks of queries: the keys are spread over the card.
    "bf16_flash_no_dropout": lambda device: train(
        device, shape=(3, 600), masked=False, drop=0.0, amp=torch.bfloat16
    ),
    "bf16_flash_wide_heads": lambda device: train(
        device, shape=(2, 40), width=320, masked=False, amp=torch.bfloat16
    ),
    "fp16_masked_no_dropout": lambda device: train(
        device, shape=(2, 100), drop=0.0, width=160, amp=torch.float16, fused=False
    ),
    # Heads of 26 numbers, as TinyBERT has: no fused kernel takes them in 16 bits.
    "fp16_math": lambda device: train(device, shape=(3, 50), width=104, heads=4, amp=torch.float16),
    "sorted_embedding": lambda device: train(device, shape=(33, 100), rows=40, fused=False),
    "learnt_bias": learn_a_bias,
    "composed": compose,
    "activations": activate,
}
