"""Training the rows that occur gives what training the whole table gives."""

import pytest
import torch

from bertfit.data.batches import pad
from bertfit.engine.optim import Update, parameter_groups
from bertfit.engine.step import train_step
from bertfit.models.rows import keep_rows, whole_embedding
from tiny_models import random_window, tiny_model

STEPS, RATE, DECAY = 5, 1e-3, 0.1


def trained(compact: bool, model_type: str) -> torch.nn.Module:
    model = tiny_model(model_type=model_type).train()
    steps = [[random_window(12, seed), random_window(6, seed)] for seed in range(STEPS)]
    pad_id = model.config.pad_token_id
    rows = None
    if compact:
        ids = {pad_id, *(int(i) for step in steps for window in step for i in window.input_ids)}
        rows = keep_rows(model, ids)
    update = Update(
        parameter_groups(
            model, [], learning_rate=RATE, head_learning_rate=RATE, weight_decay=DECAY
        ),
        max_grad_norm=1.0,
    )
    for step in steps:
        train_step(model, update, [pad(step, pad_id)], device=torch.device("cpu"), precision="fp32")
    if rows is None:
        return model
    with whole_embedding(model, rows, (1 - RATE * DECAY) ** STEPS):
        whole = tiny_model(model_type=model_type)
        whole.load_state_dict(model.state_dict())
    return whole


@pytest.mark.parametrize("model_type", ["bert", "roberta", "electra"])
def test_rows_give_the_weights_of_the_whole_table(model_type: str) -> None:
    dense = dict(trained(False, model_type).named_parameters())
    compact = dict(trained(True, model_type).named_parameters())
    assert dense.keys() == compact.keys()
    for name, parameter in dense.items():
        # Five updates of 1e-3 at most; sums in another order decide the last bits of each.
        assert float((parameter - compact[name]).detach().abs().max()) < STEPS * RATE * 0.01, name


def test_a_piece_that_was_not_kept_is_noticed() -> None:
    model = tiny_model()
    keep_rows(model, [0, 2, 3, 5])
    with pytest.raises(IndexError):
        model(input_ids=torch.tensor([[2, 6, 3]]))
