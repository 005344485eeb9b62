"""The compiled look-up against the plain one."""

import pytest
import torch

from calibrl.kernels.normal import read_table, read_table_reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [(), (1,), (5,)])
@pytest.mark.parametrize("lead", [(), (7,), (3, 4)])
def test_compiled_equals_plain(dtype, columns, lead, generator):
    epsilon = torch.randn((*lead, *columns), generator=generator, dtype=dtype)
    lines = torch.randn((*columns, 1000, 2), generator=generator, dtype=dtype)
    plain = read_table_reference(epsilon, lines, 1000 / 17.2)
    torch.testing.assert_close(read_table(epsilon, lines, 1000 / 17.2), plain)


def test_strided_draws_are_read_in_order(generator):
    epsilon = torch.randn(5, 6, generator=generator).T
    lines = torch.randn(5, 400, 2, generator=generator)
    plain = read_table_reference(epsilon, lines, 400 / 17.2)
    torch.testing.assert_close(read_table(epsilon, lines, 400 / 17.2), plain)
