"""Arrays of any kind as tensors, results as what was given; devices that are there, and how many threads to take."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeGuard, TypeVar

import numpy as np

from calibrl.errors import CalibrlError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Array: TypeAlias = Any
"""A tensor, a NumPy array, a pandas or polars column, or nested lists of numbers."""

P = ParamSpec("P")
T = TypeVar("T")


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Whether `value` is a tensor; does not load PyTorch, without which there is none."""
    loaded = sys.modules.get("torch")
    return loaded is not None and isinstance(value, loaded.Tensor)


def is_foreign(value: object) -> bool:
    """Whether `value` is array data that is not a tensor (NumPy, a data-frame column, a list)."""
    return not is_tensor(value) and (hasattr(value, "__array__") or isinstance(value, (list, tuple)))


def as_tensor(value: Array, name: str = "value") -> Tensor:
    """`value` as a floating tensor; tensors keep their dtype and device, integers become float64."""
    if not is_tensor(value):
        import torch

        try:
            found: Any = np.ma.filled(value.astype(float), np.nan) if np.ma.isMA(value) else np.asarray(value)
            if found.dtype.kind == "O" and found.ndim and not any(isinstance(one, str) for one in found.flat):
                found = found.astype(float)  # None, for which NaN stands, among Python's own numbers
            if found.dtype.kind not in "biuf":
                raise TypeError(f"it holds {str(next(found.flat, found.dtype))!r}")
            # A copy, because a tensor over read-only memory (a data frame's column) would be unsafe to write.
            value = torch.from_numpy(np.array(found, dtype=np.result_type(found, np.float32)))
        except (TypeError, ValueError) as problem:
            raise CalibrlError(f"{name} is not an array of numbers ({problem}); give some, NaN if missing") from None
    return value if value.is_floating_point() else value.double()


def off_mps(value: Tensor) -> Tensor:
    """The tensor where float64 can be had: Apple's GPU has none, so what is there moves to the CPU."""
    return value.cpu() if value.device.type == "mps" else value


def as_rows(x: Array) -> Tensor:
    """Rows to ask a model about, as a tensor; a tensor stays what it is, whole numbers too."""
    return x if is_tensor(x) else as_tensor(x, "x")


def returns_what_was_given(function: Callable[P, T]) -> Callable[P, T]:
    """Turn tensor results into NumPy arrays when no argument was a tensor and one was NumPy.

    A tensor anywhere in the arguments means the caller works in torch: it stays torch.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        result = function(*args, **kwargs)
        given = [*args, *kwargs.values()]
        if any(is_tensor(value) for value in given) or not any(is_foreign(value) for value in given):
            return result
        return as_numpy(result)

    return wrapped


def as_numpy(result: Any) -> Any:
    """A tensor, or each of a tuple, as NumPy's; anything else as it is."""
    if is_tensor(result):
        plain = result.detach().cpu()
        return (plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy()  # NumPy has no bfloat16
    if isinstance(result, tuple):
        items = [as_numpy(item) for item in result]
        return type(result)(*items) if hasattr(result, "_fields") else tuple(items)
    return result


def plain_fields(of: object, kind: str, plain: Callable[[Any], Any], *names: str) -> None:
    """Make fields of a frozen dataclass Python's own values, or say which is not `kind`: NumPy's are no JSON."""
    for name in names:
        value = getattr(of, name)
        try:
            object.__setattr__(of, name, plain(value))
        except (TypeError, ValueError):
            raise CalibrlError(f"{name} {value!r} is not {kind}, and has to be") from None


def device_named(device: torch.device | str, *, float64: bool = False) -> str:
    """The name of a device that is there; "auto" is the GPU where there is one. Any other is refused.

    float64: whether something is to compute in it there, which Apple's GPU (mps) cannot.
    """
    name = str(device)
    kind = name.partition(":")[0]
    if kind == "cpu":
        return name
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available() and not float64, "cpu": True}
    if name == "auto":
        return next(kind for kind, found in there.items() if found)
    if kind == "mps" and float64:
        raise CalibrlError(f"device {name!r}: Apple's GPU has no float64, in which this computes; use cpu or cuda")
    if kind not in there:
        raise CalibrlError(f"device {name!r} is unknown; use cpu, cuda{'' if float64 else ', mps'} or auto")
    if not there[kind]:
        raise CalibrlError(f"device {name!r} is not there; use cpu or auto, or a machine whose torch sees a GPU")
    return name


def visible_devices(device: str) -> list[str]:
    """The devices that a name stands for: cuda is every GPU that torch sees, anything else itself."""
    import torch

    count = torch.cuda.device_count() if device == "cuda" else 0
    return [f"cuda:{number}" for number in range(count)] if count > 1 else [device]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads; one for many small things, where several would wait for each other longer than they compute."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
