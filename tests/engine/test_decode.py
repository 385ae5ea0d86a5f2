"""The best allowed sequence, against trying all of them."""

from itertools import pairwise, product

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertfit.data.tags import label_scheme, transitions
from bertfit.engine.decode import Decoder
from bertfit.types import Encoding


def best_by_trying_all(
    scores: np.ndarray, encoding: Encoding, begins: bool, ends: bool
) -> tuple[float, bool]:
    """Return the best total score of an allowed sequence."""
    allowed, start, end = transitions(label_scheme(["A"], encoding))
    best = -np.inf
    for tags in product(range(scores.shape[1]), repeat=len(scores)):
        if (begins and not start[tags[0]]) or (ends and not end[tags[-1]]):
            continue
        if all(allowed[a, b] for a, b in pairwise(tags)):
            best = max(best, sum(scores[i, tag] for i, tag in enumerate(tags)))
    return best


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["bio", "bioes"]),
    st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans()), min_size=1, max_size=4),
)
def test_the_sequence_is_the_best_allowed_one(
    seed: int, encoding: Encoding, rows: list[tuple[int, bool, bool]]
) -> None:
    scheme = label_scheme(["A"], encoding)
    allowed, start, end = transitions(scheme)
    tags = len(scheme.tags)
    width = max(length for length, __, __ in rows)
    logits = torch.randn(
        (len(rows), width + 1, tags), generator=torch.Generator().manual_seed(seed)
    )
    first = torch.full((len(rows), width), -1)
    for row, (length, __, __) in enumerate(rows):
        first[row, :length] = torch.arange(1, length + 1)
    begins = torch.tensor([row[1] for row in rows])
    ends = torch.tensor([row[2] for row in rows])
    decoder = Decoder(allowed, start, end, torch.device("cpu"))
    found, __ = decoder.decode(logits, first, begins, ends)
    for row, (length, begin, finish) in enumerate(rows):
        scores = logits[row, 1 : length + 1].log_softmax(-1).numpy()
        chosen = found[row, :length].tolist()
        assert all(allowed[a, b] for a, b in pairwise(chosen))
        assert start[chosen[0]] or not begin
        assert end[chosen[-1]] or not finish
        total = sum(scores[i, tag] for i, tag in enumerate(chosen))
        assert abs(total - best_by_trying_all(scores, encoding, begin, finish)) < 1e-4


def test_unconstrained_takes_the_best_tag_of_each_unit() -> None:
    scheme = label_scheme(["A"], "bio")
    decoder = Decoder(*transitions(scheme), torch.device("cpu"), constrained=False)
    logits = torch.tensor([[[0.0, 0.0, 5.0], [5.0, 0.0, 0.0]]])
    yes = torch.tensor([True])
    tags, probabilities = decoder.decode(logits, torch.tensor([[0, 1]]), yes, yes)
    assert tags.tolist() == [[2, 0]]
    assert torch.allclose(probabilities, torch.tensor([[0.9867, 0.9867]]), atol=1e-3)
