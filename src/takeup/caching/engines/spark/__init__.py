"""Stock Spark with another eviction policy: a Spark plug-in, and the Python functions to configure it.

    builder = configure(SparkSession.builder, policy="dag")
    session = builder.getOrCreate()
    ...
    print(counters(session).hit_share)

The plug-in itself runs in Spark's own processes and is written in Java (`native/spark` in the source tree); when
anything about it fails, Spark goes on with its own eviction and says so in one line of its log.
"""

from takeup.caching.engines.spark.event_log_profile import profile_of_events, write_profile
from takeup.caching.engines.spark.plugin_jar import build_jar, jar
from takeup.caching.engines.spark.session import (
    SparkCounts,
    configure,
    counters,
    counts_report,
    prometheus,
    run_submit,
    settings,
    submit_command,
)

__all__ = [
    "SparkCounts",
    "build_jar",
    "configure",
    "counters",
    "counts_report",
    "jar",
    "profile_of_events",
    "prometheus",
    "run_submit",
    "settings",
    "submit_command",
    "write_profile",
]
