import torch

from trainers.normalise import Normalisation


def test_bytes_become_centred_and_scaled_by_channel() -> None:
    images = torch.tensor([[[[0, 255], [51, 102]]]], dtype=torch.uint8)  # [1, 1, 2, 2]
    out = Normalisation(mean=(0.2, 0.5), std=(0.5, 0.25)).apply(images)
    assert out.shape == (1, 2, 1, 2)
    assert out.dtype == torch.float32
    expected = torch.tensor([[[[-0.4, 0.0]], [[2.0, -0.4]]]])
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)


def test_a_channel_of_one_colour_stays_finite() -> None:
    images = torch.full((1, 2, 2, 1), 77, dtype=torch.uint8)
    out = Normalisation(mean=(77 / 255,), std=(0.0,)).apply(images)
    assert out.abs().max() < 1e-3
