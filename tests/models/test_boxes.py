import pytest
import torch

from bertfit.data.batches import pad
from bertfit.engine.backends import PlainTagger
from bertfit.engine.step import forward
from bertfit.models.boxes import empty_boxes
from bertfit.models.encoder import build_classifier
from tiny_models import SCHEME, VOCABULARY, random_window, tiny_model

CPU = torch.device("cpu")


def bros() -> torch.nn.Module:
    torch.manual_seed(0)
    fields = {
        "model_type": "bros",
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    return build_classifier(fields, SCHEME.tags, 0.0)


def test_bros_reads_text_as_if_it_had_no_layout() -> None:
    """All boxes at one place, whichever it is, change nothing."""
    model = bros().eval()
    batch = pad([random_window(9, 0), random_window(6, 1)], 0)
    with torch.no_grad():
        logits = forward(model, batch, CPU)
        ids, mask = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.attention_mask)
        elsewhere = torch.full((*ids.shape, 4), 0.25)
        other = model(input_ids=ids, attention_mask=mask, bbox=elsewhere).logits
        torch.testing.assert_close(logits, other, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(PlainTagger(model)(ids, mask), logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bros_trains_in_the_dtype_of_its_weights(dtype: torch.dtype) -> None:
    model = bros().to(dtype).train()
    forward(model, pad([random_window(9, 0)], 0), CPU).float().sum().backward()
    weight = model.get_parameter("bros.bbox_embeddings.bbox_projection.weight")
    assert weight.grad is not None and torch.isfinite(weight.grad).all()


def test_a_model_that_does_not_ask_gets_no_boxes() -> None:
    assert empty_boxes(tiny_model(), torch.zeros(2, 3, dtype=torch.int64)) == {}
