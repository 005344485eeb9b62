"""R: increasing maps of [0, 1], their inverses, and the functions that learn them."""

from calibrl.errors import CalibrlError
from calibrl.maps.base import Map, Ranks, load, map_from_dict
from calibrl.maps.fit import FitMap, fit_affine, fit_auto, fit_beta, fit_isotonic, fit_platt, fit_sigmoid, fit_smooth
from calibrl.maps.gaussian import draw_table, gaussian_law
from calibrl.maps.parametric import IDENTITY, Affine, Beta, Chain, Identity, Platt, Sigmoid
from calibrl.maps.spline import Spline

MAPS: dict[str, FitMap] = {
    "auto": fit_auto,
    "smooth": fit_smooth,
    "affine": fit_affine,
    "platt": fit_platt,
    "beta": fit_beta,
    "isotonic": fit_isotonic,
    "sigmoid": fit_sigmoid,
}
"""Every fit of a map by the name that commands and settings call it; sigmoid is the paper's released one."""


def fit_named(name: str) -> FitMap:
    """The function that fits the map of that name, or an error that lists the known ones.

    Parameters
    ----------
    name : str
        One of `MAPS`.

    Returns
    -------
    FitMap
        `fit(pit, weight=…)` or `fit(z=…, weight=…)` → `Map`.
    """
    if name not in MAPS:
        raise CalibrlError(f"map {name!r} is unknown; use one of {', '.join(MAPS)}")
    return MAPS[name]


__all__ = [
    "IDENTITY",
    "MAPS",
    "Affine",
    "Beta",
    "Chain",
    "FitMap",
    "Identity",
    "Map",
    "Platt",
    "Ranks",
    "Sigmoid",
    "Spline",
    "draw_table",
    "fit_affine",
    "fit_auto",
    "fit_beta",
    "fit_isotonic",
    "fit_named",
    "fit_platt",
    "fit_sigmoid",
    "fit_smooth",
    "gaussian_law",
    "load",
    "map_from_dict",
]
