"""Forecasts are torch distributions; these are the few that torch lacks."""

from calibrl.distributions.empirical import Empirical as Empirical
from calibrl.distributions.empirical import Quantiles as Quantiles
from calibrl.distributions.families import Mixture as Mixture
from calibrl.distributions.families import Rounded as Rounded
from calibrl.distributions.kinds import is_discrete as is_discrete
from calibrl.distributions.pit import draw as draw
from calibrl.distributions.pit import outcomes_for as outcomes_for
from calibrl.distributions.pit import pit as pit
from calibrl.distributions.pit import pit_z as pit_z
from calibrl.distributions.recalibrated import Recalibrated as Recalibrated
from calibrl.distributions.zscores import from_zscore as from_zscore
from calibrl.distributions.zscores import zscore as zscore
from calibrl.distributions.zscores import zscore_left as zscore_left
