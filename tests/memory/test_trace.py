import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.memory import convolution_programs, mask_programs, tiny_programs
from torch import nn

from bertfit.errors import ModelError
from bertfit.memory.kernels import Chip
from bertfit.memory.trace import Recorder, record

RECORDED = Path(__file__).parent / "recorded"
PROGRAMS = tiny_programs.PROGRAMS | convolution_programs.PROGRAMS | mask_programs.PROGRAMS
AMPERE = Chip(compute_capability=(8, 6), multiprocessors=82)
CUDA = torch.device("cuda")


def allocated(trace: Recorder) -> list[int]:
    return [trace.sizes[entry] for entry in trace.stream if entry >= 0]


def as_recorded(trace: Recorder) -> list[list[int]]:
    """The stream as it was recorded: [block, size] or [block], blocks in the order of requests."""
    numbers: dict[int, int] = {}
    found = []
    for entry in trace.stream:
        if entry >= 0:
            numbers[entry] = len(numbers)
            found.append([numbers[entry], trace.sizes[entry]])
        else:
            found.append([numbers[~entry]])
    return found


def groups(events: list[list[int]]) -> list[tuple[int, set[int]]]:
    """Each request with the blocks returned before the next, whose order decides nothing.

    Which of several equal blocks goes back decides where the next ones lie.
    """
    parts: list[tuple[int, set[int]]] = []
    for block, *size in events:
        if size:
            parts.append((size[0], set()))
        else:
            parts[-1][1].add(block)
    return parts


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_asks_for_what_the_cuda_build_asks_for(name: str) -> None:
    record_ = json.loads((RECORDED / f"{name}.json").read_text())
    chip = Chip(compute_capability=(8, 6), multiprocessors=record_["multiprocessors"])
    with record(chip) as trace:
        PROGRAMS[name](CUDA)
    expected, seen = groups(record_["events"]), groups(as_recorded(trace))
    assert [size for size, _ in seen] == [size for size, _ in expected]
    # Behind the last allocation the recording ends with the process, the trace with the block.
    for at, (one, other) in enumerate(zip(seen[:-1], expected[:-1], strict=True)):
        assert one == other, f"allocation {at}"


def test_a_linear_layer_saves_its_input_and_makes_one_output() -> None:
    layer = nn.Linear(64, 32, bias=False, device="meta")
    with record(AMPERE) as trace:
        layer.to(CUDA)
        x = torch.zeros(10, 64).to(CUDA)
        y = layer(x)
        del x, y
    # weight, input, output, cuBLAS workspace
    assert allocated(trace) == [8192, 2560, 1280, 8_519_680]


def test_hopper_has_a_larger_cublas_workspace() -> None:
    chip = Chip(compute_capability=(9, 0), multiprocessors=132)
    with record(chip) as trace:
        a = torch.zeros(4, 4, device="cuda")
        a @ a
    assert 32 << 20 in allocated(trace)


def test_the_backward_has_a_cublas_workspace_of_its_own() -> None:
    with record(AMPERE) as trace:
        a = torch.zeros(4, 4, device="cuda", requires_grad=True)
        (a @ a).sum().backward()
    assert allocated(trace).count(AMPERE.cublas_workspace_bytes) == 2


def test_dropout_keeps_one_byte_per_element() -> None:
    with record(AMPERE) as trace:
        x = torch.zeros(1000, device="cuda")
        F.dropout(x, 0.1)
    assert allocated(trace) == [4000, 1000, 4000]


def test_autocast_casts_a_weight_once_while_its_cache_lives() -> None:
    layer = nn.Linear(128, 128, bias=False, device="meta")
    for cache, casts in ((True, 1), (False, 2)):
        with record(AMPERE) as trace:
            layer.to(CUDA)
            x = torch.zeros(1, 128).to(CUDA)
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=cache):
                layer(x)
                layer(x)
        assert allocated(trace).count(128 * 128 * 2) == casts


def test_autocast_takes_softmax_to_fp32_and_matmul_to_16_bits() -> None:
    with record(AMPERE) as trace, torch.autocast("cuda", torch.float16):
        a = torch.zeros(8, 8, device="cuda")
        scores = a @ a
        assert scores.dtype == torch.float16
        assert scores.softmax(-1).dtype == torch.float32
        assert F.layer_norm(scores, (8,)).dtype == torch.float32
        assert (scores + 1).dtype == torch.float16
    assert trace.sizes


def test_bf16_is_refused_where_the_card_lacks_it() -> None:
    turing = Chip(compute_capability=(7, 5), multiprocessors=40)
    with record(turing), pytest.raises(RuntimeError, match="bfloat16"):
        torch.autocast("cuda", torch.bfloat16)


def test_the_attention_kernel_follows_card_type_and_mask() -> None:
    def kernel(capability: tuple[int, int], dtype: torch.dtype, masked: bool) -> set[str]:
        with record(Chip(compute_capability=capability, multiprocessors=40)) as trace:
            q = torch.zeros(2, 4, 16, 64, device="cuda", dtype=dtype)
            mask = torch.ones(2, 1, 16, 16, device="cuda", dtype=torch.bool) if masked else None
            F.scaled_dot_product_attention(q, q, q, mask)
        return trace.attention_kernels

    assert kernel((8, 6), torch.float16, False) == {"flash"}
    assert kernel((8, 6), torch.float16, True) == {"efficient"}
    assert kernel((8, 6), torch.float32, False) == {"efficient"}
    assert kernel((7, 5), torch.float16, False) == {"efficient"}


def test_an_operation_without_a_rule_stops_the_trace_and_is_named() -> None:
    with record(AMPERE), pytest.raises(ModelError, match=r"aten\.kthvalue"):
        torch.zeros(8, device="cuda").kthvalue(2)


def test_python_sees_the_card_and_what_it_reads_back_are_numbers() -> None:
    with record(AMPERE):
        x = torch.zeros(3, device="cuda")
        assert x.device.type == "cuda" and x.is_cuda and not x.is_meta
        assert torch.zeros(3).device.type == "cpu"
        assert x.sum().item() == 0.0
        assert bool((x == 0).all())
        assert x.cpu().device.type == "cpu"


def test_nothing_is_left_behind_for_the_next_program() -> None:
    before = torch.cuda.amp.common.amp_definitely_not_available()
    with record(AMPERE), pytest.raises(ZeroDivisionError):
        torch.zeros(3, device="cuda")
        1 / 0  # noqa: B018
    assert torch.cuda.amp.common.amp_definitely_not_available() == before
    assert torch.zeros(2, device="meta").device.type == "meta"


def test_events_say_what_they_were_for() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2)).to("meta")
    with record(AMPERE) as trace:
        model.to(CUDA)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.zeros(4, 8).to(CUDA)).sum().backward()
            optimizer.step()
    kinds = trace.final_categories()
    assert {"parameter", "gradient", "optimizer_state", "activation", "input", "workspace"} <= set(
        kinds
    )
    assert {phase for phase, _ in trace.places} == {
        "setup", "forward", "backward", "optimizer", "step"
    }  # fmt: skip
    assert ("forward", "2") in trace.places and ("backward", "0") in trace.places
    events = list(trace.events())
    assert events[0].category == "parameter" and events[0].size_bytes == 256


def test_a_number_that_is_put_in_lies_on_the_host() -> None:
    """As the stub runtime gave it: only positions on the card take the number there."""
    with record(AMPERE) as trace:
        x = torch.zeros(4, 100, 64, device=CUDA)
        mask = torch.zeros(4, 100, device=CUDA, dtype=torch.bool)
        x[mask] = 3.0
        x[:, 0] = 2.0
        x[0, 0, 0] = 1
        rows = torch.zeros(5, dtype=torch.long, device=CUDA)
        x[rows] = 7.0
        assert allocated(trace) == [102400, 400, 40, 4]


@pytest.mark.parametrize(("reduced", "copies"), [("sum", 1), ("sum of heads", 1), ("square", 0)])
def test_the_fused_backward_copies_a_gradient_that_is_expanded(reduced: str, copies: int) -> None:
    """As the stub runtime gave it: the copy, three gradients, and their product with the output."""
    with record(AMPERE) as trace:
        q, k, v = (
            torch.zeros(2, 70, 4, 32, device=CUDA, requires_grad=True).transpose(1, 2)
            for _ in range(3)
        )
        mask = torch.zeros(2, 1, 70, 70, device=CUDA, dtype=torch.bool)
        mixed = F.scaled_dot_product_attention(q, k, v, mask)
        loss = {
            "sum": lambda: mixed.sum(),
            "sum of heads": lambda: mixed.sum(1).square().sum(),
            "square": lambda: mixed.square().sum(),
        }[reduced]()
        before = len(allocated(trace))
        loss.backward()
    whole = 4 * q.numel()
    seen = allocated(trace)[before:]
    assert seen[-3:] == [2240, 2240, 262400]  # the sums of its rows, and the kernel's workspace
    alike = seen[:-3].count(whole)
    assert alike == 4 + copies + (3 if reduced == "square" else 0)
