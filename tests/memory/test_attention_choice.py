"""Which kernel computes attention, against what the CUDA build chose on the stub runtime."""

import json

import pytest
from tests.memory.attention_cases import KERNELS, RECORDED, calls

from bertfit.memory.trace_attention import AttentionCall, choose_kernel, prefers_cudnn

CHOSEN = json.loads(RECORDED.read_text())


@pytest.mark.parametrize("capability", CHOSEN)
def test_the_kernel_is_the_one_that_pytorch_chooses(capability: str) -> None:
    major, minor = map(int, capability.split("."))
    for call, number in zip(calls(), CHOSEN[capability], strict=True):
        query, key, value, mask = call.tensors("meta")
        asked = AttentionCall(
            query=query,
            key=key,
            value=value,
            mask=mask,
            capability=(major, minor),
            dropout=call.dropout,
            causal=call.causal,
            grouped=call.grouped,
        )
        kernel = "cudnn" if prefers_cudnn(asked) else choose_kernel(asked)
        assert kernel == KERNELS[int(number)], call
