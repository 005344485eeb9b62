"""Where chance comes from: every purpose of every agent has a generator of its own.

An agent's luck depends on its seed alone, not on who else is in the fleet; arms of one seed have the same luck.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch


def number(seed: int, purpose: str, index: int = 0) -> int:
    """A 31-bit seed for one purpose, different for each index (of a trial, say)."""
    words = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), index]).generate_state(1)
    return int(words[0]) & 0x7FFFFFFF


def episode_seed(seed: int, episode: int) -> int:
    """The seed of an agent's episode, counted from 0."""
    return int(np.random.SeedSequence([seed, episode]).generate_state(1)[0])


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one purpose of one agent."""
    return torch.Generator(device).manual_seed(number(seed, purpose))
