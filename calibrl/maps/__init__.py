"""R: increasing maps of [0, 1], their inverses, and the functions that learn them."""

from calibrl.maps.base import Map, map_from_dict
from calibrl.maps.chain import Chain
from calibrl.maps.choose import fit_auto
from calibrl.maps.closed_form import IDENTITY, Affine, Beta, Identity, Platt, Sigmoid
from calibrl.maps.fit import FitMap, fit_affine, fit_beta, fit_isotonic, fit_platt, fit_sigmoid, fit_smooth
from calibrl.maps.gaussian import draw_table, gaussian_law
from calibrl.maps.ranks import Ranks
from calibrl.maps.spline import Spline

__all__ = [
    "IDENTITY",
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
    "fit_platt",
    "fit_sigmoid",
    "fit_smooth",
    "gaussian_law",
    "map_from_dict",
]
