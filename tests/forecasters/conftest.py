import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Networks this small lose more to the hand-over between threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
