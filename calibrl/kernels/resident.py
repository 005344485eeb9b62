"""Narrow ensembles on Hopper GPUs: one persistent CUDA kernel whose weights stay on the chip as far as they fit.

`kernels.hopper` reads all weights of a network for every 128 rows, and that is what it waits for. Here a program
keeps one network and takes block after block of rows through it; what does not fit into shared memory passes through
a small ring. Layers are multiplied in their own width, padded to 16: Triton knows powers of two only, which is why
this is CUDA C++ (`on_chip.cu`, `resident.cu`), compiled at run time by what comes with PyTorch: no toolkit, no headers.
The arithmetic is that of `kernels.hopper`: halved weights, biases on two units that say LOUD, bfloat16 between hidden
layers, float16 at both ends, float32 sums. Where each row goes through one network only (TS1, TSinf), what leaves the
chip is the draw.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrl.kernels.fused_nets import SHARED_MEMORY, Networks, Sizes, first_layer, heads, hidden_layer, memory

ROWS, THREADS = 128, 384
"""Rows that a program takes at a time; its threads: two groups that compute, one that fetches."""

SLICE = 16
"""Inputs that one product of the tensor cores takes."""

WIDEST, MOST_OUTPUTS, MOST_INPUTS = 13 * SLICE, 32, 62
"""Sizes up to which everything a thread holds fits into its registers."""


@dataclass(frozen=True)
class Layout:
    """How the weights of a network share the memory of one program.

    ks_in, ks: slices of the first layer and of the others. kept: of each hidden layer's slices, those that stay; the
    rest comes through a ring of slots, two slices in each.
    """

    ks_in: int
    ks: int
    layers: int
    out8: int
    kept: int
    slots: int

    @classmethod
    def of(cls, sizes: Sizes, *, beside: int = 0) -> Layout | None:
        """The layout that keeps most beside so many bytes of something else, or None where no ring fits."""
        ks_in, ks = -(-(sizes.inputs + 2) // SLICE), -(-(sizes.width + 2) // SLICE)
        layers, out8 = sizes.hidden - 1, -(-sizes.outputs // 8) * 8
        for kept in range(ks, -1, -2):
            chunks = (ks - kept) // 2
            # One place more than a layer needs, so that the next one's weights are on their way.
            found = cls(ks_in, ks, layers, out8, kept, chunks + 1 if chunks else 0)
            if found.shared + beside <= SHARED_MEMORY:
                return found
        return None

    @property
    def width(self) -> int:
        """Units of a layer, with those that carry biases, padded."""
        return SLICE * self.ks

    @property
    def shared(self) -> int:
        """Bytes of shared memory, barriers with them."""
        slices = self.ks_in + self.layers * self.kept + 2 * self.slots
        barriers = 3 + self.layers + 2 * self.slots
        return 2 * SLICE * (slices * self.width + self.ks * 2 * self.out8) + 8 * barriers


@dataclass
class Resident:
    """The kernel, and networks in the order in which it reads them; `packed`: in the order of its arguments."""

    sizes: Sizes
    device: torch.device
    layout: Layout = field(init=False)
    packed: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        layout = Layout.of(self.sizes)
        assert layout is not None, "asked for sizes that do not fit"
        self.layout = layout
        g, e, ks_in, ks, out8 = self.sizes.agents, self.sizes.members, layout.ks_in, layout.ks, layout.out8
        slice_size = layout.width * SLICE
        shapes: dict[str, tuple[int, ...]] = {
            "centre": (g, SLICE * ks_in),
            "spread": (g, SLICE * ks_in),
            "w_in": (g, e, ks_in, slice_size),
            "w_hidden": (g, e, layout.layers, ks, slice_size),
            "w_out": (g, e, ks, 2 * out8 * SLICE),
            "floor": (g, out8),
            "ceiling": (g, out8),
        }
        half = torch.float16
        self.packed = memory(shapes, self.device, w_in=half, w_hidden=torch.bfloat16, w_out=half)
        if self.device.type == "cuda":  # what cannot be compiled must be known before it is relied on
            self.kernel()

    @staticmethod
    def fits(sizes: Sizes) -> bool:
        """Whether the registers and the shared memory hold such networks."""
        small = sizes.width + 2 <= WIDEST and sizes.outputs <= MOST_OUTPUTS and sizes.inputs <= MOST_INPUTS
        return small and Layout.of(sizes) is not None

    def pack(self, nets: Networks) -> None:
        """Take over the networks: halved, with biases as weights of the units that say LOUD, in slices."""
        sizes, layout, into = self.sizes, self.layout, self.packed
        inputs, outputs = sizes.inputs, sizes.outputs
        into["centre"][:, :inputs] = nets.input_mean[:, 0, 0]
        into["spread"][:, :inputs] = 1 / nets.input_std[:, 0, 0]
        # The two softpluses of the bounds, after exp: bottom + 1 / (1 / top + 1 / variance).
        into["floor"][:, :outputs] = nets.min_logvar[:, 0, 0].exp()
        into["ceiling"][:, :outputs] = (-nets.max_logvar[:, 0, 0]).exp()
        into["w_in"].copy_(in_slices(first_layer(nets, sizes, SLICE * layout.ks_in, layout.width)))
        for layer in range(layout.layers):
            into["w_hidden"][:, :, layer] = in_slices(hidden_layer(nets, sizes, layer, layout.width))
        into["w_out"].copy_(in_slices(torch.cat(heads(nets, sizes, layout.width, layout.out8), -1)))

    def run(self, x: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Write the moments (g, e, n, d) of x (g, n, in)."""
        self._launch(self.kernel(), x, mean, variance, x, x)

    def draw(self, x: Tensor, draws: Tensor, order: Tensor | None) -> Tensor:
        """What `FusedNets.draw` says, in one go."""
        out = torch.empty_like(draws)
        kernel = self.kernel(shared=True, ordered=order is not None)
        self._launch(kernel, x, out, out, x if order is None else order, draws)
        return out

    def _launch(self, kernel: Function, x: Tensor, *given: Tensor) -> None:
        n = x.shape[1]
        kernel(self.programs(n), THREADS, [x, *self.packed.values(), *given, n, self.sizes.agents * self.sizes.members])

    def programs(self, rows: int) -> int:
        """How many share the work on so many rows of every network: no more than run at once."""
        blocks = -(-rows // ROWS) * self.sizes.agents * self.sizes.members
        return min(blocks, torch.cuda.get_device_properties(self.device).multi_processor_count)

    def kernel(self, *, shared: bool = False, ordered: bool = False) -> Function:
        """Compiled, once for all networks of such sizes."""
        text = source(self.sizes, self.layout, shared=shared, ordered=ordered)
        device = self.packed["centre"].device.index
        return function(text, "moments", "sm_90a", self.layout.shared, device)


def in_slices(weight: Tensor) -> Tensor:
    """A layer (g, e, inputs, units) as tensor cores read it: (g, e, slices, units · 16).

    A slice is 16 inputs of all units, in pieces of 8 units × 8 inputs that lie in one piece, two along the inputs for
    each 8 units.
    """
    pieces = weight.unflatten(3, (-1, 8)).unflatten(2, (-1, 2, 8))
    return pieces.permute(0, 1, 2, 5, 3, 6, 4).flatten(3)


def source(sizes: Sizes, layout: Layout, *, shared: bool = False, ordered: bool = False) -> str:
    """The CUDA C++ of the kernel for some sizes."""
    return on_chip(sizes, layout, SHARED=int(shared), ORDERED=int(ordered), TURNS=1) + text_of("resident.cu")


def on_chip(sizes: Sizes, layout: Layout, **more: int) -> str:
    """What every kernel begins with whose weights stay on the chip, with more constants by name."""
    numbers = {"E": sizes.members, "IN": sizes.inputs, "OUT": sizes.outputs} | more
    numbers |= {name.upper(): value for name, value in asdict(layout).items()}
    constants = "".join(f"constexpr int {name} = {value};\n" for name, value in numbers.items())
    products = (
        _product("into", layout.width, "f16")
        + _product("onward", layout.width, "bf16")
        + _product("outward", 2 * layout.out8, "f16")
    )
    return constants + products + text_of("on_chip.cu")


def text_of(name: str) -> str:
    """A file of CUDA C++ beside this one."""
    return files("calibrl.kernels").joinpath(name).read_text()


def _product(name: str, units: int, kind: str) -> str:
    """D (64, units) = or += a (64, 16) · b (16, units): one instruction of the tensor cores, as a function."""
    count = units // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    left = ", ".join(f"%{count + i}" for i in range(4))
    return (
        f"__device__ __forceinline__ void {name}(float (&d)[{count}], const unsigned (&a)[4], unsigned long long b,"
        f" int add) {{\n"
        f'  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 5}, 0; '
        f"wgmma.mma_async.sync.aligned.m64n{units}k16.f32.{kind}.{kind} "
        f'{{{sums}}}, {{{left}}}, %{count + 4}, p, 1, 1, 0; }}"\n'
        f'               : {outputs}\n               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));\n'
        "}\n"
    )


# The compiler.

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

    def __call__(self, grid: int, block: int, arguments: Sequence[Tensor | int | bytes]) -> None:
        """Launch on the current stream: tensors are passed as pointers, numbers as int, bytes as a struct."""
        values: list[Any] = [
            ctypes.create_string_buffer(one, len(one))
            if isinstance(one, bytes)
            else ctypes.c_void_p(one.data_ptr())
            if isinstance(one, Tensor)
            else ctypes.c_int(one)
            for one in arguments
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
