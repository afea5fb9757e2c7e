"""Stock Spark with another eviction policy: a Spark plug-in, and the Python functions to configure it.

    builder = configure(SparkSession.builder, policy="dag")
    session = builder.getOrCreate()
    ...
    print(counters(session).hit_share)

The plug-in itself runs in Spark's own processes and is written in Java (`native/spark` in the source tree); when
anything about it fails, Spark goes on with its own eviction and says so in one line of its log.
"""

from takeup.caching.engines.spark.event_log_profile import profile_of_events as profile_of_events
from takeup.caching.engines.spark.event_log_profile import write_profile as write_profile
from takeup.caching.engines.spark.plugin_jar import jar as jar
from takeup.caching.engines.spark.session import SparkCounts as SparkCounts
from takeup.caching.engines.spark.session import configure as configure
from takeup.caching.engines.spark.session import counters as counters
from takeup.caching.engines.spark.session import counts_report as counts_report
from takeup.caching.engines.spark.session import prometheus as prometheus
from takeup.caching.engines.spark.session import run_submit as run_submit
from takeup.caching.engines.spark.session import settings as settings
from takeup.caching.engines.spark.session import submit_command as submit_command
