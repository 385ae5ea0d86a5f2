"""cuDNN is off in every forward and backward of bertfit, and nowhere else."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertfit.engine.backends import torch_encoder, torch_tagger
from bertfit.engine.cudnn import without_cudnn
from bertfit.engine.optim import Update, parameter_groups
from bertfit.engine.step import train_step
from bertfit.types import Batch

CPU = torch.device("cpu")


def switches() -> tuple[bool, bool]:
    return torch.backends.cudnn.enabled, torch.backends.cuda.cudnn_sdp_enabled()


class Watcher(nn.Module):
    """A model that notes the switches in its forward and in its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(model_type="bert")
        self.table = nn.Embedding(5, 4)
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, input_ids: Tensor, **more: object) -> SimpleNamespace:
        self.seen.append(switches())
        out = self.table(input_ids)
        if out.requires_grad:
            out.register_hook(lambda grad: self.seen.append(switches()))
        return SimpleNamespace(logits=out, last_hidden_state=out)


def batch(labels: bool) -> Batch:
    ids = np.zeros((2, 3), dtype=np.int64)
    return Batch(
        input_ids=ids,
        attention_mask=None,
        labels=ids if labels else None,
        num_labelled=6 if labels else 0,
        num_tokens=6,
    )


@pytest.fixture(params=[(True, True), (True, False), (False, True)])
def before(request: pytest.FixtureRequest) -> Iterator[tuple[bool, bool]]:
    """Whatever the user had before."""
    kept = switches()
    torch.backends.cudnn.enabled = request.param[0]
    torch.backends.cuda.enable_cudnn_sdp(request.param[1])
    yield request.param
    torch.backends.cudnn.enabled = kept[0]
    torch.backends.cuda.enable_cudnn_sdp(kept[1])


def test_a_step_runs_forward_and_backward_without_cudnn(before: tuple[bool, bool]) -> None:
    model = Watcher()
    groups = parameter_groups(
        model, [], learning_rate=1e-3, head_learning_rate=1e-3, weight_decay=0.0
    )
    update = Update(groups, max_grad_norm=1.0)
    train_step(model, update, [batch(labels=True)], device=CPU, precision="fp32")
    assert model.seen == [(False, False), (False, False)]
    assert switches() == before


def test_prediction_and_embedding_run_without_cudnn(before: tuple[bool, bool]) -> None:
    model = Watcher()
    torch_tagger(model, CPU, "fp32")(batch(labels=False))
    torch_encoder(model, CPU, "fp32", ())(batch(labels=False))
    assert model.seen == [(False, False), (False, False)]
    assert switches() == before


def test_an_error_leaves_the_switches_as_they_were(before: tuple[bool, bool]) -> None:
    with pytest.raises(torch.OutOfMemoryError), without_cudnn():
        raise torch.OutOfMemoryError
    assert switches() == before


def test_threads_that_overlap_leave_the_switches_as_they_were(before: tuple[bool, bool]) -> None:
    """The first comes and goes while the second is inside."""
    came, went = threading.Event(), threading.Event()

    def first() -> None:
        with without_cudnn():
            came.set()
            went.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    assert came.wait(10)
    with without_cudnn():
        went.set()
        thread.join()
        assert switches() == (False, False)
    assert switches() == before
