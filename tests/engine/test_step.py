"""Laws 1 and 2: one step, and the cut never changes it."""

import pytest
import torch

from bertfit.data.batches import cut, pad
from bertfit.engine.optim import Update, parameter_groups
from bertfit.engine.step import StepResult, token_loss, train_step
from bertfit.types import IGNORED, Batch, Window
from tiny_models import random_window, tiny_model

CPU = torch.device("cpu")
LENGTHS = (4, 30, 6, 28, 5, 31, 3, 29)


def update_of(model: torch.nn.Module, max_grad_norm: float = 0.0, rate: float = 1e-3) -> Update:
    groups = parameter_groups(
        model, [], learning_rate=rate, head_learning_rate=rate, weight_decay=0.01
    )
    return Update(groups, max_grad_norm=max_grad_norm)


def windows_of_issue() -> list[Window]:
    return [random_window(length, seed) for seed, length in enumerate(LENGTHS)]


def run(
    batches: list[Batch], max_grad_norm: float = 0.0, **options: float
) -> tuple[StepResult, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    model = tiny_model().train()
    result = train_step(
        model,
        update_of(model, max_grad_norm),
        batches,
        device=CPU,
        precision="fp32",
        **options,
    )
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return result, gradients, {n: p.detach().clone() for n, p in model.named_parameters()}


def largest_relative_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    scale = max(float(t.abs().max()) for t in b.values())
    return max(float((a[name] - b[name]).abs().max()) for name in a) / scale


@pytest.mark.parametrize("budget", [1, 10, 31, 60, 62, 90, 124, 136])
def test_law_2_the_gradient_is_the_same_for_every_cut(budget: int) -> None:
    whole, expected, __ = run([pad(windows_of_issue(), 0)])
    result, gradients, __ = run([pad(part, 0) for part in cut(windows_of_issue(), budget)])
    assert largest_relative_difference(gradients, expected) <= 1e-6
    assert float(result.loss) == pytest.approx(float(whole.loss), rel=1e-6)
    assert float(result.grad_norm) == pytest.approx(float(whole.grad_norm), rel=1e-6)


def test_the_loss_is_the_mean_over_the_tokens_of_the_whole_step() -> None:
    windows = windows_of_issue()
    model = tiny_model().eval()
    total, count = 0.0, 0
    for window in windows:
        logits = model(input_ids=torch.tensor([window.input_ids.tolist()])).logits[0]
        picked = logits[torch.from_numpy(window.first_token).long()].log_softmax(-1)
        wanted = torch.from_numpy(window.labels).long()  # type: ignore[arg-type]
        total -= float(picked.gather(1, wanted[:, None]).sum().detach())
        count += len(wanted)
    result, __, __ = run([pad(part, 0) for part in cut(windows, 40)])
    assert float(result.loss) == pytest.approx(total / count, rel=1e-5)


def test_windows_without_labels_change_nothing() -> None:
    windows = windows_of_issue()
    blank = [random_window(20, 99, labelled=False)]
    __, expected, __ = run([pad(windows, 0)])
    __, gradients, __ = run([pad(blank, 0), pad(windows, 0)])
    assert largest_relative_difference(gradients, expected) == 0.0


def test_a_step_without_any_label_leaves_the_weights_alone() -> None:
    before = {n: p.detach().clone() for n, p in tiny_model().named_parameters()}
    result, gradients, after = run([pad([random_window(9, 1, labelled=False)], 0)])
    assert float(result.loss) == 0.0 and gradients == {}
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_update_is_that_of_adamw_after_clip_grad_norm() -> None:
    batches = [pad(windows_of_issue(), 0)]
    __, __, ours = run(batches, max_grad_norm=0.5)
    model = tiny_model().train()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=1e-3
    )
    ids, mask = torch.from_numpy(batches[0].input_ids), torch.from_numpy(batches[0].attention_mask)
    labels = torch.from_numpy(batches[0].labels)
    logits = model(input_ids=ids, attention_mask=mask).logits
    (token_loss(logits, labels) / batches[0].num_labelled).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    assert float(norm) > 0.5, "the case must clip"
    optimizer.step()
    theirs = {n: p.detach() for n, p in model.named_parameters()}
    # Adam divides by the root of the second moment: where a gradient is next to nothing, rounding
    # decides, so weights are compared against the size of an update.
    assert max(float((ours[n] - theirs[n]).abs().max()) for n in ours) < 1e-3 * 0.02


def test_the_loss_scale_cancels_out() -> None:
    batches = [pad(windows_of_issue(), 0)]
    plain, __, expected = run(batches, max_grad_norm=0.5)
    scaled, __, weights = run(batches, max_grad_norm=0.5, loss_scale=1024.0)
    assert float(scaled.grad_norm) == pytest.approx(float(plain.grad_norm), rel=1e-6)
    assert max(float((weights[n] - expected[n]).abs().max()) for n in weights) < 1e-3 * 0.02


@pytest.mark.parametrize("poison", ["weight", "scale"])
def test_a_step_that_is_not_finite_never_reaches_the_weights(poison: str) -> None:
    model = tiny_model().train()
    update = update_of(model)
    if poison == "weight":
        with torch.no_grad():
            model.classifier.weight[0, 0] = float("nan")
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    result = train_step(
        model,
        update,
        [pad(windows_of_issue(), 0)],
        device=CPU,
        precision="fp32",
        loss_scale=float("inf") if poison == "scale" else 1.0,
    )
    assert float(result.refused) == 1.0
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.detach().nan_to_num(7.0), before[name].nan_to_num(7.0)), name
    for state in update.optimizer.state.values():
        assert float(state["step"]) == 0.0 and not bool(state["exp_avg"].any())


def test_token_loss_of_a_case_worked_by_hand() -> None:
    logits = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]]])
    labels = torch.tensor([[0, 1, IGNORED]])
    # ln 2 for the first, ln(1 + e) for the second, nothing for the third.
    assert float(token_loss(logits, labels)) == pytest.approx(0.693147 + 1.313262, abs=1e-5)
