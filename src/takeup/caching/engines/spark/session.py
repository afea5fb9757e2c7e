"""A Spark session or `spark-submit` command with the plug-in, and the counters of the plug-in."""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from takeup.caching.engines.spark.plugin_jar import jar
from takeup.core.report import Column, Report, Table
from takeup.errors import BadInput, MissingEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# What the plug-in counted: as an object, as a report, and as text for Prometheus --------------------------------------


@dataclass(frozen=True, slots=True)
class SparkCounts:
    """The counters of one application, summed over its executors.

    `accesses` are block reads of successful tasks, of blocks that had been made before; a hit found the block in some
    executor's memory; an effective hit is one of a task that missed nothing. `recomputed_blocks` were made again or
    read back from disk, `prefetches` read back before a task read them. `inactive_bytes` are in memory without a known
    reader. `stock_hits` is what Spark's own rule, replayed on ids in each executor, would have found; `saved_ns` and
    `saved_read_bytes` are task time and reads from disk saved compared with it, and negative where the policy lost.
    `gave_way` counts how often an executor had lost more than 1 %, so that Spark's own eviction took over for a while.
    """

    policy: str
    is_active: bool
    installed: int = 0
    accesses: int = 0
    hits: int = 0
    effective_hits: int = 0
    puts: int = 0
    recomputed_blocks: int = 0
    evictions: int = 0
    evictions_with_references: int = 0
    refused: int = 0
    prefetches: int = 0
    stock_hits: int = 0
    saved_ns: int = 0
    saved_read_bytes: int = 0
    gave_way: int = 0
    broadcasts: int = 0
    inactive_bytes: int = 0
    choices: int = 0
    choice_ns: int = 0
    failures: int = 0
    driver_failures: int = 0
    driver_groups: int = 0
    groups: int = 0
    jobs_foretold: int = 0
    jobs_not_foretold: int = 0
    tasks: int = 0
    task_cpu_s: float = 0.0
    process_cpu_ns: int = 0
    listener_s: float = 0.0

    @property
    def hit_share(self) -> float:
        return self.hits / max(1, self.accesses)

    @property
    def effective_hit_share(self) -> float:
        return self.effective_hits / max(1, self.accesses)

    @classmethod
    def from_json(cls, text: str) -> SparkCounts:
        """From what the plug-in wrote."""
        try:
            values: Mapping[str, Any] = json.loads(text)
            return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})
        except (TypeError, ValueError, KeyError, RecursionError) as error:
            raise BadInput(f"these are no counters of the Spark plug-in ({error}); give the file it wrote") from error


_TEXTS = {"policy", "is_active"}
_GAUGES = {"installed", "inactive_bytes", "driver_groups", "groups", "saved_ns", "saved_read_bytes"}


def prometheus(counts: SparkCounts) -> str:
    """The counters in Prometheus's text format."""
    lines = []
    for field in fields(counts):
        if field.name not in _TEXTS:
            is_gauge = field.name in _GAUGES
            name = f"takeup_caching_spark_{field.name}{'' if is_gauge else '_total'}"
            lines.append(f"# TYPE {name} {'gauge' if is_gauge else 'counter'}")
            lines.append(f'{name}{{policy="{counts.policy}"}} {getattr(counts, field.name)}')
    return "\n".join(lines) + "\n"


def counts_report(counts: SparkCounts, title: str) -> Report:
    """One row: what the policy did in this application."""
    names = ("policy", "hits", "effective", "made", "again", "evicted", "in use", "refused", "broadcast")
    columns = (*map(Column, names), Column("inactive", "MB", digits=1))
    columns += (Column("task CPU", "s", digits=2), Column("saved", "s", digits=2), Column("not read", "MB", digits=1))
    row = (
        counts.policy,
        counts.hit_share,
        counts.effective_hit_share,
        counts.puts,
        counts.recomputed_blocks,
        counts.evictions,
        counts.evictions_with_references,
        counts.refused,
        counts.broadcasts,
        counts.inactive_bytes / 1e6,
        counts.task_cpu_s,
        counts.saved_ns / 1e9,
        counts.saved_read_bytes / 1e6,
    )
    note = (
        "hits and effective hits: per block access; again: blocks made again; in use: evicted with a known reader; "
        "saved, not read: task time and reads from disk, compared with Spark's own rule replayed on ids"
    )
    scenario = {"engine": "spark", "policy": counts.policy}
    return Report(title, "caching", scenario, 0, (Table("Spark's memory", columns, (row,), note),))


# A Spark session with the plug-in, and its counters -------------------------------------------------------------------

PLUGIN = "io.takeup.spark.TakeupPlugin"
SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
LISTS = ("spark.jars", "spark.plugins")  # settings that may already have values
Builder = TypeVar("Builder")
logger = logging.getLogger("takeup.spark")


def settings(
    policy: str = "dag",
    profile: Path | str | None = None,
    counters_file: Path | str | None = None,
    prefetch: bool = False,
) -> dict[str, str]:
    """What to add to a Spark configuration.

    `profile`: a file in which the application's graph is kept from run to run; made by the first run. `counters_file`:
    where the counters go at the end, as JSON. `prefetch`: read blocks back from disk before their tasks begin, into
    free memory; for jobs whose tasks wait for something else than the CPU.
    """
    from takeup.caching.policies import find_deployable  # needs numpy, which the build of a wheel does without

    values = {
        "spark.jars": str(jar()),
        "spark.plugins": PLUGIN,
        "spark.takeup.policy": find_deployable(policy, "Spark").name,
    }
    if prefetch:
        values["spark.takeup.prefetch"] = "true"
    if profile is not None:
        values["spark.takeup.profile"] = str(Path(profile).absolute())
    if counters_file is not None:
        values["spark.takeup.counters"] = str(Path(counters_file).absolute())
    return values


def configure(
    builder: Builder,
    policy: str = "dag",
    profile: Path | str | None = None,
    counters_file: Path | str | None = None,
    prefetch: bool = False,
    *,
    strict: bool = False,
) -> Builder:
    """The session builder with the plug-in added to it; jars and plug-ins it names already are kept.

    The application comes first: whatever goes wrong here is one warning in the log `takeup.spark`, and the builder is
    returned as it was, for a session with Spark's own eviction. With `strict` it is raised instead.
    """
    arguments = os.environ.get(SUBMIT_ARGUMENTS)
    try:
        options = _options(builder, settings(policy, profile, counters_file, prefetch))
    except Exception as error:
        if arguments is not None:
            os.environ[SUBMIT_ARGUMENTS] = arguments
        if strict:
            raise
        logger.warning("Spark keeps its own eviction, without the plug-in: %s", error)
        return builder
    for name, value in options.items():
        builder.config(name, value)  # type: ignore[attr-defined]
    return builder


def _options(builder: object, values: Mapping[str, str]) -> dict[str, str]:
    """The values to set on this builder, joined with what it and the environment say already."""
    given: dict[str, str] = getattr(builder, "_options", {})
    if "SPARK_REMOTE" in os.environ or "spark.remote" in given:
        raise BadInput(
            "a Spark Connect client cannot load plug-ins; start the Connect server with the values of "
            "takeup.caching.engines.spark.settings()"
        )
    _require_no_running_context()
    _show_to_running_jvm(values["spark.jars"])
    options = dict(values)
    for name in LISTS:
        parts = f"{given.get(name, '')},{_given_to_jvm(name)}".split(",")
        before = [part for part in dict.fromkeys(parts) if part and part != values[name]]
        options[name] = ",".join([*before, values[name]])
    return options


def counters(session: SparkSession) -> SparkCounts:
    """What the plug-in of a running session has counted so far; without the plug-in, counts that are not active."""
    try:
        text = session._jvm.io.takeup.spark.TakeupPlugin.counters()  # type: ignore[union-attr]
    except Exception as error:  # no such class in the JVM, or a Spark Connect session, which has no JVM here
        logger.info("this session has no counters of the plug-in: %s", error)
        text = None
    return SparkCounts("spark", is_active=False) if text is None else SparkCounts.from_json(str(text))


def _require_no_running_context() -> None:
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        raise BadInput("a Spark session is running, and plug-ins load only at its start; call stop() on it first")


def _given_to_jvm(name: str) -> str:
    """What `spark-submit`, or the variable PYSPARK_SUBMIT_ARGS in its place, says for a setting.

    It is removed from the variable: there it would override the builder's value, which has the plug-in added.
    """
    from pyspark import SparkConf, SparkContext

    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        words = shlex.split(os.environ.get(SUBMIT_ARGUMENTS, ""))
        if found := take_setting(words, name):
            os.environ[SUBMIT_ARGUMENTS] = shlex.join(words)
        return ",".join(found)
    SparkContext._ensure_initialized()
    return SparkConf().get(name) or ""


def take_setting(words: list[str], name: str) -> list[str]:
    """Remove a setting from the arguments of a command and return its values."""
    found: list[str] = []
    for option, prefix in (("--conf", f"{name}="), ("-c", f"{name}="), ("--jars", "")):
        if option == "--jars" and name != "spark.jars":
            continue
        for index in range(len(words) - 2, -1, -1):
            if words[index] == option and words[index + 1].startswith(prefix):
                found.insert(0, words[index + 1].removeprefix(prefix))
                del words[index : index + 2]
    return found


def _show_to_running_jvm(path: str) -> None:
    """Add the jar to the class path of a running JVM, which otherwise knows only the jars it was started with."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is not None:
        loader = gateway.jvm.java.lang.Thread.currentThread().getContextClassLoader()
        loader.addURL(gateway.jvm.java.io.File(path).toURI().toURL())


# Any Spark application under a policy, without touching its code: `spark-submit` with additional settings -------------


def run_submit(policy: str, argv: Sequence[str], profile: Path | str | None = None) -> tuple[int, SparkCounts | None]:
    """Run `spark-submit ...` under the policy: returns its exit code, and the counters if it wrote them."""
    with tempfile.TemporaryDirectory() as folder:
        counters_file = Path(folder) / "counters.json"
        command = submit_command(policy, argv, profile, counters_file)
        try:
            code = subprocess.run(command, check=False).returncode
        except OSError as error:
            raise MissingEngine(
                f"cannot run {command[0]!r}: {error.strerror}; give the path of spark-submit"
            ) from error
        text = counters_file.read_text("utf-8") if counters_file.exists() else None
    return code, None if text is None else SparkCounts.from_json(text)


def submit_command(
    policy: str, argv: Sequence[str], profile: Path | str | None = None, counters_file: Path | str | None = None
) -> list[str]:
    """The command with the plug-in's settings behind its first word; jars and plug-ins it names already are kept."""
    if not argv:
        raise BadInput("there is no command to run; give one behind '--', such as '-- spark-submit job.py'")
    values = settings(policy, profile, counters_file)
    words = list(argv[1:])
    for name in LISTS:
        values[name] = ",".join([*take_setting(words, name), values[name]])
    added = [word for name, value in values.items() for word in ("--conf", f"{name}={value}")]
    return [argv[0], *added, *words]
