"""A stand-in for Apple's GPU: tensors on the CPU that say they are on "mps", and refuse what is refused there.

Refused are float64, tensors of two devices in one operation, and reading a tensor as an array of numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from calibrl.control import policy

MPS, CPU = torch.device("mps:0"), torch.device("cpu")
MOVES = {Tensor.to, Tensor.cpu, Tensor.copy_, Tensor.__setitem__, Tensor.__getitem__, Tensor.type_as}
READS = {getattr(Tensor, f"__{name}__") for name in ("bool", "float", "int", "index", "repr", "format")}


class OnMps(Tensor):
    """A tensor that is not where it says."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # the mode below does it all
    device = property(lambda _: MPS)

    def __deepcopy__(self, _memo: Any) -> OnMps:
        return self.detach().clone().as_subclass(OnMps)


class Mode(TorchFunctionMode):
    """Every function of torch, with a device more."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.device:
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        there = any(isinstance(tensor, OnMps) for tensor in tensors)
        if func is Tensor.numpy and there:
            raise TypeError("can't convert mps:0 device type tensor to numpy; use Tensor.cpu()")
        if there and func not in MOVES and any(one.dim() and not isinstance(one, OnMps) for one in tensors):
            raise RuntimeError(f"{func.__name__}: Expected all tensors to be on the same device")
        named = [torch.device(leaf).type for leaf in leaves if _is_device(leaf)]
        to_mps = there and func is not Tensor.cpu
        if named:
            to_mps = named[0] == "mps"
        elif func is Tensor.to and len(tensors) > 1:
            to_mps = isinstance(tensors[1], OnMps)
        args, kwargs = tree_map(lambda leaf: CPU if _is_device(leaf) else leaf, (args, kwargs))
        found = func(*args, **kwargs)

        def moved(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or func in READS:
                return leaf
            if to_mps and leaf.dtype == torch.float64:
                raise TypeError(f"{func.__name__}: the MPS framework doesn't support float64")
            kind = OnMps if to_mps else Tensor
            return leaf if type(leaf) is kind or isinstance(leaf, torch.nn.Parameter) else leaf.as_subclass(kind)

        return found if isinstance(found, torch.Size) else tree_map(moved, found)


def _is_device(leaf: Any) -> bool:
    return isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf in ("cpu", "mps", "mps:0"))


@contextmanager
def fake_mps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that has such a GPU, which draws what the CPU would."""
    drawn = policy.stream
    monkeypatch.setattr(policy, "stream", lambda seed, purpose, _device="cpu": drawn(seed, purpose))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "get_rng_state", torch.get_rng_state)
    monkeypatch.setattr(torch.mps, "set_rng_state", torch.set_rng_state)
    with Mode():
        yield
