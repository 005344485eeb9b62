"""Run as a program with TRITON_INTERPRET=1: the GPU's Triton kernels on a CPU, beside their references."""

import json
import sys

import torch

from calibrl.forecasters.nets import Nets, Shape
from calibrl.kernels.fused_nets import FusedNets, Sizes
from calibrl.kernels.layered import Layered, matched_draw
from calibrl.kernels.normal import read_table_reference
from calibrl.maps.gaussian import CELLS
from calibrl.planning.graph import fused_returns
from calibrl.planning.risk import MEAN, Risk
from calibrl.planning.rollout import Errors, World, imagined_returns


def nets_of(shape: Shape, agents: int) -> Nets:
    generators = [torch.Generator().manual_seed(seed) for seed in range(agents)]
    nets = Nets.fresh(shape, generators)
    for part in (*nets.biases, nets.input_mean, nets.max_logvar):
        part += 0.3 * torch.randn(part.shape, generator=generators[0])
    nets.input_std *= 1.7
    return nets


def layered(hidden: tuple[int, ...], own_rows: bool) -> float:
    shape = Shape(inputs=5, outputs=3, hidden=hidden, members=2)
    nets = nets_of(shape, agents=2)
    fused = FusedNets(nets, Layered(Sizes.of(nets), torch.device("cpu"), trunk=torch.float32))
    x = torch.randn(2, *((2,) if own_rows else ()), 130, 5, generator=torch.Generator().manual_seed(1))
    pairs = zip(fused.moments(x), nets.moments(x), strict=True)
    return max(float((got - want).abs().max() / want.abs().max()) for got, want in pairs)


def refreshed() -> float:
    nets = nets_of(Shape(inputs=5, outputs=3, hidden=(20, 20), members=2), agents=1)
    fused = FusedNets(nets, Layered(Sizes.of(nets), torch.device("cpu"), trunk=torch.float32))
    for part in nets.parameters():
        part.mul_(1.1)
    fused.refresh()
    x = torch.randn(1, 40, 5, generator=torch.Generator().manual_seed(2))
    return float((fused.moments(x)[0] - nets.moments(x)[0]).abs().max())


def matched_draw_reference(mean, variance, noise, lines, per_unit):
    """What `matched_draw` should say, in plain torch."""
    middle = mean.mean(1)
    spread = (variance + (mean - middle.unsqueeze(1)).square()).mean(1).sqrt()
    middle, spread = (part.repeat_interleave(noise.shape[1] // mean.shape[2], 1) for part in (middle, spread))
    if lines is None:
        return middle + spread * noise
    draw = torch.stack([read_table_reference(*pair, per_unit) for pair in zip(noise, lines, strict=True)])
    return middle + spread * draw


def drawn(repeat: int, tables: bool, device: str = "cpu") -> float:
    generator = torch.Generator().manual_seed(repeat)
    mean, variance = torch.randn(2, 3, 70, 4, generator=generator), torch.rand(2, 3, 70, 4, generator=generator)
    noise = torch.randn(2, 5, 70 * repeat, 4, generator=generator)[:, 2]
    lines = torch.randn(2, 4, 64, 2, generator=generator) if tables else None
    mean, variance, noise = mean.to(device), variance.to(device), noise.to(device)
    lines = None if lines is None else lines.to(device)
    got, want = (draw(mean, variance, noise, lines, 6.0) for draw in (matched_draw, matched_draw_reference))
    return float((got - want).abs().max())


def imagined(propagation: str, *, tables: bool, lasts: bool = False, risk: Risk = MEAN) -> float:
    """A whole rollout, beside `imagined_returns`; the world is not compiled here."""
    generator = torch.Generator().manual_seed(5)
    world = World(
        model_input=torch.sin,
        target=lambda before, after: after - before,
        next_observation=torch.add,
        reward=lambda before, action, after: after.square().sum(-1) - before[..., 0] * action[..., 0],
    )
    nets = nets_of(Shape(inputs=5, outputs=3, hidden=(20, 20), members=2), agents=2)
    fused = FusedNets(nets, Layered(Sizes.of(nets), torch.device("cpu"), trunk=torch.float32))
    observation, plans = torch.randn(2, 3, generator=generator), torch.randn(2, 7, 4, 2, generator=generator)
    noise = torch.randn(2, 4, 7 * 6, 3 + (propagation == "TS1"), generator=generator)
    lines = torch.randn(2, 3, CELLS, 2, generator=generator) if tables else None
    start, steps = torch.randn(2, 1, 1, 2, 3, generator=generator), torch.rand(2, 1, 4, 3, 3, generator=generator)
    low = -torch.rand(2, 1, 1, 3, generator=generator)
    errors = Errors(start, steps, low, 1 + low) if lasts else None
    given = {"particles": 6, "noise": noise, "tables": lines, "errors": errors, "risk": risk}
    got = fused_returns(fused, world, observation, plans, propagation=propagation, **given)
    want = imagined_returns(nets, world, observation, plans, propagation=propagation, **given)
    return float((got - want).abs().max() / want.abs().max())


if __name__ == "__main__":
    found = {
        "layered two": layered((20, 20), own_rows=False),
        "layered wide": layered((130, 130), own_rows=False),
        "layered own rows": layered((40, 40), own_rows=True),
        "refreshed": refreshed(),
        "drawn": drawn(1, tables=False),
        "drawn repeated": drawn(5, tables=False),
        "drawn from tables": drawn(1, tables=True),
        "drawn repeated from tables": drawn(5, tables=True),
    }
    for way in ("DS", "TS1", "TSinf"):
        found |= {f"imagined by {way}": imagined(way, tables=False)}
        found |= {f"imagined by {way} from tables": imagined(way, tables=True)}
        found |= {f"imagined by {way}, noise lasts": imagined(way, tables=True, lasts=True)}
    curious = Risk(cvar=0.5, optimism=1.0, exploration=2.0)
    found |= {"imagined by TSinf, curiously": imagined("TSinf", tables=True, risk=curious)}
    json.dump(found, sys.stdout)
