"""`spark-submit` with the plug-in's settings added, run with a stand-in for spark-submit."""

from __future__ import annotations

from pathlib import Path

import pytest

from takeup.caching.engines.spark import session
from takeup.caching.engines.spark.session import PLUGIN, run_submit, submit_command
from takeup.errors import BadInput, MissingEngine

JAR = "/jars/takeup-spark.jar"
STAND_IN = """#!/bin/sh
for word in "$@"; do
    case "$word" in spark.takeup.counters=*) counters="${word#*=}" ;; esac
done
case "$*" in *good.py*) echo '{"policy": "dag", "is_active": true, "hits": 5}' > "$counters" ;; *) exit 3 ;; esac
"""


@pytest.fixture(autouse=True)
def _jar_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "jar", lambda: Path(JAR))


@pytest.fixture
def spark_submit(tmp_path: Path) -> str:
    program = tmp_path / "spark-submit"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    return str(program)


def test_the_settings_stand_before_the_words_of_the_command() -> None:
    command = submit_command("dag", ["spark-submit", "--master", "local", "job.py", "--conf", "mine"])

    assert command[0] == "spark-submit"
    assert command[1:7] == [
        *("--conf", f"spark.jars={JAR}"),
        *("--conf", f"spark.plugins={PLUGIN}"),
        *("--conf", "spark.takeup.policy=dag"),
    ]
    assert command[7:] == ["--master", "local", "job.py", "--conf", "mine"]


@pytest.mark.parametrize(
    "words", [["--jars", "/a.jar,/b.jar"], ["--conf", "spark.jars=/a.jar,/b.jar"], ["-c", "spark.jars=/a.jar,/b.jar"]]
)
def test_jars_of_the_command_are_kept(words: list[str]) -> None:
    command = submit_command("lrc", ["spark-submit", *words, "job.py"])

    assert f"spark.jars=/a.jar,/b.jar,{JAR}" in command
    assert command[-1] == "job.py"
    assert words[1] not in command


def test_plug_ins_of_the_command_are_kept_and_other_settings_stay_in_place() -> None:
    words = ["--conf", "spark.plugins=my.Plugin", "--conf", "spark.ui.enabled=false", "job.py"]

    command = submit_command("lrc", ["spark-submit", *words])

    assert f"spark.plugins=my.Plugin,{PLUGIN}" in command
    assert command[-3:] == ["--conf", "spark.ui.enabled=false", "job.py"]


def test_a_profile_is_handed_on(tmp_path: Path) -> None:
    command = submit_command("dag", ["spark-submit", "job.py"], profile=tmp_path / "p.json")

    assert f"spark.takeup.profile={tmp_path / 'p.json'}" in command


def test_nothing_to_run_is_a_mistake() -> None:
    with pytest.raises(BadInput, match="behind '--'"):
        submit_command("dag", [])


def test_a_run_gives_its_exit_code_and_its_counters(spark_submit: str) -> None:
    code, counts = run_submit("dag", [spark_submit, "good.py"])

    assert code == 0
    assert counts is not None
    assert counts.hits == 5


def test_a_run_that_fails_early_has_no_counters(spark_submit: str) -> None:
    assert run_submit("dag", [spark_submit, "bad.py"]) == (3, None)


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingEngine, match="spark-submit"):
        run_submit("dag", [str(tmp_path / "spark-submit"), "job.py"])
