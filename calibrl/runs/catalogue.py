"""What each experiment is, for tables and pages: its name, the question it asks, and how to read its numbers."""

from __future__ import annotations

from calibrl.runs.experiment import Description

CATALOGUE: dict[str, Description] = {}
