"""Recalibrating class probabilities: temperature, Platt and isotonic scaling, binary and categorical.

Probabilities are (n,) for one event or (n, k) for k classes; outcomes are (n,) with 0/1 or the class
number. Every map gives probabilities back that sum to one.
"""

from calibrl.classes.fit import (
    CLASS_FITS,
    FitClassMap,
    check_classes,
    fit_auto_classes,
    fit_isotonic_classes,
    fit_platt_classes,
    fit_temperature,
)
from calibrl.classes.maps import (
    SMALLEST,
    ClassMap,
    IsotonicClasses,
    PlattClasses,
    Temperature,
    Unchanged,
    class_map_from_dict,
    recalibrate_classes,
)

__all__ = [
    "CLASS_FITS",
    "SMALLEST",
    "ClassMap",
    "FitClassMap",
    "IsotonicClasses",
    "PlattClasses",
    "Temperature",
    "Unchanged",
    "check_classes",
    "class_map_from_dict",
    "fit_auto_classes",
    "fit_isotonic_classes",
    "fit_platt_classes",
    "fit_temperature",
    "recalibrate_classes",
]
