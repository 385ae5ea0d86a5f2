"""FNet's transform by products against torch.fft."""

import pytest
import torch
import transformers

from bertfit.models.fourier import _Products, products, real_fft2, replace_fourier


@pytest.mark.parametrize("shape", [(2, 7, 12), (1, 1, 5), (3, 64, 48), (2, 301, 768)])
def test_the_products_are_the_real_part_of_the_transform(shape: tuple[int, int, int]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    exact = torch.fft.fft2(x.double()).real
    scale = (shape[1] * shape[2]) ** 0.5  # of the results
    assert (products(x).double() - exact).abs().max() < 2e-5 * scale


def test_its_gradient_is_that_of_the_transform() -> None:
    generator = torch.Generator().manual_seed(2)
    x, weights = (torch.randn(2, 30, 24, generator=generator) for _ in range(2))
    found, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
    (_Products.apply(found) * weights).sum().backward()
    (torch.fft.fftn(expected, dim=(1, 2)).real * weights).sum().backward()
    assert found.grad is not None and expected.grad is not None
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-5, atol=1e-4)


def test_16_bits_are_computed_in_fp32_and_autocast_leaves_fp32() -> None:
    x = torch.randn(2, 6, 10).bfloat16()
    assert real_fft2(x).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        mixed = real_fft2(x)
        assert products(x.float()).dtype == torch.float32
    torch.testing.assert_close(mixed, torch.fft.fft2(x.float()).real)


@pytest.mark.parametrize("for_tpu", [False, True])
def test_fnet_says_the_same_by_products(for_tpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = transformers.FNetConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=3,
        intermediate_size=64,
        max_position_embeddings=40,
        use_tpu_fourier_optimizations=for_tpu,
        tpu_short_seq_length=17,
    )
    model = transformers.FNetForTokenClassification(config).eval()
    ids = torch.arange(34).view(2, 17)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        replace_fourier(model)
        by_fft = model(input_ids=ids).logits
        monkeypatch.setattr(torch.fft, "fft2", lambda x: products(x).to(torch.complex64))
        by_products = model(input_ids=ids).logits
    torch.testing.assert_close(by_fft, before, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(by_products, before, rtol=1e-4, atol=1e-5)
