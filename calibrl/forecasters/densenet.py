"""The paper's demand model: a Bayesian DenseNet, asked many times with dropout left on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from calibrl.arrays import device_named
from calibrl.data import Data, Remembered
from calibrl.errors import CalibrlError, check_count, check_within
from calibrl.forecasters.torch import fitting, new_seed, seeded

CHUNK = 1024
"""Rows asked at once: their activations stay in the processor's cache."""


class DenseNet(nn.Module):
    """Layers that each see the input and the outputs of all layers before them (Huang et al., 2017).

    inputs → `layers` × [linear to `width`, PReLU, dropout] → one linear read-out of everything.

    Parameters
    ----------
    inputs, outputs, layers, width : int
        Numbers in and out, hidden layers, and units in each.
    dropout : float
        The chance that a unit is left out, in (0, 1).
    seed : int
        Of the initial weights.
    """

    def __init__(
        self, inputs: int, outputs: int, *, layers: int = 5, width: int = 128, dropout: float = 0.5, seed: int = 0
    ) -> None:
        super().__init__()
        if layers < 1 or width < 1 or not 0 < dropout < 1:
            raise CalibrlError(f"{layers} layers of {width} with dropout {dropout:g}: use 1 or more, dropout in (0, 1)")
        self.inputs, self.width, self.dropout = inputs, width, dropout
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.hidden: Sequence[nn.Linear] = nn.ModuleList(  # type: ignore[assignment]
                [nn.Linear(inputs + i * width, width) for i in range(layers)]
            )
            self.bend = nn.ModuleList([nn.PReLU() for _ in range(layers)])
            self.readout = nn.Linear(inputs + layers * width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Answers (n, outputs) to x (n, inputs); with dropout in training mode."""
        seen = x
        for linear, bend in zip(self.hidden, self.bend, strict=True):
            new = nn.functional.dropout(bend(linear(seen)), self.dropout, self.training)
            seen = torch.cat([seen, new], -1)
        answer: Tensor = self.readout(seen)
        return answer

    def masks(self, passes: int, generator: torch.Generator) -> Tensor:
        """Which units each pass keeps: (passes, layers, width), at least one in every layer."""
        keep = torch.rand(passes, len(self.hidden), self.width, generator=generator) >= self.dropout
        keep[..., 0] |= ~keep.any(-1)
        return keep

    @torch.no_grad()
    def ask(self, x: Tensor, keep: Tensor) -> Tensor:
        """The answers of all passes: x (n, inputs), keep (passes, layers, width) → (passes, n, outputs).

        A pass is one network, the same for all rows: a draw from the posterior of functions, in which days and
        series stay correlated. Only the units it keeps are computed, a quarter of the work at dropout ½; what the
        layers make of the input itself is the same in every pass and computed once.
        """
        kept = [[row.nonzero()[:, 0].to(x.device) for row in one] for one in keep]
        thinned = [self._thinned(units) for units in kept]
        answers = x.new_empty(len(keep), len(x), self.readout.out_features)
        for start in range(0, len(x), CHUNK if x.device.type == "cpu" else len(x)):
            rows = x[start : start + CHUNK] if x.device.type == "cpu" else x
            # Units along the first dimension, so that those a pass keeps are whole stretches of memory.
            given = [torch.addmm(one.bias[:, None], one.weight[:, : self.inputs], rows.T) for one in self.hidden]
            read = torch.addmm(self.readout.bias[:, None], self.readout.weight[:, : self.inputs], rows.T)
            for answer, units, weights in zip(answers, kept, thinned, strict=True):
                answer[start : start + len(rows)] = self._one_pass(given, read, units, weights).T
        return answers

    def _thinned(self, kept: Sequence[Tensor]) -> list[Tensor]:
        """The weights between the units a pass keeps, with dropout's factor 1/(1 - p) in them."""
        columns = [self.inputs + j * self.width + units for j, units in enumerate(kept)]
        found = []
        for i, layer in enumerate([*self.hidden, self.readout]):
            rows = layer.weight[kept[i]] if i < len(kept) else layer.weight
            before = torch.cat([kept[0][:0], *columns[:i]])
            found.append(rows[:, before] / (1 - self.dropout))
        return found

    def _one_pass(self, given: list[Tensor], read: Tensor, kept: list[Tensor], weights: list[Tensor]) -> Tensor:
        seen = read.new_empty(sum(map(len, kept)), read.shape[1])
        done = 0
        for i, units in enumerate(kept):
            new = given[i][units]
            if i:
                new = torch.addmm(new, weights[i], seen[:done])
            seen[done : done + len(units)] = self.bend[i](new)
            done += len(units)
        return torch.addmm(read, weights[-1], seen)


SMALLEST_SD = 1e-4
"""In parts of a series' level: a forecast without any width would make every outcome impossible."""


class Passes(Normal):
    """The Gaussian with the mean and variance of many passes, which remembers the passes for joint draws.

    Parameters
    ----------
    passes : Tensor
        (m, *batch), m ≥ 2: what each pass expects.
    noise : Tensor, optional
        (*batch), the learnt standard deviation of an outcome around a pass; without, the spread is what the passes
        disagree about and nothing else, as in the paper.
    """

    def __init__(self, passes: Tensor, noise: Tensor | None = None) -> None:
        if len(passes) < 2:
            raise CalibrlError(f"{len(passes)} passes cannot show a spread; use 2 or more")
        self.passes, self.noise = passes, noise
        variance = passes.var(0)
        if noise is not None:
            variance = variance + noise.square()
        super().__init__(passes.mean(0), variance.sqrt().clamp(min=SMALLEST_SD), validate_args=False)

    def times(self, factor: Tensor) -> Passes:
        """The forecast of factor · Y. factor: broadcasts to the batch."""
        noise = None if self.noise is None else self.noise * factor
        return Passes(self.passes * factor, noise)

    def __getitem__(self, rows: Any) -> Passes:
        """The forecasts of some rows of the batch."""
        return Passes(self.passes[:, rows], None if self.noise is None else self.noise[rows])

    def joint(self, count: int, generator: torch.Generator) -> Tensor:
        """Draws (count, *batch) that keep what belongs together: each is one pass, with noise where there is some."""
        device, many = self.passes.device, len(self.passes)
        whole = torch.arange(count) % many if count % many == 0 else torch.randint(many, (count,), generator=generator)
        drawn = self.passes[whole.to(device)]
        if self.noise is None:
            return drawn
        epsilon = torch.randn(drawn.shape, generator=generator, dtype=drawn.dtype).to(device)
        return torch.addcmul(drawn, self.noise, epsilon)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Normal:
        """The same Gaussian, repeated to `batch_shape`; what was joint in its passes is not kept."""
        return Normal(self.loc, self.scale, validate_args=False).expand(batch_shape)


@dataclass(frozen=True)
class DropoutTraining:
    """How a network learns: Adam at a falling learning rate, stopped early when held-out rows stop improving.

    Slices of held-out rows are spread over time, and the best and the worst of three or more do not count: one odd
    month must not decide.

    Parameters
    ----------
    steps, min_steps : int
        The most batches that are learnt, and those before which training never stops.
    batch_size : int
        Rows in a batch.
    lr, weight_decay : float
        Adam's; the learning rate falls to a fiftieth.
    evaluate_every, patience : int
        Steps between evaluations on the held-out rows, and after how many without a better one training stops.
    validation_slices, validation_fraction : int, float
        How many stretches of rows are held out, and how much of the data they are together, in (0, 1).
    gap : int
        Rows left out on either side of a slice: a day's rows times the days a target looks ahead.
    """

    steps: int = 2000
    batch_size: int = 256
    lr: float = 2e-3
    min_steps: int = 800
    evaluate_every: int = 100
    patience: int = 6
    validation_slices: int = 5
    validation_fraction: float = 0.12
    gap: int = 0
    weight_decay: float = 1e-5

    def __post_init__(self) -> None:
        counts = (self.steps, self.batch_size, self.evaluate_every, self.validation_slices, self.patience)
        if min(*counts, self.lr) <= 0:
            raise CalibrlError(f"{self} has a number that is not positive; use 1 or more, and lr above 0")
        check_within("validation_fraction", self.validation_fraction, "(0, 1)", "use 0.12, say")

    def split(self, rows: int) -> tuple[Tensor, list[Tensor]]:
        """Indices of rows to learn from, and those of each slice, for rows in the order of time."""
        size = max(1, round(self.validation_fraction * rows / self.validation_slices))
        learn = torch.ones(rows, dtype=torch.bool)
        held = []
        for j in range(self.validation_slices):
            end = round((j + 1) * rows / self.validation_slices)
            start = max(0, end - size)
            held.append(torch.arange(start, end))
            learn[max(0, start - self.gap) : end + self.gap] = False
        if not bool(learn.any()):
            raise CalibrlError(
                f"{rows} rows leave none to learn from beside {self.validation_slices} slices; use fewer, or no gap"
            )
        return learn.nonzero()[:, 0], held


class BayesianDenseNet:
    """A DenseNet with dropout as a `Forecaster`: the next days' demand as the Gaussian of many passes.

    Rows have x (n, k) and y (n, d) in numbers around one, in the order of time. `update` learns all rows so far afresh.

    Parameters
    ----------
    passes : int
        How many times the network is asked, 2 or more.
    noise : bool
        Whether how much an outcome scatters around a pass is learnt as well; False is the paper's reading of dropout,
        the passes' mean and variance and nothing else.
    layers, width, dropout, training :
        As in `DenseNet`; and how it learns.
    seed : int
        Of weights, batches and dropout.
    device : str
        "cpu" or "cuda".
    """

    def __init__(
        self,
        *,
        passes: int = 300,
        noise: bool = False,
        layers: int = 5,
        width: int = 128,
        dropout: float = 0.5,
        training: DropoutTraining | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        check_count("passes", passes, "cannot show a spread", least=2)
        device = device_named(device, float64=True)
        self.passes, self.noise, self.device = passes, noise, device
        self.training = training or DropoutTraining()
        self._shape: dict[str, Any] = {"layers": layers, "width": width, "dropout": dropout}
        self._generator = torch.Generator().manual_seed(seed)
        self._remembered = Remembered()
        self.net: DenseNet | None = None

    def update(self, data: Data) -> None:
        """Learn all rows so far, from fresh weights."""
        rows = self._remembered.with_new(data)
        if not bool(rows.x.isfinite().all()):
            raise CalibrlError('x holds NaN or infinite numbers; use the recipe "paper" or "plus", which fill gaps')
        outputs = rows.y.shape[1] * (2 if self.noise else 1)
        seed = new_seed(self._generator)
        net = DenseNet(rows.x.shape[1], outputs, seed=seed, **self._shape).to(self.device)
        _start_at(net, rows.y, self.noise)
        with torch.enable_grad(), seeded(net, new_seed(self._generator)):
            self._train(net, fitting(rows, net))
        self._keep = net.masks(self.passes, self._generator)
        self.net = net.eval()
        self._remembered.keep(rows)

    def __call__(self, x: Tensor) -> Passes:
        """Forecasts for x (n, k), of batch shape (n, d). The same question always gets the same answer."""
        leads = self._remembered.outcomes().shape[1]
        assert self.net is not None
        answers = self.net.ask(x.to(self.net.readout.weight), self._keep)
        if not self.noise:
            return Passes(answers)
        # One noise for all passes: that of the mean variance around a pass.
        variance = torch.exp(_tame(answers[..., leads:])).mean(0)
        return Passes(answers[..., :leads].contiguous(), variance.sqrt())

    def _train(self, net: DenseNet, rows: Data) -> None:
        settings = self.training
        learn, held = settings.split(len(rows))
        slices = [rows[some.to(rows.y.device)] for some in held]
        learn = learn.to(rows.y.device)
        # What a forecast that knows nothing would lose: each slice is judged by how much less is lost.
        blank = [torch.nanmean((part.y - rows.y[learn].nanmean(0)).square()).clamp(min=1e-6) for part in slices]
        optimiser = torch.optim.Adam(net.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps, eta_min=settings.lr / 50)
        best, kept, waited = math.inf, None, 0
        for step in range(1, settings.steps + 1):
            some = learn[torch.randint(len(learn), (settings.batch_size,), generator=self._generator).to(learn.device)]
            loss = self._loss(net(rows.x[some]), rows.y[some])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            falling.step()
            if step % settings.evaluate_every and step < settings.steps:
                continue
            score = self._score(net, slices, blank)
            if not math.isfinite(score):
                raise CalibrlError(f"the loss became {score} after {step} steps; lower lr {settings.lr:g}")
            waited += 1
            if score < best or kept is None:
                best, waited = score, 0
                kept = {name: value.clone() for name, value in net.state_dict().items()}
            elif waited >= settings.patience and step >= settings.min_steps:
                break
        assert kept is not None
        net.load_state_dict(kept)

    def _score(self, net: DenseNet, slices: list[Data], blank: list[Tensor]) -> float:
        """The mean loss over slices, each beside what a blank forecast loses there, so that slices weigh alike."""
        net.eval()
        with torch.no_grad():
            lost = torch.stack([self._loss(net(part.x), part.y) for part in slices])
        net.train()
        unit = torch.stack(blank)
        beside = lost - unit.log() / 2 if self.noise else lost / unit
        return float((beside.sort().values[1:-1] if len(beside) > 2 else beside).mean())

    def _loss(self, answer: Tensor, y: Tensor) -> Tensor:
        """The mean loss over the outcomes that were seen: squared error, or a Gaussian's surprise."""
        seen = ~y.isnan()
        y = y.nan_to_num(0.0)
        if self.noise:
            mean, log_variance = answer.chunk(2, -1)
            log_variance = _tame(log_variance)
            each = 0.5 * (log_variance + (y - mean).square() * torch.exp(-log_variance))
        else:
            each = (answer - y).square()
        return torch.where(seen, each, 0.0).sum() / seen.sum().clamp(min=1)


def _tame(log_variance: Tensor) -> Tensor:
    return log_variance.clamp(-9.0, 3.0)


@torch.no_grad()
def _start_at(net: DenseNet, y: Tensor, noise: bool) -> None:
    """Begin as the forecast that knows nothing but the mean and variance of y."""
    mean = y.nanmean(0)
    bias = [mean]
    if noise:
        bias.append((y - mean).square().nanmean(0).clamp(min=1e-4).log())
    net.readout.bias.copy_(torch.cat(bias))
