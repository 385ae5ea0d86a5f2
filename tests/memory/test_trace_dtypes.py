from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bertfit.memory.kernels import Chip
from bertfit.memory.trace import record

CHIP = Chip(compute_capability=(8, 6), multiprocessors=82)
LEAST = torch.finfo(torch.float32).min


def masked(x: Tensor) -> Tensor:
    return x.masked_fill(torch.ones_like(x, dtype=torch.bool), LEAST)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "fill",
    [
        masked,
        lambda x: x.fill_(LEAST),
        lambda x: torch.full((3,), LEAST, dtype=x.dtype, device=x.device),
        lambda x: torch.full_like(x, -LEAST),
        lambda x: x.new_full((3,), LEAST),
    ],
)
def test_a_number_that_16_bits_do_not_hold_is_refused_in_torchs_words(
    fill: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    with pytest.raises(RuntimeError) as truth:
        fill(torch.zeros(3, dtype=dtype))
    with record(CHIP):
        x = torch.zeros(3, dtype=dtype).to("cuda")
        with pytest.raises(RuntimeError) as ours:
            fill(x)
    assert str(ours.value) == str(truth.value)


@pytest.mark.parametrize("value", [float("-inf"), float("nan"), -1e30, 0, 3.3e38])
def test_other_numbers_are_filled_in(value: float) -> None:
    torch.zeros(3, dtype=torch.bfloat16).fill_(value)
    with record(CHIP):
        torch.zeros(3, dtype=torch.bfloat16).to("cuda").fill_(value)


@pytest.mark.parametrize(
    "product",
    [
        lambda x, y: x @ y,
        lambda x, y: x[None] @ y[None],
        lambda x, y: torch.addmm(x, x, y),
        lambda x, y: torch.baddbmm(x[None], x[None], y[None]),
    ],
)
def test_matrices_of_two_types_are_not_multiplied(product: Callable[..., Tensor]) -> None:
    with record(CHIP):
        x = torch.zeros(3, 3).to("cuda")
        y = x.to(torch.bfloat16)
        with pytest.raises(RuntimeError, match="expected scalar type Float but found BFloat16"):
            product(x, y)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert product(x, y).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "product",
    [
        lambda x, y: x @ y,
        lambda x, y: x[None] @ y[None],
        lambda x, y: torch.bmm(x[None].expand(2, 3, 4), x.T[None].expand(3, 4, 3)),
        lambda x, y: torch.addmm(x, x, y),
        lambda x, y: torch.nn.functional.linear(x, y.T, x[0]),
        lambda x, y: torch.baddbmm(x[None], x[None], y[None]),
    ],
)
def test_matrices_that_do_not_fit_are_not_multiplied(product: Callable[..., Tensor]) -> None:
    host = torch.zeros(3, 4)
    with pytest.raises(RuntimeError):
        product(host, host)
    with record(CHIP):
        x = host.to("cuda")
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            product(x, x)
