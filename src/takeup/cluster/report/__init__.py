"""Replays of cluster as tables and charts: schedulers side by side, hours of a fleet, money, promises, forecasts."""

from takeup.cluster.report.benefit import Benefit, GpuPrices, benefit_of, benefit_series, benefit_table, days_table
from takeup.cluster.report.forecasts import ForecastRun, forecast_series, forecast_table, next_hours_table
from takeup.cluster.report.offers import OfferRequest, menu_table, nodes_table, offers_table
from takeup.cluster.report.outcomes import (
    allocation_series,
    classes_table,
    eviction_bars,
    eviction_series,
    pools_table,
    quota_series,
    schedulers_table,
    usage_bars,
    wait_bars,
)

__all__ = [
    "Benefit",
    "ForecastRun",
    "GpuPrices",
    "OfferRequest",
    "allocation_series",
    "benefit_of",
    "benefit_series",
    "benefit_table",
    "classes_table",
    "days_table",
    "eviction_bars",
    "eviction_series",
    "forecast_series",
    "forecast_table",
    "menu_table",
    "next_hours_table",
    "nodes_table",
    "offers_table",
    "pools_table",
    "quota_series",
    "schedulers_table",
    "usage_bars",
    "wait_bars",
]
