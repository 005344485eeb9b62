"""An ensemble's answers from one GPU kernel: the choice of the kernel.

What correct means is `calibrl.forecasters.nets.Nets.moments`, in plain PyTorch. Here the same numbers come from
`kernels.resident` (narrow networks) or `kernels.hopper` on Hopper GPUs, from `kernels.layered` on other GPUs that
Triton serves; everything else is the reference itself. Networks are packed after every training, into memory that
stays where it is, so that a captured CUDA graph sees them.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from calibrl.errors import CalibrlError
from calibrl.kernels import nvrtc
from calibrl.kernels.packing import Kernel, Networks, Sizes
from calibrl.kernels.resident import Resident
from calibrl.kernels.tiled import OnHopper


class FusedNets:
    """Networks whose moments come from one fused kernel; `refresh` after every training."""

    def __init__(self, nets: Networks, kernel: Kernel) -> None:
        self.nets, self.kernel = nets, kernel
        self.refresh()

    @property
    def members(self) -> int:
        """How many networks an agent has: e."""
        return self.nets.members

    def refresh(self) -> None:
        """Pack the networks as they are now."""
        with torch.no_grad():
            self.kernel.pack(self.nets)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (g, e, n, d) by every network, for x (g, n, in) or (g, e, n, in), float32."""
        g, e, d = len(x), self.members, self.nets.max_logvar.shape[-1]
        mean = torch.empty(g, e, x.shape[-2], d, device=x.device)
        variance = torch.empty_like(mean)
        self.kernel.run(x.contiguous(), mean, variance)
        return mean, variance


def fuse(nets: Networks) -> FusedNets | None:
    """The networks on the fastest kernel that fits; None, said once, where only the reference does."""
    try:
        return FusedNets(nets, _kernel_for(nets))
    except Unsupported as reason:
        warnings.warn(f"planning without a fused kernel: {reason}", stacklevel=2)
        return None


class Unsupported(Exception):
    """Why no fused kernel fits."""


def _kernel_for(nets: Networks) -> Kernel:
    device = nets.max_logvar.device
    if device.type != "cuda":
        raise Unsupported(f"the networks are on {device.type}")
    if not nets.probabilistic:
        raise Unsupported("networks without variances")
    try:
        sizes = Sizes.of(nets)
    except CalibrlError as error:
        raise Unsupported(str(error)) from None
    if sizes.hidden < 2:
        raise Unsupported("networks of one hidden layer")
    if sizes.input_columns > 128 or sizes.output_columns > 128:
        raise Unsupported(f"{sizes.inputs} inputs or {sizes.outputs} outputs; up to 126 and 128 fit")
    hopper = torch.cuda.get_device_capability(device) == (9, 0)
    if hopper and Resident.fits(sizes):
        try:
            return Resident(sizes, device)
        except nvrtc.CompilerError as error:
            warnings.warn(f"planning with the slower of two kernels: {error}", stacklevel=4)
    try:
        if hopper and OnHopper.fits(sizes):
            return OnHopper(sizes, device)
        from calibrl.kernels.layered import Layered

        return Layered(sizes, device)
    except ImportError as error:
        raise Unsupported(f"Triton cannot be imported ({error})") from None
