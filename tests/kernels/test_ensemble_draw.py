"""The compiled draw against the plain one, and against a mixture worked out by hand."""

import pytest
import torch

from calibrl.kernels.ensemble_draw import ensemble_draw, ensemble_draw_reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 4, 37), (1, 5, 18, 300)])
def test_compiled_equals_plain(shape, dtype, generator):
    g, e, d, n = shape
    # Halves of one tensor, as a head gives them: the rows of a network do not follow on another's.
    mean, share = torch.rand(g, e, 2 * d, n, generator=generator, dtype=dtype).chunk(2, 2)
    lowest, highest = torch.rand(2, g, 1, d, 1, generator=generator, dtype=dtype)
    draws = torch.randn(g, n, d, generator=generator, dtype=dtype)
    plain = ensemble_draw_reference(mean, share, lowest, highest, draws)
    torch.testing.assert_close(ensemble_draw(mean, share, lowest, highest, draws), plain)


def test_two_networks_by_hand():
    """Means 1 and 3, variances 0.5 + 2 · 0.25 and 0.5 + 2 · 0.75: mean 2, variance 1.5 + 1, a draw of 2."""
    mean, share = torch.tensor([1.0, 3.0]).reshape(1, 2, 1, 1), torch.tensor([0.25, 0.75]).reshape(1, 2, 1, 1)
    lowest, highest = torch.full((1, 1, 1, 1), 0.5), torch.full((1, 1, 1, 1), 2.0)
    found = ensemble_draw(mean, share, lowest, highest, torch.full((1, 1, 1), 2.0))
    assert found.item() == pytest.approx(2 + 2 * 2.5**0.5)
