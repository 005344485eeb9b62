"""A task's tensor functions as CUDA C++ for one particle: what a kernel needs to imagine a world without PyTorch.

A world says in tensor functions of any leading dimensions what follows and what is earned. A kernel that keeps
particles on the chip cannot call them. Here PyTorch traces one on rows without leading dimensions, and the trace is run
once more on names: a tensor is where its numbers stand in a list of variables and literals. What only moves numbers
(slices, stacks, transposes) PyTorch does itself, on those places, and no code comes of it; what computes is a line of
C++ for each number.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrl.errors import first_line

__all__ = ["Untranslatable", "device_function"]

aten = torch.ops.aten

LONGEST = 5_000
"""Lines up to which straight-line code makes sense: networks belong into products of matrices."""

TYPES = {torch.float32: "float", torch.bool: "bool", torch.int32: "int", torch.int64: "long long"}


def _words(text: str) -> list[str]:
    return text.split()


MOVES = _words(
    "alias cat clone constant_pad_nd copy detach diagonal expand flip gather index index_put index_select lift_fresh "
    "lift_fresh_copy permute repeat roll scatter select select_scatter slice slice_scatter split split_with_sizes "
    "squeeze squeeze_ stack t transpose unbind unfold unsqueeze view _unsafe_view"
)
"""What PyTorch does with places as it would with numbers."""

LIKE = _words("empty_like full_like new_empty new_full new_ones new_zeros ones_like zeros_like")
"""What is the same whatever the numbers are."""

FUNCTIONS = _words(
    "acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor log log10 log1p log2 sin sinh sqrt "
    "tan tanh trunc"
)
OPERATORS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "mul": "*"}
OPERATORS |= {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "logical_and": "&&", "logical_or": "||"}

# CUDA's fmaxf and fminf take the other number for a NaN; PyTorch keeps it.
MAXIMUM = "({self} > {other} || {self} != {self} ? {self} : {other})"
MINIMUM = "({self} < {other} || {self} != {self} ? {self} : {other})"

TEMPLATES = {
    **{name: f"{name}f({{self}})" for name in FUNCTIONS},
    **{name: f"({{self}} {sign} {{other}})" for name, sign in OPERATORS.items()},
    "_to_copy": "{self}",
    "abs": "fabsf({self})",
    "add": "{self} + {alpha} * {other}",
    "atan2": "atan2f({self}, {other})",
    "bitwise_not": "!{self}",
    "convert_element_type": "{a}",
    "copysign": "copysignf({self}, {other})",
    "div": "{self} / (float){other}",
    "fmod": "fmodf({self}, {other})",
    "hypot": "hypotf({self}, {other})",
    "isinf": "(fabsf({self}) == __int_as_float(0x7f800000))",
    "isnan": "({self} != {self})",
    "logical_not": "!{self}",
    "logical_xor": "(!{self} != !{other})",
    "maximum": MAXIMUM,
    "minimum": MINIMUM,
    "neg": "-{self}",
    "pow": "powf({self}, {exponent})",
    "reciprocal": "1.0f / {self}",
    "relu": "({self} < 0.0f ? 0.0f : {self})",
    "round": "rintf({self})",
    "rsqrt": "1.0f / sqrtf({self})",
    "sigmoid": "1.0f / (1.0f + expf(-{self}))",
    "sign": "(float)(({self} > 0.0f) - ({self} < 0.0f))",
    "sub": "{self} - {alpha} * {other}",
    "where": "({condition} ? {self} : {other})",
}
"""What becomes of a number, in the names of the operation's arguments."""

POWERS = {
    -2: "1.0f / ({self} * {self})",
    -1: "1.0f / {self}",
    -0.5: "1.0f / sqrtf({self})",
    0.5: "sqrtf({self})",
    1: "{self}",
    2: "{self} * {self}",
    3: "{self} * {self} * {self}",
}
"""The same for powers by a constant, as PyTorch computes them."""

FOLDS = {"all": TEMPLATES["logical_and"], "any": TEMPLATES["logical_or"], "amax": MAXIMUM, "amin": MINIMUM}
FOLDS |= {"max": MAXIMUM, "min": MINIMUM, "prod": TEMPLATES["mul"], "sum": "{self} + {other}"}
"""What becomes of two numbers where many become one."""

WHOLE = {"_to_copy", "add", "convert_element_type", "mul", "neg", "sub", "where", "prod", "sum"}
"""What computes integers as C++ does; everything else is translated for float32 only."""

LAYOUT = {"device", "dtype", "layout", "memory_format", "non_blocking", "pin_memory"}
"""Arguments that say what a tensor is, which the trace has already."""


class Untranslatable(Exception):
    """What in a function cannot become straight-line C++."""


@dataclass(frozen=True)
class Names:
    """A tensor of numbers known by name: where each stands in the list, and their type."""

    at: Tensor
    dtype: torch.dtype


def device_function(name: str, function: Callable[..., Tensor], *sizes: int) -> str:
    """A tensor function as a device function of CUDA C++, for one row of each argument.

    Parameters
    ----------
    name
        What to call it.
    function
        Of tensors (…, size), for any leading dimensions, → one tensor. Whatever else it reads becomes literals, as it
        is now.
    sizes
        Of its arguments.

    Returns
    -------
    str
        `void name(const float (&in0)[size], …, float (&out)[count])`: the result's numbers in C order; truths are 0
        and 1. `out` may be the memory of an argument.

    Raises
    ------
    Untranslatable
        Where the function asks what a number is, draws at random, changes its arguments, or does what there is no
        template for.
    """
    graph, writer = _traced(function, sizes), Writer()
    result = writer.run(graph, sizes)
    # What is only passed on is read before anything is written: the result may be written over an argument.
    found = [writer.names[writer.line(torch.float32, writer.names[at])] for at in result.at.flatten().tolist()]
    arguments = [f"const float (&in{i})[{size}]" for i, size in enumerate(sizes)] + [f"float (&out)[{len(found)}]"]
    unused = [f"(void)in{i};" for i in range(len(sizes))]
    written = [f"out[{i}] = {one};" for i, one in enumerate(found)]
    head = f"__device__ __forceinline__ void {name}({', '.join(arguments)}) {{"
    return "\n  ".join([head, *unused, *writer.lines, *written]) + "\n}\n"


def _traced(function: Callable[..., Tensor], sizes: Sequence[int]) -> torch.fx.GraphModule:
    """The function as a graph in which nothing is changed in place."""
    from torch._decomp import core_aten_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    rows = [torch.zeros(size, dtype=torch.float32, device="cpu") for size in sizes]
    how: dict[str, Any] = {"tracing_mode": "fake", "_allow_non_fake_inputs": True}
    try:
        with torch.inference_mode(False), torch.no_grad():
            # Twice: what is made functional at once may read numbers through NumPy, and nobody would notice.
            once = make_fx(lambda *given: function(*given), **how)(*rows)
            table = {**core_aten_decompositions(), **_simpler()}
            graph = make_fx(torch.func.functionalize(once), decomposition_table=table, **how)(*rows)
    except Exception as error:
        raise Untranslatable(f"the function cannot be traced: {first_line(error)}") from error
    graph.graph.eliminate_dead_code()
    return graph


@functools.cache
def _simpler() -> dict[Any, Callable[..., Any]]:
    """Operations in terms of others that there are templates for."""
    from torch._decomp import get_decompositions

    def product(self: Tensor, mat2: Tensor) -> Tensor:
        return (self.unsqueeze(-1) * mat2.unsqueeze(-3)).sum(-2)

    def mean(self: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        total = self.sum(dim, keepdim, dtype=dtype)
        return total / (self.numel() // total.numel())

    def var(self: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
        total = (self - self.mean(dim, keepdim=True)).square().sum(dim, keepdim)
        return total / max(self.numel() // total.numel() - (1 if correction is None else correction), 0)

    def clamp(self: Tensor, min: Any = None, max: Any = None) -> Tensor:
        raised = self if min is None else torch.maximum(self, torch.as_tensor(min))
        return raised if max is None else torch.minimum(raised, torch.as_tensor(max))

    def remainder(self: Tensor, other: Any) -> Tensor:
        divisor, left = torch.as_tensor(other), torch.fmod(self, other)
        return torch.where((left != 0) & ((left < 0) != (divisor < 0)), left + divisor, left)

    def divided(self: Tensor, other: Any, *, rounding_mode: str | None) -> Tensor:
        if rounding_mode != "floor":
            return self / other if rounding_mode is None else (self / other).trunc()
        # Not the floor of the quotient, which may have been rounded up to an integer.
        whole = ((self - self.remainder(other)) / other).round()
        return torch.where(torch.as_tensor(other) == 0, self / other, whole)

    def largest(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return self.amax(dim, keepdim), self.argmax(dim, keepdim)

    def smallest(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return self.amin(dim, keepdim), self.argmin(dim, keepdim)

    names = _words("_log_softmax _softmax addmm elu hardtanh leaky_relu linalg_vector_norm")
    own: dict[Any, Callable[..., Any]] = {
        aten.bmm.default: product,
        aten.clamp.Tensor: clamp,
        aten.clamp.default: clamp,
        aten.div.Tensor_mode: divided,
        aten.max.dim: largest,
        aten.mean.default: mean,
        aten.mean.dim: mean,
        aten.min.dim: smallest,
        aten.mm.default: product,
        aten.remainder.Scalar: remainder,
        aten.remainder.Tensor: remainder,
        aten.var.correction: var,
    }
    return {**get_decompositions([getattr(aten, name).default for name in names]), **own}


class Writer:
    """Runs a graph on names, and writes down a line for each number that is computed."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.lines: list[str] = []
        self.known: dict[tuple[torch.dtype, str], int] = {}

    def run(self, module: torch.fx.GraphModule, sizes: Sequence[int]) -> Names:
        """The names of the result."""
        values: dict[torch.fx.Node, Any] = {}
        rows = ([f"in{i}[{j}]" for j in range(size)] for i, size in enumerate(sizes))
        for node in module.graph.nodes:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            if node.op == "placeholder":
                values[node] = Names(self.listed(next(rows)), torch.float32)
            elif node.op == "get_attr":
                values[node] = getattr(module, node.target).detach()
            elif node.op == "call_function":
                values[node] = self.call(node, args, kwargs)
            else:
                break
        if not isinstance(args[0], Names | Tensor | float | int):
            raise Untranslatable("the function does not return one tensor")
        return self.named(args[0])

    def call(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        """What an operation makes of names; what it makes of known numbers is known."""
        target: Any = node.target
        if not isinstance(target, torch._ops.OpOverload):  # one of several results
            return target(*args, **kwargs)
        name, arguments = target._schema.name.split("::")[1], target._schema.arguments
        if torch.Tag.nondeterministic_seeded in target.tags:
            raise Untranslatable(f"{target} draws at random")
        if target._schema.is_mutable and name not in MOVES:
            raise Untranslatable(f"{target} changes in place what the function was given")
        if not any(isinstance(one, Names) for one in torch.utils._pytree.tree_leaves((args, kwargs))):
            return target(*args, **kwargs)
        value = node.meta["val"]
        if name in LIKE:
            return target(torch.empty(value.shape, dtype=value.dtype), *args[1:], **kwargs)
        given = dict(zip((one.name for one in arguments), args, strict=False)) | kwargs
        if name in MOVES:
            return self.moved(target, given, value)
        if isinstance(value, Tensor) and value.dtype in (torch.int32, torch.int64) and name not in WHOLE:
            raise Untranslatable(f"{target} of integers has no translation")
        if name in FOLDS and given.keys() <= {"self", "dim", "keepdim", "dtype"}:
            return self.folded(FOLDS[name], self.named(given["self"]), given.get("dim"), value)
        template = TEMPLATES.get(name)
        if name == "pow" and isinstance(given["exponent"], int | float):
            template = POWERS.get(given["exponent"], template)
        given = {one.name: one.default_value for one in arguments if one.name == "alpha"} | given
        if template is None or any(f"{{{key}}}" not in template for key in given.keys() - LAYOUT - {"exponent"}):
            raise Untranslatable(f"{target} has no translation")
        return self.computed(template, {key: one for key, one in given.items() if f"{{{key}}}" in template}, value)

    def listed(self, names: Sequence[str]) -> Tensor:
        """Where new names stand in the list."""
        self.names += names
        return torch.arange(len(self.names) - len(names), len(self.names))

    def named(self, value: Names | Tensor | float) -> Names:
        """A tensor or a number by names: known ones are literals."""
        if isinstance(value, Names):
            return value
        known = torch.as_tensor(value)
        if known.is_complex() or (known.dtype == torch.float64 and known.dim()):
            raise Untranslatable(f"numbers of type {known.dtype}")
        return Names(self.listed([literal(one) for one in known.flatten().tolist()]).view(known.shape), known.dtype)

    def line(self, dtype: torch.dtype, text: str) -> int:
        """Where in the list that number stands; a new line computes it if none does."""
        if dtype not in TYPES:
            raise Untranslatable(f"numbers of type {dtype}")
        if (dtype, text) not in self.known:
            if len(self.lines) == LONGEST:
                raise Untranslatable(f"a function of more than {LONGEST} lines")
            new = f"v{len(self.lines)}"
            self.lines.append(f"const {TYPES[dtype]} {new} = {text};")
            # A variable is its own value.
            self.known[dtype, text] = self.known[dtype, new] = int(self.listed([new]))
        return self.known[dtype, text]

    def moved(self, target: Any, given: dict[str, Any], value: Any) -> Any:
        """Numbers in other places."""
        dtype = value.dtype if isinstance(value, Tensor) else value[0].dtype

        def places(one: Any) -> Any:
            if isinstance(one, list | tuple):
                return [places(part) for part in one]
            # As PyTorch lays numbers out, so that it finds the same views possible.
            return self.typed(self.named(one), dtype).at.contiguous() if isinstance(one, Names | Tensor) else one

        changed = {}
        for argument in target._schema.arguments:
            key, one = argument.name, given.get(argument.name)
            if key in ("index", "indices"):
                if any(isinstance(part, Names) for part in (one if isinstance(one, list) else [one])):
                    raise Untranslatable(f"{target} at places that are computed")
                changed[key] = one
            elif key in given or key == "value":
                if key in ("dtype", "reduce", "accumulate") and one:
                    raise Untranslatable(f"{target} has no translation")
                number = isinstance(argument.type, torch.NumberType)
                changed[key] = int(places(torch.as_tensor(one or 0.0))) if number else places(one)
        found = target(**changed)
        return Names(found, dtype) if isinstance(found, Tensor) else [Names(part, dtype) for part in found]

    def computed(self, template: str, given: dict[str, Any], value: Tensor) -> Names:
        """A line for each number."""
        at = {key: self.named(one).at.expand(value.shape).flatten().tolist() for key, one in given.items()}
        rows = [{key: self.names[places[i]] for key, places in at.items()} for i in range(value.numel())]
        found = [self.line(value.dtype, template.format(**row)) for row in rows]
        return Names(torch.tensor(found, dtype=torch.int64).view(value.shape), value.dtype)

    def typed(self, given: Names, dtype: torch.dtype) -> Names:
        """Numbers as those of a type."""
        same = given.dtype == dtype
        return given if same else self.computed("{self}", {"self": given}, torch.empty(given.at.shape, dtype=dtype))

    def folded(self, template: str, given: Names, dim: Any, value: Tensor) -> Names:
        """One number of many, from the first to the last."""
        at = self.typed(given, value.dtype).at
        chosen = [dim] if isinstance(dim, int) else dim or range(at.dim())
        gone = {one % max(at.dim(), 1) for one in chosen}
        order = [i for i in range(at.dim()) if i not in gone] + [i for i in range(at.dim()) if i in gone]
        rows = at.permute(order).reshape(value.numel(), -1)
        if not rows.shape[1]:
            raise Untranslatable("a fold of no numbers")

        def step(so_far: int, one: int) -> int:
            return self.line(value.dtype, template.format(self=self.names[so_far], other=self.names[one]))

        found = [functools.reduce(step, row) for row in rows.tolist()]
        return Names(torch.tensor(found, dtype=torch.int64).view(value.shape), value.dtype)


def literal(value: float) -> str:
    """A number in C++: what is no integer, exactly as float32."""
    with np.errstate(over="ignore", under="ignore"):
        text = str(int(value)) if isinstance(value, int) else f"{np.float32(value)!s}f"
    if not math.isfinite(value) or text.endswith("inff"):
        return f"__int_as_float(0x{'7fc00000' if math.isnan(value) else 'ff800000' if value < 0 else '7f800000'})"
    return f"({text})" if text.startswith("-") else text
