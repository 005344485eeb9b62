import itertools
import re
import shutil
import subprocess

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrl.kernels.fused_nets import SHARED_MEMORY, FusedNets, Sizes
from calibrl.kernels.resident import CompilerError, Layout, Resident, compiled, source
from tests.kernels.interpreted import nets_of
from tests.kernels.test_fused_nets import SHAPES, agree, check_packing, exact, on_gpu

NARROW = [name for name, shape in SHAPES.items() if max(shape.hidden) <= 206]


@given(st.integers(1, 62), st.integers(1, 32), st.integers(1, 206), st.integers(2, 12))
def test_weights_fit_into_shared_memory_and_the_ring_holds_a_layer_and_a_chunk_of_the_next(i, o, width, hidden):
    layout = Layout.of(Sizes(1, 5, i, o, width, hidden))
    if layout is None:
        assert hidden * width > 8 * 150, "only deep and wide networks find no room"
        return
    assert layout.shared <= SHARED_MEMORY
    streamed = layout.ks - layout.kept
    assert streamed % 2 == 0
    # Both groups of warps hold all chunks of a layer at once: with fewer places they would wait for ever.
    assert layout.slots == (streamed // 2 + 1 if streamed else 0)
    assert width + 2 <= layout.width < width + 2 + 16


def test_the_published_networks_stay_on_the_chip_as_far_as_they_fit():
    pusher, cheetah = (Sizes.of(nets_of(SHAPES[name], agents=1)) for name in ("pusher", "halfcheetah"))
    assert Layout.of(pusher).kept == Layout.of(pusher).ks == 13
    assert Layout.of(cheetah).kept == 7
    assert not Resident.fits(Sizes.of(nets_of(SHAPES["cartpole"], agents=1)))


@pytest.mark.parametrize("name", NARROW)
def test_packing_holds_every_number_of_the_networks(name):
    """Walk the packed numbers as the tensor cores do, in float64: the networks come out."""
    check_packing(Resident, SHAPES[name], _walked)


def _walked(packed: Resident, x):
    sizes, layout = packed.sizes, packed.layout
    parts = {name: part.double() for name, part in packed.packed.items()}
    given = torch.ones(sizes.agents, x.shape[1], 16 * layout.ks_in, dtype=torch.float64)
    centre, spread = (parts[name][:, None, : sizes.inputs] for name in ("centre", "spread"))
    given[:, :, : sizes.inputs] = (x.double() - centre) * spread

    def bent(u):
        return u + u * torch.tanh(u)

    h = bent(given[:, None] @ _whole(parts["w_in"], layout.width))
    for layer in range(layout.layers):
        h = bent(h @ _whole(parts["w_hidden"][:, :, layer], layout.width))
    out = h @ _whole(parts["w_out"], 2 * layout.out8)
    mean, log = out[..., : sizes.outputs], out[..., layout.out8 : layout.out8 + sizes.outputs]
    low, high = (parts[name][:, None, None, : sizes.outputs] for name in ("floor", "ceiling"))
    return mean, low + 1 / (high + (-log).exp())


def _whole(slices, units):
    """(g, e, slices, units · 16) → (g, e, inputs, units), number by number: where a descriptor of ours points."""
    inputs = 16 * slices.shape[2]
    k, n = torch.arange(inputs)[:, None], torch.arange(units)[None, :]
    offset = 128 * (n // 8) + 64 * (k % 16 // 8) + 8 * (n % 8) + k % 8
    return slices[:, :, k // 16, offset]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs CUDA's compiler")
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("halfcheetah", {}),
        ("halfcheetah", {"shared": True}),
        ("pusher", {}),
        ("pusher", {"shared": True, "ordered": True}),
        ("two layers", {"shared": True}),
    ],
)
def test_the_kernel_compiles_without_spilling_or_waiting(name, how, tmp_path):
    """No GPU is needed to compile for one."""
    sizes = Sizes.of(nets_of(SHAPES[name], agents=1))
    text = tmp_path / "moments.cu"
    text.write_text(source(sizes, Layout.of(sizes), **how))
    command = ["nvcc", "-cubin", "-gencode", "arch=compute_90a,code=sm_90a", "-Xptxas", "-v", "-o", "out.cubin", text]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    assert re.search(r"\b0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", said)
    assert "serialized" not in said, "products that wait for one another"


def test_a_pytorch_without_cuda_has_no_compiler_and_says_so(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(CompilerError, match="without CUDA"):
        compiled("", "sm_90a")


def test_a_missing_compiler_library_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "99.1")
    with pytest.raises(CompilerError, match=r"libnvrtc\.so\.99"):
        compiled("", "sm_90a")


@on_gpu
@pytest.mark.parametrize(("name", "agents"), list(itertools.product(NARROW, [1, 3])))
def test_moments_agree_with_the_reference(name, agents):
    nets = nets_of(SHAPES[name], agents).to("cuda")
    fused = FusedNets(nets, Resident(Sizes.of(nets), torch.device("cuda")))
    for rows in (1, 63, 129, 1000, 30_000):
        x = torch.randn(agents, rows, nets.shape.inputs, device="cuda")
        agree(fused.moments(x), exact(nets, x))


@on_gpu
def test_a_mistake_in_a_kernel_is_reported_by_the_compiler():
    with pytest.raises(CompilerError, match="expected"):
        compiled("__device__ int x = ;", "sm_90a")
