"""A Spark session with the plug-in, and its counters."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from takeup.caching.engines.spark.counts import SparkCounts
from takeup.caching.engines.spark.plugin_jar import jar
from takeup.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PLUGIN = "io.takeup.spark.TakeupPlugin"
LISTS = ("spark.jars", "spark.plugins")  # settings that may already have values
POLICIES = ("lru", "lrc", "lerc", "mrd", "next", "dag")
_OPTION = re.compile(r"(?P<name>[a-z0-9]+)(?P<option>[+-].*)?")
Builder = TypeVar("Builder")


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
    values = {
        "spark.jars": str(jar()),
        "spark.plugins": PLUGIN,
        "spark.takeup.policy": _checked(policy),
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
) -> Builder:
    """The session builder with the plug-in added to it; jars and plug-ins it names already are kept."""
    _require_no_running_context()
    values = settings(policy, profile, counters_file, prefetch)
    _show_to_running_jvm(values["spark.jars"])
    options: dict[str, str] = getattr(builder, "_options", {})
    for name, value in values.items():
        given = f"{options.get(name, '')},{_given_to_jvm(name)}".split(",") if name in LISTS else []
        before = [part for part in dict.fromkeys(given) if part and part != value]
        builder.config(name, ",".join([*before, value]))  # type: ignore[attr-defined]
    return builder


def counters(session: SparkSession) -> SparkCounts:
    """What the plug-in of a running session has counted so far."""
    text = session._jvm.io.takeup.spark.TakeupPlugin.counters()  # type: ignore[union-attr]
    if text is None:
        raise BadInput("this session runs without the plug-in; make it with takeup.caching.engines.spark.configure")
    return SparkCounts.from_json(str(text))


def _checked(policy: str) -> str:
    found = _OPTION.fullmatch(policy)
    name = found["name"] if found else policy
    if name not in POLICIES:
        raise UnknownName("policy on engine 'spark'", name, POLICIES)
    if found and found["option"] not in (None, "+admission", "-admission"):
        raise BadInput(f"policy {policy!r} asks for {found['option'][1:]!r}; the only option is '+admission'")
    return policy


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
        words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
        if found := take_setting(words, name):
            os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(words)
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
