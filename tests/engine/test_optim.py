import pytest
import torch

from bertfit.engine.optim import Schedule, parameter_groups
from bertfit.models.head import head_parameters
from tiny_models import tiny_model


def test_the_schedule_of_ten_steps_worked_by_hand() -> None:
    schedule = Schedule(num_steps=10, warmup_steps=2)
    assert [round(schedule.factor(step), 4) for step in range(10)] == [
        *(0.3333, 0.6667),
        *(1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125),
    ]


def test_warmup_below_one_is_a_share_of_all_steps() -> None:
    share, count = Schedule(num_steps=50, warmup_steps=0.2), Schedule(num_steps=50, warmup_steps=10)
    assert [share.factor(i) for i in range(50)] == [count.factor(i) for i in range(50)]


def test_every_parameter_is_in_one_group_and_only_weights_decay() -> None:
    model = tiny_model()
    head = [p for __, p in head_parameters(model)]
    groups = parameter_groups(
        model, head, learning_rate=1e-4, head_learning_rate=1e-3, weight_decay=0.01
    )
    placed = [id(p) for group in groups for p in group["params"]]
    assert sorted(placed) == sorted(id(p) for p in model.parameters())
    in_head = {id(p) for p in head}
    assert len(in_head) == 2  # weight and bias of the classifier
    for group in groups:
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.01 if parameter.ndim > 1 else 0.0)
            assert group["lr"] == (1e-3 if id(parameter) in in_head else 1e-4)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "electra"])
def test_the_head_is_what_lies_outside_the_encoder(model_type: str) -> None:
    names = [name for name, __ in head_parameters(tiny_model(model_type=model_type))]
    assert names == ["classifier.weight", "classifier.bias"]
    assert torch.is_grad_enabled()
