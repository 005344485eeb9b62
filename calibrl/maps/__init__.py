"""R: increasing maps of [0, 1], their inverses, and the functions that learn them."""

from calibrl.maps.auto import fit_auto
from calibrl.maps.base import Map, Ranks, map_from_dict
from calibrl.maps.fit import FitMap, fit_affine, fit_beta, fit_isotonic, fit_platt, fit_sigmoid, fit_smooth
from calibrl.maps.gaussian import draw_table, gaussian_law
from calibrl.maps.parametric import IDENTITY, Affine, Beta, Chain, Identity, Platt, Sigmoid
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
