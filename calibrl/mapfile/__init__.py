"""Maps that outlive the program that fitted them: fitting by group, a plain JSON file, and its memory of rows."""

from calibrl.mapfile.fitting import FOLDS, calibrate, cross_validate, fit_named, methods_for, take
from calibrl.mapfile.grouped import Grouped
from calibrl.mapfile.saved import FittedMap, MapFile
from calibrl.mapfile.sketch import Sketch

__all__ = [
    "FOLDS",
    "FittedMap",
    "Grouped",
    "MapFile",
    "Sketch",
    "calibrate",
    "cross_validate",
    "fit_named",
    "methods_for",
    "take",
]
