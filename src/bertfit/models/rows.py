"""An embedding that holds only the rows a job can touch, with the same result as the whole table.

A row whose piece never occurs gets no gradient. AdamW leaves such a row's moments at zero and only
decays it, by a factor that is the same for all of them; so the rows that occur are trained here,
and the others are decayed once, when the table is put together again. For a 250,000-piece
vocabulary that removes the table's gradient, both moments and most of its weights from the card,
and most of the optimizer's work from the processor.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn


class RowEmbedding(nn.Module):
    """Look up rows of a part of an embedding table, by the ids of the whole table.

    Args:
        table: (V, H) the whole table; kept on the host, unchanged, until `whole_table`.
        ids: the pieces that can occur. Any other id raises IndexError on a CPU.
        padding_idx: the piece whose row is not trained, as in `nn.Embedding`.
    """

    def __init__(self, table: Tensor, ids: Iterable[int], padding_idx: int | None) -> None:
        super().__init__()
        kept = np.unique(np.fromiter(ids, dtype=np.int64))
        self.kept = torch.from_numpy(kept)
        self.table = [table.detach()]  # in a list: neither a parameter nor moved to the card
        row_of = torch.full((table.shape[0],), -1, dtype=torch.int64)
        row_of[self.kept] = torch.arange(len(kept))
        self.row_of: Tensor
        self.register_buffer("row_of", row_of, persistent=False)
        self.weight = nn.Parameter(table.detach()[self.kept].clone())
        self.padding_idx = None if padding_idx is None else int(row_of[padding_idx])

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return (..., H) for (...) int64 ids of the whole table."""
        return nn.functional.embedding(self.row_of[input_ids], self.weight, self.padding_idx)

    def whole_table(self, decay: float) -> Tensor:
        """Return the (V, H) table after training, on the host.

        Args:
            decay: product over all steps of (1 - learning rate x weight decay).
        """
        table = self.table[0] * decay
        table[self.kept] = self.weight.detach().to(table)
        return table


def keep_rows(model: nn.Module, ids: Iterable[int]) -> RowEmbedding:
    """Replace the input embedding of a transformers model by the rows that can occur."""
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    rows = RowEmbedding(embedding.weight, ids, getattr(embedding, "padding_idx", None))
    model.set_input_embeddings(rows)  # type: ignore[operator]
    return rows


@contextmanager
def whole_embedding(model: nn.Module, rows: RowEmbedding, decay: float) -> Iterator[None]:
    """Give the model its whole table back, for saving; inside the block it lies on the host."""
    whole = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
        rows.whole_table(decay), freeze=False
    )
    model.set_input_embeddings(whole)  # type: ignore[operator]
    try:
        yield
    finally:
        model.set_input_embeddings(rows)  # type: ignore[operator]
