"""Run as a program: compile the Hopper kernel for sizes given on the command line and report what it takes."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from calibrl.kernels import hopper
from calibrl.kernels.fused_nets import Sizes

inputs, outputs, *hidden = map(int, sys.argv[1:])
sizes = Sizes(agents=1, members=5, inputs=inputs, outputs=outputs, width=hidden[0], hidden=len(hidden))
packed = hopper.OnHopper(sizes, torch.device("cpu"))
kernel = hopper.moments
kinds = {"w_in": "*fp16", "w_hidden": "*bf16", "w_mean": "*fp16", "w_log": "*fp16", "n": "i32"}
settings = packed.settings(own_rows=False)
names = kernel.arg_names
signature = {name: "constexpr" if name in settings else kinds.get(name, "*fp32") for name in names}
constants = {(names.index(name),): value for name, value in settings.items()}
aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
source = GluonASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": hopper.WARPS})
assembly = built.asm["ptx"]
reader = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
with tempfile.TemporaryDirectory() as folder:
    binary = Path(folder) / "kernel.cubin"
    binary.write_bytes(built.asm["cubin"])
    command = [str(reader), "--dump-resource-usage", str(binary)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
# Registers that do not fit are spilled to a stack; a kernel of ours has no other use for one.
report = {name.lower(): int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK")}
report |= {"shared": built.metadata.shared, "products": assembly.count("wgmma.mma_async")}
print(json.dumps(report))
