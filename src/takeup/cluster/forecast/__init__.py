"""Forecasts of the demand that must be served: distributions for the next hours and for the maximum over them.

Open `forecaster.py` first. To add a model: a file here, a line below, a test.

    model = make_forecaster("anchored", Scope(num_hours=4, levels=(0.5, 0.9)))
    model.observe(hour, [gpus of each organisation, running and pending])      once an hour
    model.forecast(capacity=3456.0).bound(hours=4, level=0.9)                  what HP work stays under for four hours
"""

from collections.abc import Callable

from takeup.cluster.forecast.anchored import AnchoredForecaster
from takeup.cluster.forecast.baselines import LastWeekPeak, Persistence
from takeup.cluster.forecast.features import WeekCalendar
from takeup.cluster.forecast.forecaster import Forecaster, Scope
from takeup.core.compiled import drop_stale_code
from takeup.errors import UnknownName

drop_stale_code(__file__)


DEFAULT_MODEL = "anchored"

MODELS: dict[str, Callable[[Scope | None, WeekCalendar | None], Forecaster]] = {
    "anchored": AnchoredForecaster,
    "persistence": lambda scope, _: Persistence(scope),
    "last_week_peak": lambda scope, _: LastWeekPeak(scope),
}


def make_forecaster(
    name: str = DEFAULT_MODEL, scope: Scope | None = None, calendar: WeekCalendar | None = None
) -> Forecaster:
    """A fresh model of this name."""
    if name not in MODELS:
        raise UnknownName("forecast model", name, MODELS)
    return MODELS[name](scope, calendar)
