"""A policy as plain JSON: numbers, lists and names that any program can read.

What is kept of a regression are its sums Σ x xᵀ and Σ x r; the inverse follows from them. `to_dict` therefore
inverts the live policy afresh as well, and from there on the two take the same decisions, bit for bit.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from calibrl.bandits.options import Options
from calibrl.bandits.plan import Plan
from calibrl.bandits.policy import Policy
from calibrl.errors import CalibrlError
from calibrl.files import replacing
from calibrl.kernels import ridge_evidence

FORMAT = "calibrl bandit 1"


def to_dict(policy: Policy) -> dict[str, Any]:
    """All of a policy as plain values."""
    policy.settle()
    state = policy.state
    return {
        "format": FORMAT,
        "options": asdict(policy.options),
        "arms": list(policy.arms),
        "removed": sorted(policy.removed, key=str),
        "generator": policy.generator.bit_generator.state,
        "rows": state.rows.tolist(),
        "gram": state.gram.tolist(),
        "moment": state.moment.tolist(),
        "pulls": state.pulls.tolist(),
        "error": state.error.tolist(),
        "shift": state.shift.tolist(),
        "record": [policy.record(arm).tolist() for arm in policy.arms],
    }


def from_dict(saved: dict[str, Any]) -> Policy:
    """The policy that `to_dict` described."""
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        found = saved.get("format") if isinstance(saved, dict) else type(saved).__name__
        raise CalibrlError(f"a saved policy of format {found!r} cannot be read; expected {FORMAT!r}")
    try:
        options = dict(saved["options"])
        policy = Policy(saved["arms"], Options(**{**options, "plan": Plan(**options["plan"])}))
        policy.removed.update(saved["removed"])
        policy.generator.bit_generator.state = saved["generator"]
        state = policy.state
        for name in ("rows", "gram", "moment", "pulls", "error", "shift"):
            part = getattr(state, name)
            part[...] = np.asarray(saved[name], part.dtype).reshape(part.shape)
        for arm, record in enumerate(saved["record"]):
            seen = int(state.pulls[arm])
            if len(record) != min(seen, options["window"]):
                raise CalibrlError(f"arm {saved['arms'][arm]!r} has {seen} rewards but a record of {len(record)}")
            for age, z in enumerate(record):
                ridge_evidence.remember(z, state.ordered[arm], state.arrived[arm], seen - len(record) + age)
    except (KeyError, TypeError, ValueError) as problem:
        raise CalibrlError(f"the saved policy is damaged ({problem}); restore the file from a backup") from None
    policy.settle()
    return policy


def save(policy: Policy, path: str | Path) -> None:
    """Write a policy to a file, whole or not at all, and see it onto the disk."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        json.dump(to_dict(policy), file)
        file.flush()
        os.fsync(file.fileno())


def load(path: str | Path) -> Policy:
    """The policy in a file."""
    file = Path(path)
    if not file.is_file():
        raise CalibrlError(f"{file} does not exist; give the path of a policy written by save")
    try:
        return from_dict(json.loads(file.read_text(encoding="utf-8")))
    except (UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise CalibrlError(f"{file} is not JSON ({problem}); give the path of a policy written by save") from None
