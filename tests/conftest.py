"""What every test may count on: one thread, a headless canvas, repeatable examples."""

import matplotlib as mpl
import pytest
import torch
from hypothesis import settings

settings.register_profile("calibrl", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("calibrl")
mpl.use("Agg")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)
