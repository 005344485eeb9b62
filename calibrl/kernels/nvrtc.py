"""CUDA C++ compiled at run time by the compiler library that comes with PyTorch: no toolkit, no headers."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SHARED_MEMORY_LIMIT = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of the CUDA driver."""


class CompilerError(Exception):
    """What the compiler or the driver has to say."""


class Function:
    """A kernel on the current GPU; call it with the grid, the block and its arguments."""

    def __init__(self, cubin: bytes, name: str, shared: int) -> None:
        self.driver, self.shared = ctypes.CDLL("libcuda.so.1"), shared
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        torch.cuda.current_stream()  # PyTorch's context is then the current one
        self._check(self.driver.cuModuleLoadData(ctypes.byref(self.module), cubin))
        self._check(self.driver.cuModuleGetFunction(ctypes.byref(self.function), self.module, name.encode()))
        self._check(self.driver.cuFuncSetAttribute(self.function, SHARED_MEMORY_LIMIT, shared))

    def __call__(self, grid: int, block: int, arguments: Sequence[Tensor | int]) -> None:
        """Launch on the current stream: tensors are passed as pointers, numbers as int."""
        values: list[Any] = [
            ctypes.c_void_p(one.data_ptr()) if isinstance(one, Tensor) else ctypes.c_int(one) for one in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.byref(one), ctypes.c_void_p) for one in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._check(
            self.driver.cuLaunchKernel(self.function, grid, 1, 1, block, 1, 1, self.shared, stream, pointers, None)
        )

    def _check(self, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(code, ctypes.byref(text))
            raise CompilerError(f"CUDA driver: {(text.value or b'unknown error').decode()}")


@functools.cache
def function(source: str, name: str, architecture: str, shared: int, device: int) -> Function:
    """A kernel of a source, with room for dynamic shared memory, for a GPU: compiled once."""
    with torch.cuda.device(device):
        return Function(compiled(source, architecture), name, shared)


def compiled(source: str, architecture: str) -> bytes:
    """Machine code for an architecture such as sm_90a."""
    library = _library()

    def check(code: int) -> None:
        if code:
            library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise CompilerError(f"NVRTC: {library.nvrtcGetErrorString(code).decode()}")

    program = ctypes.c_void_p()
    check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"calibrl.cu", 0, None, None))
    options = (ctypes.c_char_p * 2)(f"--gpu-architecture={architecture}".encode(), b"--std=c++17")
    size = ctypes.c_size_t()
    try:
        if library.nvrtcCompileProgram(program, len(options), options):
            check(library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
            log = ctypes.create_string_buffer(size.value)
            check(library.nvrtcGetProgramLog(program, log))
            raise CompilerError(f"NVRTC: {log.value.decode()}")
        check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        cubin = ctypes.create_string_buffer(size.value)
        check(library.nvrtcGetCUBIN(program, cubin))
        return cubin.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _library() -> ctypes.CDLL:
    """The compiler of PyTorch's own CUDA version, from the system or from the packages PyTorch depends on."""
    if torch.version.cuda is None:
        raise CompilerError("this PyTorch was built without CUDA")
    name = f"libnvrtc.so.{torch.version.cuda.split('.')[0]}"
    packages = Path(torch.__file__).parents[1] / "nvidia"
    for place in (name, *map(str, packages.glob(f"*/lib/{name}"))):
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise CompilerError(f"{name} was not found; it comes with PyTorch's CUDA packages")
