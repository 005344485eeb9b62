"""What every test may count on: one thread, a headless canvas, repeatable examples."""

import matplotlib as mpl
import pytest
import torch
from hypothesis import HealthCheck, settings
from matplotlib.figure import Figure
from PIL import Image

# Nothing that depends on how busy the machine is: no deadline, no complaint that examples are made slowly.
settings.register_profile(
    "calibrl", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40, derandomize=True
)
settings.load_profile("calibrl")
mpl.use("Agg")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def blank_figures(monkeypatch):
    """Figures are made but not painted, which takes most of a small run's time: for tests of all else that it does."""
    monkeypatch.setattr(Figure, "savefig", lambda _, path, format=None, **__: Image.new("1", (1, 1)).save(path, format))
