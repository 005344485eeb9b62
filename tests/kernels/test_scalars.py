import ctypes
import functools
import itertools
import math
import shutil
import subprocess

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from calibrl.control.envs import MUJOCO_TASKS, pusher_next_reward
from calibrl.control.problems import task_from_env
from calibrl.control.trials import view_of
from calibrl.kernels.scalars import LONGEST, Untranslatable, device_function, literal

PRELUDE = """
#include <cmath>
#include <cstring>
static inline float __int_as_float(int bits) { float x; std::memcpy(&x, &bits, 4); return x; }
"""
FLAGS = ("-x", "c++", "-O1", "-ffp-contract=off", "-D__device__=", "-D__forceinline__=inline")


def _functions_of_tasks():
    for name, task in MUJOCO_TASKS.items():
        o, d, a, world = task.observation_size, task.target_size, task.action_size, task.world
        yield f"{name}-model_input", world.model_input, (o,)
        yield f"{name}-next_observation", world.next_observation, (o, d)
        yield f"{name}-reward", world.reward, (o, a, o)
        if world.safe is not None:
            yield f"{name}-safe", world.safe, (o,)
    yield "pusher-next_reward", pusher_next_reward, (20, 7, 20)
    # An environment whose reward and end are learnt, in units of its own.
    view = view_of(task_from_env("CartPole-v1"))
    o, d = view.observation_size, view.outputs
    yield "CartPole-v1-model_input", view.world.model_input, (o,)
    yield "CartPole-v1-next_observation", view.world.next_observation, (o, d)
    yield "CartPole-v1-reward", view.world.reward, (o, view.inputs - d + 2, o)


WEIGHTS = torch.tensor([[0.5, -1.25, 2.0, 0.1], [1e-3, 0.0, -3.0, 0.7]])
WHERE = torch.tensor([2, 0, 3])


def _words(text):
    return text.split()


def _written(x):
    found = x.clone()
    found[..., 1] = 3.0
    found[..., 2:] += x[..., :2]
    return found


def _halves(x):
    left, right = x.chunk(2, -1)
    return torch.cat([right, left], -1)


OF_ONE = {
    **{
        name: getattr(torch, name)
        for name in _words(
            "abs acos asin asinh acosh atan atanh ceil cos cosh deg2rad erf erfc exp exp2 expm1 floor frac "
            "isfinite isinf isnan log log10 log1p log2 logical_not nan_to_num neg rad2deg reciprocal relu round rsqrt "
            "sigmoid sign sin sinc sinh sqrt square tan tanh trunc"
        )
    },
    **{
        name: getattr(functional, name)
        for name in _words(
            "elu hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu softplus softsign"
        )
    },
    **{f"pow {p}": functools.partial(torch.pow, exponent=p) for p in (-2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 1.7)},
    "base": lambda x: 2.5**x,
    "scalars": lambda x: 0.1 * x + 3 - (1 - x) / 0.36 - 2 / x,
    "alpha": lambda x: torch.add(x, x.cos(), alpha=0.3),
    "clamp": lambda x: x.clamp(-0.5, 1),
    "clamp from": lambda x: x.clamp(min=0.25),
    "clamp to": lambda x: x.clamp(max=0.25),
    "clamp tensors": lambda x: x.clamp(WEIGHTS.new_zeros(4), WEIGHTS[0].abs()),
    "modulo": lambda x: (x + math.pi) % (2 * math.pi) - math.pi,
    "floor division": lambda x: x // 0.3,
    "truncated division": lambda x: torch.div(x, -0.3, rounding_mode="trunc"),
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "product": lambda x: x.prod(-1),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "max of two dims": lambda x: x.unflatten(-1, (2, 2)).amax((-1, -2)),
    "max with places": lambda x: x.max(-1).values,
    "min with places": lambda x: x.min(-1)[0],
    "any": lambda x: (x > 1).any(-1),
    "all": lambda x: (x.abs() < 1).all(-1),
    "count": lambda x: 2 * (x > 0).sum(-1) + x.isnan().int().sum(-1),
    "variance": lambda x: x.var(-1),
    "deviation": lambda x: x.std(-1, correction=0),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "norm 1": lambda x: x.norm(1, -1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "matrix": lambda x: x @ WEIGHTS.T,
    "linear": lambda x: functional.linear(x, WEIGHTS, WEIGHTS[:, 0]),
    "constant": lambda x: x * WEIGHTS[0] + torch.tensor([1.0, math.inf, -math.inf, math.nan]),
    "truths as numbers": lambda x: (x < 0.2).to(x.dtype) - (x >= 1).float() * (x != x),
    "truths": lambda x: (x < 0.2) & ~(x > -1) | (x == 0) ^ (x <= 2),
    "stack": lambda x: torch.stack([x[..., 0], -x[..., 1], torch.zeros_like(x[..., 0])], -1),
    "places": lambda x: x[..., [2, 0]] + x.index_select(-1, WHERE)[..., :2] + x[..., torch.tensor([True, False] * 2)],
    "gather": lambda x: x.gather(-1, WHERE.expand(*x.shape[:-1], 3)),
    "flip and roll": lambda x: x.flip(-1) + 2 * x.roll(1, -1),
    "turned": lambda x: (x.unflatten(-1, (2, 2)).mT * 2).mT.flatten(-2),
    "padded": lambda x: functional.pad(x, (1, 2), value=0.5),
    "padded by nothing": lambda x: functional.pad(x, (1, 0)),
    "mixed types": lambda x: torch.cat([x, x > 0], -1),
    "written to": _written,
    "halves": _halves,
    "expanded": lambda x: x[..., None].expand(*x.shape, 3).sin().flatten(-2),
    "passed on": lambda x: x,
    "like": lambda x: x.new_full(x.shape, 2.5) + torch.full_like(x, -1) + torch.ones_like(x),
    "where": lambda x: torch.where(x > 0, x, 0.5),
    "cumulated": lambda x: torch.stack(list(itertools.accumulate(x.unbind(-1))), -1),
}
OF_TWO = {
    **{
        name: getattr(torch, name)
        for name in _words(
            "add atan2 copysign div eq fmod ge gt hypot le logaddexp logical_and logical_or logical_xor lt "
            "maximum minimum mul ne pow remainder sub"
        )
    },
    "cross": lambda x, y: torch.linalg.cross(x[..., 1:], y[..., 1:]),
    "dot": lambda x, y: (x * y).sum(-1),
    "vecdot": lambda x, y: torch.linalg.vecdot(x, y),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.3),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "huber": lambda x, y: functional.smooth_l1_loss(x, y, reduction="none"),
    "clamped by the other": lambda x, y: x.clamp(y, y + 1),
    "matrices": lambda x, y: (x.unflatten(-1, (2, 2)) @ y.unflatten(-1, (2, 2))).flatten(-2),
    "only one used": lambda x, y: y[..., :2],
    "swapped": lambda x, y: torch.cat([y, x], -1),
}
CASES = {name: (function, sizes) for name, function, sizes in _functions_of_tasks()}
CASES |= {name: (function, (4,)) for name, function in OF_ONE.items()}
CASES |= {name: (function, (4, 4)) for name, function in OF_TWO.items()}
EXTREME = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-30, -1.0, 2.5)
"""Numbers that go together in every way."""


@functools.cache
def _text(case):
    name = f"f{list(CASES).index(case)}"
    function, sizes = CASES[case]
    return name, device_function(name, function, *sizes)


def _rows(sizes):
    rows = [2 * torch.randn(200, one, generator=torch.Generator().manual_seed(i)) for i, one in enumerate(sizes)]
    if sizes in ((4,), (4, 4)):
        pairs = torch.tensor(list(itertools.product(EXTREME, EXTREME)))
        for i, part in enumerate(rows):
            rows[i] = torch.cat([part, pairs[:, i % 2, None].expand(-1, 4), pairs.repeat(1, 2).roll(i, -1)])
    return rows


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Every case as a function of rows, from one translation unit."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    place = tmp_path_factory.mktemp("scalars")
    text = PRELUDE
    for case, (function, sizes) in CASES.items():
        name, code = _text(case)
        count = function(*(torch.zeros(size) for size in sizes)).numel()
        pointers = "".join(f"const float *x{i}, " for i in range(len(sizes)))
        rows = "".join(f"(const float (&)[{size}])x{i}[i * {size}], " for i, size in enumerate(sizes))
        text += f'{code}extern "C" void rows_{name}({pointers}float *y, int n) {{\n'
        text += f"  for (int i = 0; i < n; ++i) {name}({rows}(float (&)[{count}])y[i * {count}]);\n}}\n"
    (place / "scalars.cpp").write_text(text)
    subprocess.run([compiler, *FLAGS, "-shared", "-fPIC", "-o", "scalars.so", "scalars.cpp"], cwd=place, check=True)
    return ctypes.CDLL(str(place / "scalars.so"))


@pytest.mark.parametrize("case", CASES)
def test_translated_functions_compute_what_the_tensor_functions_do(case, library):
    function, sizes = CASES[case]
    rows = _rows(sizes)
    expected = function(*rows).float()
    found = torch.full_like(expected, 7.0).contiguous()
    pointers = [ctypes.c_void_p(part.data_ptr()) for part in [*rows, found]]
    getattr(library, f"rows_{_text(case)[0]}")(*pointers, ctypes.c_int(len(found)))
    assert_close(found, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", ["maximum", "minimum", "clamp", "clamp from", "clamp to", "relu"])
def test_not_a_number_stays_so(name):
    """Said of PyTorch, too, that the comparison above means what it says."""
    function, sizes = CASES[name]
    for place in range(len(sizes)):
        rows = [torch.full((4,), math.nan if i == place else 1.0) for i in range(len(sizes))]
        assert function(*rows).isnan().all()


def test_a_result_may_be_written_over_an_argument():
    """All arguments are read before anything is written."""
    text = device_function("f", lambda x: x.flip(-1), 3)
    reading = max(i for i, line in enumerate(text.splitlines()) if "= in0[" in line)
    writing = min(i for i, line in enumerate(text.splitlines()) if "out[" in line and "=" in line)
    assert reading < writing


def test_what_is_only_moved_writes_nothing_and_nothing_is_computed_twice():
    text = device_function("f", lambda x: torch.stack([x, x], -1).flatten().sin().sum(), 2)
    assert text.count("sinf") == 2


@pytest.mark.parametrize("value", [0.1, -0.36, -0.0, 1 / 3, 1e-45, 1e-38, 3e38, 16777217.0, 5.0])
def test_literals_are_exact(value):
    text = literal(value).strip("()")
    assert text.endswith("f")
    found, expected = torch.tensor(float(text[:-1])), torch.tensor(value)
    assert torch.equal(found, expected)
    assert torch.equal(found.signbit(), expected.signbit())


@pytest.mark.parametrize(
    ("value", "bits"), [(math.inf, "7f800000"), (-math.inf, "ff800000"), (1e39, "7f800000"), (math.nan, "7fc00000")]
)
def test_what_is_not_finite_is_written_by_its_bits(value, bits):
    assert literal(value) == f"__int_as_float(0x{bits})"


def _in_place(x):
    x[..., 0] = 1.0
    return 2 * x


class Grown:
    def __init__(self):
        self.steps = torch.zeros(())

    def __call__(self, x):
        self.steps += 1
        return x + self.steps


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x if x[0] > 0 else -x, "cannot be traced: .*data-dependent"),
        (lambda x: x * x[0].item(), "_local_scalar_dense"),
        (lambda x: x * float(x[0]), "_local_scalar_dense|cannot be traced"),
        (lambda x: x + torch.from_numpy(x.numpy()), "cannot be traced"),
        (lambda x: x + x.tolist()[0], "_local_scalar_dense|cannot be traced"),
        (lambda x: torch.linalg.svd(x.view(2, 2)).S, "_linalg_svd"),
        (lambda x: x.sort().values, "sort"),
        (lambda x: x.argmax(-1), "argmax"),
        # PyTorch says it in simpler operations, too, but then it is another number far out.
        (functional.gelu, "gelu"),
        (lambda x: x[x > 0], "places that are computed|cannot be traced"),
        (lambda x: x[x.isnan().long()], "places that are computed"),
        (lambda x: x + torch.rand(4), "draws at random"),
        (lambda x: x + torch.randn_like(x), "draws at random"),
        (lambda x: torch.bernoulli(x.sigmoid()), "draws at random"),
        (lambda x: functional.dropout(x), "draws at random"),
        (lambda x: torch.empty_like(x).normal_(), "draws at random"),
        (_in_place, "copy_.* changes in place"),
        (Grown(), "in place|cannot be traced"),
        (lambda x: x.double().sin(), "float64"),
        (lambda x: x * torch.ones(4, dtype=torch.float64), "float64"),
        (lambda x: x < torch.ones(4, dtype=torch.float64), "float64"),
        (lambda x: x * 1j, "complex64"),
        (lambda x: x.view(torch.int32), "no translation"),
        (lambda x: x.round(decimals=1), "round.decimals"),
        (lambda x: x.index_add(0, torch.tensor([0, 0]), x[:2]), "index_"),
        (lambda x: x.index_put((torch.tensor([0, 0]),), x[:2], accumulate=True), "index_put"),
        (lambda x: x.long() // 2, "integers"),
        (lambda x: (x, x), "one tensor"),
        (lambda x: x[..., 4], "cannot be traced: index 4 is out of bounds"),
        (lambda x: (torch.arange(LONGEST).view(-1, 1) * x).sin().sum(), f"more than {LONGEST} lines"),
        (lambda x: x[..., :0].sum(), "no numbers"),
    ],
)
def test_what_cannot_be_translated_is_named(function, why):
    with pytest.raises(Untranslatable, match=why):
        device_function("f", function, 4)


def test_functions_are_translated_where_planning_asks_for_them():
    """Within inference mode, for tensors made there."""
    with torch.inference_mode():
        weights = torch.tensor([1.0, 2.0])
        assert "2.0f" in device_function("f", lambda x: x * weights, 2)
    learnt = torch.nn.Linear(2, 1)
    assert device_function("f", learnt, 2).count("in0[0]") == 1


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs CUDA's compiler")
def test_all_of_it_is_cuda(tmp_path):
    """No GPU is needed to compile for one."""
    text = ""
    for case, (function, sizes) in CASES.items():
        name, code = _text(case)
        count = function(*(torch.zeros(size) for size in sizes)).numel()
        rows = "".join(f"(const float (&)[{size}])*x, " for size in sizes)
        text += f'{code}extern "C" __global__ void on_{name}(const float *x, float *y) {{\n'
        text += f"  {name}({rows}(float (&)[{count}])*y);\n}}\n"
    (tmp_path / "scalars.cu").write_text(text)
    command = ["nvcc", "-cubin", "-gencode", "arch=compute_90a,code=sm_90a", "-o", "out.cubin", "scalars.cu"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
