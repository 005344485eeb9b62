"""Writing an experiment's figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from calibrl.files import replacing, said_if_not_written

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figures: Mapping[str, Figure], folder: Path, *, dpi: int = 130) -> list[Path]:
    """Write figures as PNG files by name, whole or not at all, and forget them."""
    import matplotlib.pyplot as plt

    files = []
    for name, figure in figures.items():
        files.append(folder / f"{name}.png")
        with said_if_not_written(files[-1]), replacing(files[-1]) as temporary:
            figure.savefig(temporary, dpi=dpi)
        plt.close(figure)
    return files
