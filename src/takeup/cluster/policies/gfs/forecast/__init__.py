"""Forecasts of the demand that must be served: distributions for the next hours and for the maximum over them.

Open `forecaster.py` first. To add a model: a file here, a line below, a test.

    model = make_forecaster("anchored", Scope(num_hours=4, levels=(0.5, 0.9)))
    model.observe(hour, [gpus of each organisation, running and pending])      once an hour
    model.forecast(capacity=3456.0).bound(hours=4, level=0.9)                  what HP work stays under for four hours
"""

from __future__ import annotations

from collections.abc import Callable

from takeup.cluster.policies.gfs.forecast.anchored import AnchoredForecaster
from takeup.cluster.policies.gfs.forecast.calendar import Calendar, WeekCalendar
from takeup.cluster.policies.gfs.forecast.distribution import DemandDistribution, Forecast, Scope
from takeup.cluster.policies.gfs.forecast.forecaster import Forecaster
from takeup.cluster.policies.gfs.forecast.history import HourlyMaxima
from takeup.cluster.policies.gfs.forecast.last_week_peak import LastWeekPeak
from takeup.cluster.policies.gfs.forecast.orglinear import Attributes, OrgLinear
from takeup.cluster.policies.gfs.forecast.orglinear_normalised import NormalisedOrgLinear
from takeup.cluster.policies.gfs.forecast.persistence import Persistence
from takeup.cluster.policies.gfs.forecast.pools import sum_over_pools
from takeup.errors import UnknownName

__all__ = [
    "DEFAULT_MODEL",
    "MODELS",
    "Calendar",
    "Forecast",
    "Forecaster",
    "HourlyMaxima",
    "Scope",
    "DemandDistribution",
    "WeekCalendar",
    "make_forecaster",
    "sum_over_pools",
]

DEFAULT_MODEL = "anchored"

MODELS: dict[str, Callable[[Scope | None, Calendar | None, Attributes], Forecaster]] = {
    "anchored": lambda scope, calendar, _: AnchoredForecaster(scope, calendar),
    "persistence": lambda scope, _, __: Persistence(scope),
    "last_week_peak": lambda scope, _, __: LastWeekPeak(scope),
    "orglinear": lambda scope, calendar, attributes: OrgLinear(attributes, scope, calendar),
    "orglinear_normalised": lambda scope, calendar, _: NormalisedOrgLinear(scope, calendar),
}


def make_forecaster(
    name: str = DEFAULT_MODEL,
    scope: Scope | None = None,
    calendar: Calendar | None = None,
    attributes: Attributes = (),
) -> Forecaster:
    """A fresh model of this name; only `orglinear` looks at the attributes of series."""
    if name not in MODELS:
        raise UnknownName("forecast model", name, MODELS)
    return MODELS[name](scope, calendar, attributes)
