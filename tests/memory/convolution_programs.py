"""Small programs with the convolutions of encoders; see `tiny_programs`."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from bertfit.engine.cudnn import without_cudnn


class Convolutions(nn.Module):
    """The kinds that CANINE, ConvBERT, SqueezeBERT and DeBERTa have, and some with two dimensions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.norm = nn.LayerNorm(width)
        self.first = nn.Conv1d(width, width, 1)
        self.wide = nn.Conv1d(width, 2 * width, 3, padding=1)
        self.groups = nn.Conv1d(2 * width, width, 1, groups=4)
        self.depthwise = nn.Conv1d(width, width, 9, padding=4, groups=width, bias=False)
        self.biased = nn.Conv1d(width, width, 3, padding=1, groups=width)
        self.pointwise = nn.Conv1d(width, width, 1, bias=False)
        self.frozen = nn.Conv1d(width, width, 2, groups=2).requires_grad_(False)
        self.downsampled = nn.Conv1d(width, width, 4, stride=4)
        self.plane = nn.Conv2d(width, 4, 3, padding=1)
        self.planes = nn.Conv2d(4, 4, (2, 3), groups=2, stride=(1, 2))
        self.depth = nn.Conv2d(4, 8, 3, padding=1, groups=4)
        self.head = nn.Linear(2 * width, 9)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(ids)).transpose(1, 2)  # whose gradient is not contiguous
        x = self.groups(F.gelu(self.wide(x + self.first(x.detach()))))
        x = self.biased(F.gelu(self.depthwise(x.transpose(1, 2).contiguous().transpose(1, 2))))
        x = self.frozen(F.gelu(self.pointwise(x)))
        x = self.downsampled(x)
        x = x.unflatten(2, (-1, 3)).transpose(2, 3)
        x = x + self.depth(F.gelu(self.planes(self.plane(x)))).mean((1, 2, 3), keepdim=True)
        x = F.unfold(x, (3, 1), padding=(1, 0))
        x = x.unflatten(1, (-1, 3)).sum(2).transpose(1, 2)
        return self.head(torch.cat([x, x], -1))


def train(device: torch.device, batch: int, amp: torch.dtype | None, width: int = 48) -> None:
    """Run two steps and a prediction."""
    model = Convolutions(width).to(device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
    for _ in range(2):
        optimizer.zero_grad()
        ids = torch.zeros((batch, 97), dtype=torch.long).to(device)
        with without_cudnn():
            with torch.autocast("cuda", dtype=amp or torch.bfloat16, enabled=amp is not None):
                logits = model(ids)
            labels = torch.zeros(logits.shape[:2], dtype=torch.long).to(device)
            F.cross_entropy(logits.float().flatten(0, 1), labels.flatten()).backward()
        optimizer.step()
    optimizer.zero_grad()
    with without_cudnn(), torch.inference_mode():
        model(ids)


PROGRAMS: dict[str, Callable[[torch.device], None]] = {
    "convolutions_fp32": lambda device: train(device, 3, None),
    "convolutions_fp16": lambda device: train(device, 5, torch.float16),
    # Nothing is copied where there is one sentence.
    "convolutions_bf16": lambda device: train(device, 1, torch.bfloat16),
}
