"""Workloads over tables: the session runs each and gets a checksum that no policy may change."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.ml.recommendation import ALS
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


def aggregate(session: SparkSession, num_tables: int, num_rows: int, num_queries: int) -> float:
    """Cached tables, joined and aggregated two by two; adaptive execution submits every stage as a job of its own."""
    tables = [_table(session, number, num_rows).cache() for number in range(num_tables)]
    total = 0
    for query in range(num_queries):
        left, right = tables[query % num_tables], tables[(query * 3 + 1) % num_tables]
        sums = left.groupBy("key").agg(f.sum(f.col("value") % 1000).alias("left"))
        joined = sums.join(right.groupBy("key").agg(f.max(f.col("value") % 1000).alias("right")), "key")
        total += joined.agg(f.sum(f.col("left") + f.col("right"))).collect()[0][0]
    return float(total)


def _table(session: SparkSession, number: int, num_rows: int) -> DataFrame:
    """Values that no encoding makes small."""
    value = f.xxhash64("id", f.lit(number))
    return session.range(num_rows, numPartitions=8).select(
        (f.col("id") * 7919 % 1000).alias("key"), value.alias("value")
    )


def star(session: SparkSession, num_rows: int, num_queries: int) -> float:
    """Cached facts joined with small tables that every task gets as a broadcast; what is joined is cached too, and read
    again when all is there."""
    facts, kept, total = _table(session, 0, num_rows).cache(), list[DataFrame](), 0
    for query in range(num_queries):
        names = session.range(1000).select(f.col("id").alias("key"), (f.col("id") * (query + 7) % 13).alias("kind"))
        kept.append(facts.join(f.broadcast(names), "key").where(f.col("kind") != query % 13).cache())
        total += kept[-1].agg(f.sum(f.col("value") % 1000)).collect()[0][0]
    for joined in kept:
        most = joined.groupBy("kind").agg(f.max(f.col("value") % 1000).alias("most"))
        total += most.agg(f.sum("most")).collect()[0][0]
    return float(total)


def recommend(session: SparkSession, num_users: int, num_items: int, num_iterations: int) -> float:
    """Alternating least squares of Spark's own library, which caches its factors round by round, on disk too."""
    mark = f.abs(f.xxhash64("id"))
    user, item = f.col("id") % num_users, mark % num_items
    ratings = session.range(num_users * 12, numPartitions=8).select(
        user.cast("int").alias("user"), item.cast("int").alias("item"), (mark % 5 + 1).cast("float").alias("rating")
    )
    learner = ALS(rank=8, maxIter=num_iterations, numUserBlocks=8, numItemBlocks=8, seed=0)
    model = learner.fit(ratings.dropDuplicates(["user", "item"]).cache())
    squares = model.itemFactors.select(f.expr("aggregate(features, 0D, (sum, x) -> sum + x * x)").alias("square"))
    return round(float(squares.agg(f.sum("square")).collect()[0][0]), 3)


QUERIES: dict[str, Callable[..., float]] = {"sql": aggregate, "star": star, "als": recommend}
