"""Everyday jobs over cached tables, each run once: `python -m benchmarks.caching.spark_workloads.everyday ORDER`.

ORDER is JSON: the jobs, the policy (empty for stock Spark), the folder for event logs, and the folder with the logs of
an earlier run, if profiles come from them. Every job has a session of its own in one Java machine, with Spark's
defaults but for the memory. Each prints one line of JSON: a checksum that no policy may change, CPU seconds and counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark import StorageLevel
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.clustering import KMeans
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from takeup.caching.engines.spark import configure, counters
from takeup.caching.engines.spark.event_log_profile import write_profile
from takeup.caching.traces.spark_events import find_log, read_lines

ONLY, DISK = StorageLevel.MEMORY_ONLY, StorageLevel.MEMORY_AND_DISK_DESER
Job = Callable[[SparkSession], float]


def table(session: SparkSession, seed: int, num_rows: int, num_partitions: int = 16) -> DataFrame:
    """Keys and values that no encoding makes small."""
    value = f.xxhash64("id", f.lit(seed))
    return session.range(num_rows, numPartitions=num_partitions).select(
        "id", (f.col("id") * 7919 % 997).alias("key"), value.alias("value"), (value / float(2**63)).alias("share")
    )


def costly(column: str, times: int) -> Column:
    """A column that takes `times` digests to compute."""
    found = f.col(column).cast("string")
    for _ in range(times):
        found = f.sha2(found, 256)
    return found


def answer(frame: DataFrame, value: str = "value") -> float:
    return float(frame.agg(f.sum(f.col(value) % 1000)).collect()[0][0] or 0)


def scan(session: SparkSession) -> float:
    """Passes over one table that does not fit."""
    rows = table(session, 1, 2_000_000).withColumn("mark", costly("value", 2)).persist(ONLY)
    return sum(answer(rows.where(f.col("key") % 5 != number)) for number in range(6))


def notebook(session: SparkSession) -> float:
    """Tables that are cached as the analyst gets to them, with queries over some of them again and again."""
    total, tables = 0.0, list[DataFrame]()
    for number, query in enumerate((0, 0, 1, 0, 2, 1, 3, 0, 3, 2, 0, 4, 4, 1, 0, 3)):
        while len(tables) <= query:
            seed = len(tables)
            tables.append(table(session, seed, 600_000).withColumn("mark", costly("value", 1 + seed % 3)).persist(ONLY))
        total += answer(tables[query].where(f.col("key") > number))
    return total


def mixed_levels(session: SparkSession) -> float:
    """A cheap table in memory only, a costly one that disks keep too, and a costly one in memory only."""
    cheap = table(session, 1, 1_500_000).persist(ONLY)
    kept = table(session, 2, 500_000).withColumn("mark", costly("value", 6)).persist(DISK)
    dear = table(session, 3, 500_000).withColumn("mark", costly("value", 8)).persist(ONLY)
    total = 0.0
    for _ in range(4):
        total += answer(kept) + answer(cheap) + answer(dear)
    return total


def chain(session: SparkSession) -> float:
    """Each table is made from the one before and all are read afterwards, the last most often."""
    cleaned = table(session, 1, 700_000).withColumn("mark", costly("value", 3)).persist(ONLY)
    enriched = cleaned.withColumn("more", costly("mark", 3)).persist(ONLY)
    report = enriched.where("key % 2 = 0").withColumn("last", costly("more", 3)).persist(ONLY)
    return sum(answer(each) for each in (report, report, enriched, report, cleaned, report, enriched, report))


def sliding_days(session: SparkSession) -> float:
    """The last four days are read every day; older ones are unpersisted."""
    days, total = list[DataFrame](), 0.0
    for day in range(10):
        days.append(table(session, day, 300_000, 8).withColumn("mark", costly("value", 3)).persist(ONLY))
        total += sum(answer(each.where(f.col("key") > day)) for each in days[-4:])
        if len(days) >= 4:
            days[-4].unpersist()
    return total


def batches(session: SparkSession) -> float:
    """Small batches that are joined with a reference table, read three times and dropped."""
    reference = table(session, 1, 1_200_000).withColumn("mark", costly("value", 4)).persist(ONLY)
    total = answer(reference)
    for number in range(8):
        batch = table(session, 10 + number, 300_000, 8).withColumn("mark", costly("value", 2)).persist(ONLY)
        joined = batch.groupBy("key").count().join(reference.groupBy("key").agg(f.max("share").alias("most")), "key")
        total += answer(batch) + answer(joined, "count") + answer(batch.where("key > 500"))
        batch.unpersist()
    return total


def abandoned(session: SparkSession) -> float:
    """Every step caches its result, reads it in the next step and never unpersists it; one table is read throughout."""
    base = table(session, 1, 700_000).withColumn("mark", costly("value", 5)).persist(ONLY)
    step, total = base.select("key", "value"), answer(base)
    for number in range(8):
        step = step.withColumn("value", f.xxhash64("value", f.lit(number))).persist(ONLY)
        total += answer(step) + answer(base.where(f.col("key") > number))
    return total


def reused_joins(session: SparkSession) -> float:
    """Facts and dimensions are cached, and so are two joins that several reports read."""
    facts = table(session, 1, 900_000).withColumn("mark", costly("value", 2)).persist(DISK)
    sizes = table(session, 2, 997, 4).select("key", f.col("value").alias("size")).persist(DISK)
    joined = facts.join(sizes, "key").withColumn("both", costly("size", 2)).persist(DISK)
    sums = joined.groupBy("key").agg(f.sum(f.col("value") % 1000).alias("value")).persist(DISK)
    total = 0.0
    for number in range(5):
        total += answer(joined.where(f.col("key") > number)) + answer(sums) + answer(facts.where(f.col("key") < number))
    return total


def windows(session: SparkSession) -> float:
    """Rolling aggregates over time ranges of one cached table; only some partitions are read often."""
    rows = table(session, 1, 1_600_000, 32).withColumn("mark", costly("value", 3)).persist(ONLY)
    total = answer(rows)
    for day in range(6):
        total += answer(rows.groupBy((f.col("id") / 40_000).cast("int")).agg(f.sum("value").alias("value")))
        total += answer(rows.where(f.col("id").between(day * 200_000, (day + 3) * 200_000)))
    return total


def clusters(session: SparkSession) -> float:
    """K-means of Spark's library for three numbers of clusters, over vectors that were costly to prepare."""
    marks = [
        (f.conv(f.substring(costly("value", 4), 1 + 4 * place, 4), 16, 10) / 65536).alias(f"m{place}")
        for place in range(6)
    ]
    vectors = VectorAssembler(inputCols=[f"m{place}" for place in range(6)], outputCol="features")
    points = vectors.transform(
        table(session, 1, 150_000).select(*[mark.cast("double").alias(f"m{place}") for place, mark in enumerate(marks)])
    )
    points = points.select("features").persist(ONLY)
    return round(sum(float(KMeans(k=k, seed=1, maxIter=4).fit(points).summary.trainingCost) for k in (2, 3, 4)), 3)


def orders(session: SparkSession) -> float:
    """Two tables and their join, cached as `cache()` does it, and reports over each of them in turn."""
    made = table(session, 1, 400_000).withColumn("mark", costly("value", 3)).cache()
    items = (
        table(session, 2, 900_000).withColumn("order", f.col("id") % 400_000).select("order", "value", "key").cache()
    )
    joined = made.drop("value").join(items.drop("key"), made["id"] == items["order"]).cache()
    total = 0.0
    for number in range(4):
        total += answer(joined.where(f.col("key") % 4 == number)) + answer(made.where(f.col("key") > number))
        total += answer(items.groupBy("order").agg(f.sum(f.col("value") % 100).alias("value")))
    return total


def regression(session: SparkSession) -> float:
    """Features, a split into two parts, models of two strengths and what they are worth."""
    marks = [(f.conv(f.substring(costly("value", 4), 1 + 4 * i, 4), 16, 10) / 65536).alias(f"m{i}") for i in range(8)]
    rows = table(session, 1, 160_000).select("key", *marks)
    features = VectorAssembler(inputCols=[f"m{i}" for i in range(8)], outputCol="features").transform(rows)
    points = features.select("features", (f.col("m0") + f.col("m1") > 1).cast("double").alias("label")).cache()
    train, test = (part.cache() for part in points.randomSplit([0.8, 0.2], seed=1))
    total = 0.0
    for strength in (0.01, 0.1):
        model = LogisticRegression(maxIter=5, regParam=strength).fit(train)
        total += float(model.transform(test).where("prediction = label").count()) + model.transform(train).count()
    return total + points.count()


def exploration(session: SparkSession) -> float:
    """One table after the other is described and joined to the first; all are cached as `cache()` does it."""
    base = table(session, 0, 500_000).withColumn("mark", costly("value", 3)).cache()
    total = float(base.count())
    for seed in range(1, 6):
        other = table(session, seed, 500_000).withColumn("mark", costly("value", 2)).cache()
        total += float(other.count()) + float(other.agg(f.countDistinct("key")).collect()[0][0])
        total += answer(other.where("key < 100")) + answer(base.where(f.col("key") > seed))
        total += float(other.join(base, "id").where("id % 3 = 0").count())
    return total


def state(session: SparkSession) -> float:
    """Micro batches that are merged into a state; the one before is dropped after the new one is counted."""
    kept = table(session, 0, 500_000).select(f.col("id").alias("user"), "value").persist(ONLY)
    history = table(session, 99, 600_000).withColumn("mark", costly("value", 3)).persist(ONLY)
    total = answer(kept) + answer(history)
    for number in range(1, 7):
        batch = table(session, number, 150_000, 4).select((f.col("id") * 7 % 600_000).alias("user"), "value").cache()
        total += answer(batch)
        merged = kept.union(batch).groupBy("user").agg(f.max("value").alias("value")).persist(ONLY)
        total += answer(merged) + answer(history.where(f.col("key") == number))
        kept.unpersist()
        batch.unpersist()
        kept = merged
    return total


def components(session: SparkSession) -> float:
    """Connected components: labels travel along edges, step after step, and no step is unpersisted."""
    rows = session.range(400_000, numPartitions=16)
    source, target = f.xxhash64("id", f.lit(1)) % 60_000, f.xxhash64("id", f.lit(2)) % 60_000
    edges = rows.select(f.abs(source).alias("node"), f.abs(target).alias("other"), costly("id", 3).alias("mark"))
    edges = edges.persist(ONLY)
    labels = edges.select("node").distinct().withColumn("label", f.col("node")).persist(ONLY)
    total = float(labels.count())
    for _ in range(5):
        sent = edges.join(labels, "node").select(f.col("other").alias("node"), "label")
        labels = labels.union(sent).groupBy("node").agg(f.min("label").alias("label")).persist(ONLY)
        total += float(labels.agg(f.sum("label")).collect()[0][0])
    return total


def skewed(session: SparkSession) -> float:
    """Most rows have few keys; the partitions by key and their sums are cached and read with a second table."""
    key = f.when(f.col("id") % 10 < 4, f.col("id") % 5).otherwise(f.col("key"))
    rows = table(session, 1, 900_000).withColumn("key", key).withColumn("mark", costly("value", 2))
    by_key = rows.repartition(16, "key").persist(ONLY)
    other = table(session, 2, 500_000).withColumn("mark", costly("value", 4)).persist(ONLY)
    total = 0.0
    for number in range(5):
        sums = by_key.groupBy("key").agg(f.sum(f.col("value") % 100).alias("value"), f.count("mark")).persist(ONLY)
        total += answer(sums) + answer(other.where(f.col("key") > number))
        total += answer(by_key.where(f.col("key") == number))
        sums.unpersist()
    return total


def python_pages(session: SparkSession) -> float:
    """Page ranks in Python: links are read in every step, ranks are cached and never unpersisted."""
    context = session.sparkContext
    links = context.parallelize(range(60_000), 8).map(lambda page: (page % 20_000, (page * 7919 + 13) % 20_000))
    grouped = links.distinct().groupByKey(8).mapValues(list).cache()
    text = context.parallelize(range(40_000), 8).map(lambda page: (page, f"{page * 7919:040d}" * 20)).cache()
    ranks = grouped.mapValues(lambda _: 1.0)
    total = float(text.count())
    for _ in range(4):
        sent = grouped.join(ranks, 8).flatMap(
            lambda entry: [(to, entry[1][1] / len(entry[1][0])) for to in entry[1][0]]
        )
        ranks = sent.reduceByKey(lambda one, other: one + other, 8).mapValues(lambda rank: 0.15 + 0.85 * rank).cache()
        total += round(ranks.values().sum(), 3) + text.filter(lambda entry: entry[0] % 7 == 0).count()
    return round(total, 2)


JOBS: dict[str, tuple[Job, int]] = {  # memory for blocks in MB
    "scan": (scan, 100),
    "notebook": (notebook, 110),
    "mixed levels": (mixed_levels, 90),
    "chain": (chain, 110),
    "sliding days": (sliding_days, 70),
    "batches": (batches, 80),
    "abandoned": (abandoned, 60),
    "reused joins": (reused_joins, 100),
    "windows": (windows, 120),
    "clusters": (clusters, 10),
    "orders": (orders, 70),
    "regression": (regression, 12),
    "exploration": (exploration, 110),
    "state": (state, 40),
    "components": (components, 20),
    "skewed": (skewed, 60),
    "python pages": (python_pages, 20),
}


def session_of(name: str, order: dict[str, Any]) -> SparkSession:
    """Spark's defaults, but for the share of the heap that makes the memory small."""
    logs = Path(order["logs"]) / name.replace(" ", "-")
    logs.mkdir(parents=True, exist_ok=True)
    settings = {
        "spark.memory.fraction": str(order.get("room", 1.0) * JOBS[name][1] / 724),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.logBlockUpdates.enabled": "true",
        "spark.eventLog.dir": logs.as_uri(),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
    }
    builder = SparkSession.Builder().master("local[2]").appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    if order["policy"]:
        builder = configure(builder, order["policy"], profile_of(name, order), strict=True)
    return builder.getOrCreate()


def profile_of(name: str, order: dict[str, Any]) -> Path | None:
    """From the event log of an earlier run, if that is asked for."""
    if not order.get("earlier"):
        return None
    log = next((Path(order["earlier"]) / name.replace(" ", "-")).iterdir())
    path = Path(order["logs"]) / f"{name}.profile.json"
    write_profile(path, (line.event for line in read_lines(find_log(log), allow_truncated=False)))
    return path


def run(name: str, order: dict[str, Any]) -> dict[str, Any]:
    """One job in a new session."""
    session = session_of(name, order)
    session.sparkContext.setLogLevel("ERROR")
    checksum = JOBS[name][0](session)
    counts = asdict(counters(session)) if order["policy"] else {}
    session.stop()
    return {"job": name, "checksum": checksum, "counts": counts}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    for job in given["jobs"] or JOBS:
        print(json.dumps(run(job, given)), flush=True)
