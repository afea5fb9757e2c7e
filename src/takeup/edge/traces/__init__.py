"""Sources of instances: random generators, files, and measured channels and arrivals."""

from takeup.edge.traces.channels import (
    CORK_5G,
    CQI_64QAM,
    ChannelColumns,
    ChannelLog,
    read_channel,
    with_channel,
    with_margin,
)
from takeup.edge.traces.files import load_instance, save_instance
from takeup.edge.traces.generators import SETTINGS, generate, poisson_times, read_times, with_arrivals

__all__ = [
    "CORK_5G",
    "CQI_64QAM",
    "SETTINGS",
    "ChannelColumns",
    "ChannelLog",
    "generate",
    "load_instance",
    "poisson_times",
    "read_channel",
    "read_times",
    "save_instance",
    "with_arrivals",
    "with_channel",
    "with_margin",
]
