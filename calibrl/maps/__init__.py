"""R: increasing maps of [0, 1], their inverses, and the functions that learn them."""

from calibrl.errors import CalibrlError
from calibrl.maps.base import Map as Map
from calibrl.maps.base import Ranks as Ranks
from calibrl.maps.base import load as load
from calibrl.maps.base import map_from_dict as map_from_dict
from calibrl.maps.fit import FitMap as FitMap
from calibrl.maps.fit import fit_affine as fit_affine
from calibrl.maps.fit import fit_auto as fit_auto
from calibrl.maps.fit import fit_beta as fit_beta
from calibrl.maps.fit import fit_isotonic as fit_isotonic
from calibrl.maps.fit import fit_platt as fit_platt
from calibrl.maps.fit import fit_sigmoid as fit_sigmoid
from calibrl.maps.fit import fit_smooth as fit_smooth
from calibrl.maps.gaussian import draw_table as draw_table
from calibrl.maps.gaussian import gaussian_law as gaussian_law
from calibrl.maps.parametric import IDENTITY as IDENTITY
from calibrl.maps.parametric import Affine as Affine
from calibrl.maps.parametric import Beta as Beta
from calibrl.maps.parametric import Chain as Chain
from calibrl.maps.parametric import Identity as Identity
from calibrl.maps.parametric import Platt as Platt
from calibrl.maps.parametric import Sigmoid as Sigmoid
from calibrl.maps.spline import Spline as Spline

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
