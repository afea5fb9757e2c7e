"""The settings that bring the plug-in into a session, without starting one."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from takeup.caching.engines.spark import session
from takeup.caching.engines.spark.session import PLUGIN, configure, counters, settings
from takeup.caching.policies import DEPLOYABLE
from takeup.errors import BadInput, MissingEngine, UnknownName

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'takeup[spark]'")


class Builder:
    """As much of a session builder as `configure` touches."""

    def __init__(self, **options: str) -> None:
        self._options = {name.replace("_", "."): value for name, value in options.items()}

    def config(self, name: str, value: str) -> Builder:
        self._options[name] = value
        return self


@pytest.fixture(autouse=True)
def _jar_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "jar", lambda: Path("/jars/takeup-spark.jar"))
    monkeypatch.setattr(session, "_show_to_running_jvm", lambda path: None)


def test_the_builder_gets_jar_plug_in_and_policy() -> None:
    builder = configure(Builder(), policy="lerc+admission")

    assert builder._options == {
        "spark.jars": "/jars/takeup-spark.jar",
        "spark.plugins": PLUGIN,
        "spark.takeup.policy": "lerc+admission",
    }


def test_prefetch_is_a_setting_of_its_own() -> None:
    assert settings("dag", prefetch=True)["spark.takeup.prefetch"] == "true"
    assert "spark.takeup.prefetch" not in settings("dag")


def test_jars_and_plug_ins_of_the_user_are_kept() -> None:
    builder = configure(Builder(spark_jars="/my.jar", spark_plugins="my.Plugin"))

    assert builder._options["spark.jars"] == "/my.jar,/jars/takeup-spark.jar"
    assert builder._options["spark.plugins"] == f"my.Plugin,{PLUGIN}"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("spark.jars", "--jars /a.jar,/b.jar pyspark-shell"),
        ("spark.jars", "--conf spark.jars=/a.jar,/b.jar pyspark-shell"),
        ("spark.plugins", "--conf spark.plugins=/a.jar,/b.jar pyspark-shell"),
    ],
)
def test_what_the_environment_says_is_kept_too(name: str, arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)

    builder = configure(Builder())

    assert builder._options[name].startswith("/a.jar,/b.jar,")
    assert "/a.jar" not in os.environ["PYSPARK_SUBMIT_ARGS"]  # it would win over the builder


def test_what_the_environment_and_the_builder_say_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars /a.jar,/b.jar --name x pyspark-shell")
    builder = Builder()
    builder.config("spark.jars", "/b.jar,/c.jar")

    configure(builder)

    assert builder._options["spark.jars"] == "/b.jar,/c.jar,/a.jar,/jars/takeup-spark.jar"
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--name x pyspark-shell"


def test_configuring_twice_adds_nothing_twice() -> None:
    builder = configure(configure(Builder()), policy="lrc")

    assert builder._options["spark.jars"] == "/jars/takeup-spark.jar"
    assert builder._options["spark.plugins"] == PLUGIN
    assert builder._options["spark.takeup.policy"] == "lrc"


def test_files_are_handed_over_with_their_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    values = settings("dag", profile="app.profile", counters_file=Path("counters.json"))

    assert values["spark.takeup.profile"] == str(tmp_path / "app.profile")
    assert values["spark.takeup.counters"] == str(tmp_path / "counters.json")


@pytest.mark.parametrize("policy", [*DEPLOYABLE, "lrc+admission", "dag-admission"])
def test_every_policy_of_the_plug_in_is_accepted(policy: str) -> None:
    assert settings(policy)["spark.takeup.policy"] == policy


def test_an_unknown_policy_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'lerc'"):
        settings("lercc")


@pytest.mark.parametrize("policy", ["lrc+profile", "dag+", "lerc-grace"])
def test_an_unknown_option_of_a_policy_is_refused(policy: str) -> None:
    with pytest.raises(BadInput, match="the only option"):
        settings(policy)


def test_a_running_session_is_too_late_for_a_plug_in(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", object())

    with pytest.raises(BadInput, match="stop"):
        configure(Builder(), strict=True)


@pytest.mark.parametrize(
    "error", [MissingEngine("there is no jar"), OSError("disk full"), RuntimeError("the JVM died")]
)
def test_a_plug_in_that_cannot_be_installed_leaves_the_application_on_stock(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> Path:
        raise error

    monkeypatch.setattr(session, "jar", fails)

    builder = configure(Builder(spark_jars="/my.jar"))

    assert builder._options == {"spark.jars": "/my.jar"}
    assert [record.message for record in caplog.records] == [
        f"Spark keeps its own eviction, without the plug-in: {error}"
    ]


def test_a_late_failure_changes_neither_the_builder_nor_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> str:
        os.environ["PYSPARK_SUBMIT_ARGS"] = "changed"
        raise RuntimeError(name)

    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars /a.jar pyspark-shell")
    monkeypatch.setattr(session, "_given_to_jvm", fails)

    assert configure(Builder())._options == {}
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--jars /a.jar pyspark-shell"


def test_a_connect_client_is_told_to_configure_its_server(caplog: pytest.LogCaptureFixture) -> None:
    builder = configure(Builder(spark_remote="sc://host"))

    assert builder._options == {"spark.remote": "sc://host"}
    assert "start the Connect server with" in caplog.text


def _session(answer: str | None) -> SimpleNamespace:
    plugin = SimpleNamespace(TakeupPlugin=SimpleNamespace(counters=lambda: answer))
    return SimpleNamespace(_jvm=SimpleNamespace(io=SimpleNamespace(takeup=SimpleNamespace(spark=plugin))))


@pytest.mark.parametrize("running", [_session(None), SimpleNamespace()])
def test_a_session_without_the_plug_in_has_counts_that_are_not_active(running: SimpleNamespace) -> None:
    counts = counters(running)  # type: ignore[arg-type]

    assert (counts.is_active, counts.hits) == (False, 0)


def test_the_counters_of_a_session_are_those_of_its_driver() -> None:
    counts = counters(_session('{"policy": "mrd", "is_active": true, "puts": 7}'))  # type: ignore[arg-type]

    assert (counts.policy, counts.puts) == ("mrd", 7)
