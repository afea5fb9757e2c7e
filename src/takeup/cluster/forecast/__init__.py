"""Forecasts of the demand that must be served: distributions for the next hours and for the maximum over them.

Open `forecaster.py` first. To add a model: a file here, a line below, a test.

    model = make_forecaster("anchored", Scope(num_hours=4, levels=(0.5, 0.9)))
    model.observe(hour, [gpus of each organisation, running and pending])      once an hour
    model.forecast(capacity=3456.0).bound(hours=4, level=0.9)                  what HP work stays under for four hours
"""

from collections.abc import Callable

from takeup.cluster.forecast.anchored import AnchoredForecaster
from takeup.cluster.forecast.baselines import LastWeekPeak, Persistence
from takeup.cluster.forecast.features import Calendar
from takeup.cluster.forecast.forecaster import Forecaster, Scope
from takeup.cluster.forecast.orglinear import Attributes, NormalisedOrgLinear, OrgLinear
from takeup.core.compiled import drop_stale_code
from takeup.errors import UnknownName

drop_stale_code(__file__)


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
