"""The lists of CUDA's autocast, held against the header that torch brings along."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bertfit.memory import trace_autocast
from bertfit.memory.kernels import Chip
from bertfit.memory.trace import record

HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
LISTS = {
    "LOWER": ("LOWER_PRECISION_FP",),
    "FP32": ("FP32",),
    "FP32_DTYPE": ("FP32_SET_OPT_DTYPE", "DIFFERENT_REDISPATCH_SIGNATURE"),
    "PROMOTE": ("PROMOTE",),
}
# What has a handler of its own, or is called by C++ only.
ELSEWHERE = {
    "softmax",
    "log_softmax",
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
}
CHIP = Chip(compute_capability=(8, 6), multiprocessors=82)


def names_of(macro: str) -> set[str]:
    body = re.search(rf"#define AT_FORALL_{macro}\(_\)((?:.*\\\n)+.*)", HEADER.read_text())
    assert body is not None
    return set(re.findall(r"_\((?:ADD_NS\()?(\w+)", body.group(1)))


@pytest.mark.parametrize("ours", LISTS)
def test_no_operation_of_the_autocast_lists_is_missing(ours: str) -> None:
    expected = set().union(*map(names_of, LISTS[ours])) - ELSEWHERE
    assert expected <= set(getattr(trace_autocast, ours).split())


def test_each_operation_of_the_lists_is_one_that_python_calls() -> None:
    for ours in LISTS:
        for name in getattr(trace_autocast, ours).split():
            found = [getattr(owner, name, None) for owner in trace_autocast._OWNERS]
            assert any(function in trace_autocast.HANDLERS for function in found), name


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        (lambda x: F.normalize(x, dim=-1), torch.float32),
        (lambda x: x.norm(), torch.float32),
        (lambda x: torch.norm(x, dim=0), torch.float32),
        (lambda x: torch.einsum("ij,kj->ik", x.float(), x), torch.bfloat16),
        (lambda x: torch.addcmul(x, x, x), torch.bfloat16),
        (lambda x: torch.addcmul(x, x, x.float()), torch.float32),
    ],
)
def test_what_torch_has_written_in_python_is_autocast_inside(call: object, dtype: object) -> None:
    with record(CHIP), torch.autocast("cuda", dtype=torch.bfloat16):
        x = torch.zeros(4, 6, dtype=torch.bfloat16).to("cuda")
        out = call(x)  # type: ignore[operator]
        assert isinstance(out, Tensor)
        assert out.dtype == dtype
