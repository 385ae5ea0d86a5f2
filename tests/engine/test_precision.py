import pytest
import torch

from bertfit.data.batches import pad
from bertfit.engine.backends import torch_tagger
from bertfit.engine.optim import Update, parameter_groups
from bertfit.engine.precision import dtypes_named
from bertfit.engine.step import train_step
from bertfit.errors import ModelError
from tiny_models import random_window, tiny_model

CPU = torch.device("cpu")


def test_a_model_that_does_not_run_in_16_bits_is_named_with_what_to_take() -> None:
    model = tiny_model(model_type="deberta").train()
    batch = pad([random_window(9, 0), random_window(7, 1)], 0)
    groups = parameter_groups(
        model, [], learning_rate=1e-3, head_learning_rate=1e-3, weight_decay=0.0
    )
    update = Update(groups, max_grad_norm=1.0)
    with pytest.raises(ModelError, match=r"modeling_deberta\.py:\d+ .*BFloat16.*--precision fp32"):
        train_step(model, update, [batch], device=CPU, precision="bf16")
    with pytest.raises(ModelError, match="--precision fp32"):
        torch_tagger(model.eval(), CPU, "bf16")(batch)
    result = train_step(model.train(), update, [batch], device=CPU, precision="fp32")
    assert torch.isfinite(result.loss)


@pytest.mark.parametrize(
    "message",
    [
        "expected scalar type Float but found Half",
        "mat1 and mat2 must have the same dtype, but got Float and BFloat16",
        "expected m1 and m2 to have the same dtype, but got: float != c10::BFloat16",
        "Index put requires the source and destination dtypes match, got Float for the "
        "destination and BFloat16 for the source.",
        "scatter(): Expected self.dtype to be equal to src.dtype, got Half",
        "Input type (float) and bias type (c10::Half) should be the same",
    ],
)
def test_every_spelling_of_two_types_is_known(message: str) -> None:
    with pytest.raises(ModelError, match="--precision fp32"), dtypes_named():
        raise RuntimeError(message)


@pytest.mark.parametrize(
    "message",
    ["expected scalar type Long but found Int", "CUDA out of memory", "BFloat16 is not supported"],
)
def test_other_errors_pass_as_they_are(message: str) -> None:
    with pytest.raises(RuntimeError, match=message), dtypes_named():
        raise RuntimeError(message)
