"""From logits to tags: the best allowed sequence, reduced where it is made (law 7)."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertfit.engine.backends import Forward
from bertfit.engine.inference import first_rows
from bertfit.types import Batch, Window

Tagged = tuple[NDArray[np.int16], NDArray[np.float32]]

FORBIDDEN = -1e4  # added to a score; large against any logit, exact in float32


class Decoder:
    """Finds the best allowed tag of every unit.

    The best tag of each unit on its own is the best sequence where it breaks no rule, which is
    almost always; only the other windows go through Viterbi.

    Args:
        allowed: (K, K) bool, whether tag j may follow tag i.
        start: (K,) bool, whether a text may begin with a tag.
        end: (K,) bool, whether a text may end with it.
        device: where the logits will be.
        constrained: False takes the best tag of each unit, legal or not.
    """

    def __init__(
        self,
        allowed: NDArray[np.bool_],
        start: NDArray[np.bool_],
        end: NDArray[np.bool_],
        device: torch.device,
        constrained: bool = True,
    ) -> None:
        self.constrained = constrained and not bool(allowed.all() and start.all() and end.all())
        self.allowed = torch.from_numpy(allowed).to(device)
        self.start = torch.from_numpy(start).to(device)
        self.end = torch.from_numpy(end).to(device)

    def decode(
        self, logits: Tensor, first_token: Tensor, begins: Tensor, ends: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the tag ids and their probabilities.

        Args:
            logits: (B, T, K), any float dtype.
            first_token: (B, U) int64 position of each unit's first token; -1 behind the last unit.
            begins: (B,) bool, whether the window begins its text.
            ends: (B,) bool, whether it ends its text.

        Returns:
            (B, U) int64 tag ids and (B, U) float32 probabilities, on the device of the logits.
        """
        real = first_token >= 0
        index = first_token.clamp(min=0).unsqueeze(-1).expand(-1, -1, logits.shape[-1])
        scores = logits.float().gather(1, index).log_softmax(-1)
        tags = scores.argmax(-1)
        if self.constrained:
            last = tags.gather(1, real.sum(1, keepdim=True).clamp(min=1) - 1).squeeze(1)
            legal = (self.allowed[tags[:, :-1], tags[:, 1:]] | ~real[:, 1:]).all(1)
            legal &= (self.start[tags[:, 0]] | ~begins) & (self.end[last] | ~ends)
            rows = (~legal).nonzero().flatten()
            if len(rows):
                tags[rows] = self._viterbi(scores[rows], real[rows], begins[rows], ends[rows])
        return tags, scores.gather(2, tags.unsqueeze(-1)).squeeze(-1).exp()

    def _viterbi(self, scores: Tensor, real: Tensor, begins: Tensor, ends: Tensor) -> Tensor:
        """Return the best allowed sequence; (B, U, K) log-probabilities -> (B, U) tag ids."""
        penalty = torch.where(self.allowed, 0.0, FORBIDDEN)
        best = scores[:, 0] + FORBIDDEN * (begins.unsqueeze(1) & ~self.start)
        back = []
        for unit in range(1, scores.shape[1]):
            step, origin = (best.unsqueeze(2) + penalty).max(1)
            inside = real[:, unit].unsqueeze(1)
            # Behind the last unit nothing changes: the best tag there is carried along.
            best = torch.where(inside, step + scores[:, unit], best)
            stay = torch.arange(best.shape[1], device=best.device).expand_as(origin)
            back.append(torch.where(inside, origin, stay))
        tags = [(best + FORBIDDEN * (ends.unsqueeze(1) & ~self.end)).argmax(1)]
        for origin in reversed(back):
            tags.append(origin.gather(1, tags[-1].unsqueeze(1)).squeeze(1))
        return torch.stack(tags[::-1], 1)


def first_tokens(windows: Sequence[Window]) -> NDArray[np.int64]:
    """Stack the units' first tokens of a batch: (B, U), -1 behind the last unit of a window."""
    width = max(len(window.first_token) for window in windows)
    stacked = np.full((len(windows), max(width, 1)), -1, dtype=np.int64)
    for row, window in enumerate(windows):
        stacked[row, : len(window.first_token)] = window.first_token
    return stacked


def _unpacked(
    logits: Tensor, first: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[Tensor, NDArray[np.int64]]:
    """Take the units' logits out of a packed batch: (1, S, K) -> (B, U, K), and where they are."""
    places = rows[:, None] + np.maximum(first, 0)
    units = np.where(first >= 0, np.arange(first.shape[1]), -1)
    return logits[0, torch.from_numpy(places).to(logits.device)], units


def tag_batch(
    forward: Forward,
    decoder: Decoder,
    windows: Sequence[Window],
    batch: Batch,
) -> list[Tagged]:
    """Tag every unit of the windows of one batch; logits never leave this function.

    Returns:
        For each window its (U,) tag ids and their (U,) probabilities, in the order given.
    """
    first = first_tokens(windows)
    with torch.inference_mode():
        logits = forward(batch)
        if batch.packed_lengths:
            logits, first = _unpacked(logits, first, first_rows(batch))
        begins = [window.owned[0] == 0 for window in windows]
        ends = [window.owned[1] == len(window.units) for window in windows]
        tags, scores = decoder.decode(
            logits,
            torch.from_numpy(first).to(logits.device),
            torch.tensor(begins, device=logits.device),
            torch.tensor(ends, device=logits.device),
        )
        del logits
        ids, probabilities = tags.to(torch.int16).cpu().numpy(), scores.cpu().numpy()
    # Copies: a row that is a view keeps its whole batch alive as long as the row.
    return [
        (ids[row, : len(window.units)].copy(), probabilities[row, : len(window.units)].copy())
        for row, window in enumerate(windows)
    ]
