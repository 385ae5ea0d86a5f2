"""From states of tokens to vectors of texts and entities, reduced where the states are (law 7)."""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Reduction = Literal["mean", "max"]


def pool(
    states: Tensor,
    rows: NDArray[np.int64],
    tokens: NDArray[np.int64],
    groups: NDArray[np.int64],
    num_groups: int,
    reduction: Reduction,
) -> NDArray[np.float32]:
    """Reduce the states of some tokens into groups.

    Args:
        states: (B, T, H).
        rows: (N,) the window of each token that counts.
        tokens: (N,) its position in the window.
        groups: (N,) the group it belongs to.
        num_groups: how many groups there are, G; each has a token.
        reduction: `mean` gives sums, which the caller divides, since a group may go on in the next
            window; `max` gives maxima.

    Returns:
        (G, H) float32, on the host.
    """
    device = states.device
    chosen = states[torch.from_numpy(rows).to(device), torch.from_numpy(tokens).to(device)].float()
    index = torch.from_numpy(groups).to(device)
    if reduction == "mean":
        pooled = torch.zeros((num_groups, states.shape[-1]), device=device)
        pooled.index_add_(0, index, chosen)
    else:
        pooled = torch.full((num_groups, states.shape[-1]), -torch.inf, device=device)
        pooled.scatter_reduce_(0, index.unsqueeze(1).expand_as(chosen), chosen, "amax")
    result: NDArray[np.float32] = pooled.cpu().numpy()
    return result
