"""The trace asks the switches that `engine.cudnn` sets, as PyTorch does."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bertfit.engine.cudnn import without_cudnn
from bertfit.errors import ModelError
from bertfit.memory.kernels import Chip
from bertfit.memory.trace import record
from bertfit.planning.estimate import simulate
from bertfit.planning.levers import PredictSettings
from bertfit.types import DeviceSpec
from tiny_models import tiny_model

CUDA = torch.device("cuda")
HOPPER = Chip(compute_capability=(9, 0), multiprocessors=132)


@pytest.mark.parametrize("off", [False, True])
def test_attention_without_dropout_on_a_new_card_is_cudnns_unless_it_is_off(off: bool) -> None:
    with record(HOPPER) as trace, without_cudnn() if off else nullcontext():
        q = torch.zeros(2, 4, 16, 64, device=CUDA, dtype=torch.bfloat16)
        F.scaled_dot_product_attention(q, q, q)
    assert trace.attention_kernels == ({"flash"} if off else {"cudnn"})


def test_prediction_on_a_new_card_takes_a_kernel_whose_memory_is_known() -> None:
    device = DeviceSpec(
        name="new",
        total_bytes=1 << 36,
        context_bytes=0,
        compute_capability=(9, 0),
        multiprocessors=132,
        peak_flops=1.0,
        memory_bandwidth=1.0,
        bf16=True,
    )
    for padded, kernel in ((True, "efficient"), (False, "flash")):
        settings = PredictSettings(batches=((4, 32),), num_tags=5, precision="bf16", padded=padded)
        found = simulate(lambda: tiny_model().to("meta"), settings, device)
        assert found.trace.attention_kernels == {kernel}


def test_a_convolution_of_cudnn_has_no_estimate() -> None:
    x = torch.zeros(2, 8, 20)
    layer = nn.Conv1d(8, 4, 3, device="meta")
    with record(HOPPER), pytest.raises(ModelError, match="cuDNN chooses on the card"):
        layer.to(CUDA)(x.to(CUDA))
    with record(HOPPER), without_cudnn():
        assert layer.to(CUDA)(x.to(CUDA)).shape == (2, 4, 18)


@pytest.mark.parametrize(
    "layer",
    [nn.Conv1d(8, 4, 3, dilation=2, device="meta"), nn.ConvTranspose1d(8, 4, 3, device="meta")],
)
def test_a_convolution_that_no_encoder_has_is_named(layer: nn.Module) -> None:
    x = torch.zeros(2, 8, 20)
    with record(HOPPER), without_cudnn(), pytest.raises(ModelError, match="does not know what"):
        layer.to(CUDA)(x.to(CUDA))
