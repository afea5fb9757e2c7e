"""The files operators deploy parse, the chart renders to what the manifests say, and every metric in them exists."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from takeup.caching.engines.dask.plugins import prometheus as dask_page
from takeup.caching.engines.dask.spill_guide import DaskCounts
from takeup.caching.engines.spark.session import SparkCounts
from takeup.caching.engines.spark.session import prometheus as spark_page
from takeup.core.pages import MIN_TOKEN_CHARS, TOKEN_VARIABLE
from takeup.serving.server.metrics import COUNTS, GAUGES, PREFIX, TURNS

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm"
BOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
UNITS = sorted(DEPLOY.glob("**/*.service"))
HELM = Path(sys.executable).parent / "helm"
PROMTOOL = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "takeup" / "promtool"
METRIC = re.compile(r"\btakeup_[a-z0-9_]+")


def exported() -> set[str]:
    """The names of all metrics, from the code that writes them."""
    live = (ROOT / "src/takeup/cluster/report/live.py").read_text("utf-8")
    watch = (ROOT / "src/takeup/training/stragglers/watch/reports.py").read_text("utf-8")
    serving = (ROOT / "src/takeup/serving/server/metrics.py").read_text("utf-8")
    names = {f"takeup_cluster_{name}" for name in re.findall(r'_metric\("(\w+)"', live)}
    names |= {f"takeup_watch_{name}" for name in re.findall(r'\("(\w+)", "(?:gauge|counter)"', watch)}
    names |= set(re.findall(r"takeup_watch_slow", watch))
    pages = spark_page(SparkCounts("lrc", True)) + dask_page(DaskCounts())
    names |= set(re.findall(r"^# TYPE (\w+)", pages, re.MULTILINE))
    names |= {f"{PREFIX}{name}_total" for name in (*COUNTS, *TURNS)} | {f"{PREFIX}{name}" for name in GAUGES}
    names |= {
        f"{PREFIX}{name}_total" for name in re.findall(r'(?:Counter|CounterMetricFamily)\(\s*f"{PREFIX}(\w+)"', serving)
    }
    names |= {f"{PREFIX}{name}" for name in re.findall(r'GaugeMetricFamily\(\s*f"{PREFIX}(\w+)"', serving)}
    histograms = re.findall(r'self\._seconds\("(\w+)"', serving)
    return names | {f"{PREFIX}{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}


def expressions() -> Iterator[tuple[str, str]]:
    """Every query of the dashboards and the rules, with where it is."""
    for path in BOARDS:
        for panel in json.loads(path.read_text("utf-8"))["panels"]:
            yield from ((f"{path.name}: {panel['title']}", target["expr"]) for target in panel["targets"])
    for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text("utf-8"))["groups"]:
        yield from ((rule["alert"], rule["expr"]) for rule in group["rules"])


EXPRESSIONS = list(expressions())


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_a_query_names_metrics_that_the_code_exports_and_is_balanced(where: str, expression: str) -> None:
    found = set(METRIC.findall(expression))

    assert found
    assert found <= exported()
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)
    for name in found:
        if name.endswith("_total"):  # a counter is only read through its growth
            assert re.search(rf"(rate|increase)\({name}\b", expression)


def test_the_names_are_those_of_a_page_that_a_server_writes() -> None:
    assert {
        "takeup_cluster_quota_gpus",
        "takeup_watch_slow",
        "takeup_serving_request_duration_seconds_bucket",
    } <= exported()
    assert {"takeup_caching_spark_hits_total", "takeup_caching_dask_written_bytes_total"} <= exported()


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.name)
def test_a_dashboard_has_a_name_of_its_own_and_panels_side_by_side(path: Path) -> None:
    board = json.loads(path.read_text("utf-8"))
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]

    assert board["uid"] == f"takeup-{path.stem}"
    assert len(places) == len(set(places)) >= 4
    assert len({panel["id"] for panel in board["panels"]}) == len(places)


def test_every_alert_says_what_it_means_and_how_bad_it_is() -> None:
    rules = [
        rule
        for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text("utf-8"))["groups"]
        for rule in group["rules"]
    ]

    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert all(rule["labels"]["severity"] in {"warning", "critical"} for rule in rules)
    assert all(rule["annotations"]["summary"].endswith(".") for rule in rules)


@pytest.mark.engine
@pytest.mark.skipif(not PROMTOOL.exists(), reason="needs promtool: run scripts/deploy-lab")
def test_prometheus_reads_the_rules_and_every_query_of_a_dashboard(tmp_path: Path) -> None:
    queries = [{"record": f"query:{number}", "expr": query} for number, (_, query) in enumerate(EXPRESSIONS)]
    rules = tmp_path / "queries.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": queries}]}), "utf-8")

    for path in (DEPLOY / "alerts.yaml", rules):
        done = subprocess.run([PROMTOOL, "check", "rules", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SUCCESS" in done.stdout


# The chart, rendered by helm ------------------------------------------------------------------------------------------


def helm(*words: str) -> str:
    """What helm prints."""
    done = subprocess.run([HELM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def chart(**changes: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """The objects of the chart by kind and name, with some values changed."""
    values = [word for name, value in changes.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]
    text = helm("template", "takeup", str(CHART), "--namespace", "takeup", *values)
    return {(part["kind"], part["metadata"]["name"]): part for part in yaml.safe_load_all(text) if part}


def test_helm_finds_nothing_to_complain_about() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    names = ("01-priority-classes.yaml", "02-rights.yaml", "03-scheduler.yaml")
    parts = [part for name in names for part in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text("utf-8"))]
    return {(part["kind"], part["metadata"]["name"]): part for part in parts}


def test_the_chart_gives_the_rights_and_classes_of_the_manifests_and_no_more() -> None:
    ours, plain = chart(), manifests()
    same = [key for key in plain if key[0] not in {"Namespace", "Deployment"}]

    assert len(same) >= 6
    assert {key: ours[key] for key in same} == {key: plain[key] for key in same}
    more = {("NetworkPolicy", "takeup"), ("PodDisruptionBudget", "takeup"), ("Secret", "takeup-metrics")}
    assert set(ours) - set(plain) == more
    assert set(chart(podMonitor=True)) - set(ours) == {("PodMonitor", "takeup")}


def token_of(thing: dict[str, Any]) -> dict[str, str]:
    """The secret from which a Deployment has the token of its pages, by name and key."""
    (container,) = thing["spec"]["template"]["spec"]["containers"]
    (entry,) = [entry for entry in container["env"] if entry["name"] == TOKEN_VARIABLE]
    found: dict[str, str] = entry["valueFrom"]["secretKeyRef"]
    return found


def test_prometheus_and_the_scheduler_have_the_token_of_the_same_secret() -> None:
    ours = chart(podMonitor=True)
    (endpoint,) = ours["PodMonitor", "takeup"]["spec"]["podMetricsEndpoints"]
    secret = ours["Secret", "takeup-metrics"]
    guide = (ROOT / "docs/guides/kubernetes.md").read_text("utf-8")

    assert endpoint["authorization"]["credentials"] == token_of(ours["Deployment", "takeup"])
    assert token_of(ours["Deployment", "takeup"]) == {
        "name": secret["metadata"]["name"],
        "key": next(iter(secret["data"])),
    }
    assert len(b64decode(secret["data"]["token"])) >= MIN_TOKEN_CHARS
    assert b64decode(chart(metricsToken="chosen")["Secret", "takeup-metrics"]["data"]["token"]) == b"chosen"
    assert token_of(manifests()["Deployment", "takeup"]) == {"name": "takeup-metrics", "key": "token"}
    assert "create secret generic takeup-metrics --from-literal=token=" in guide


@pytest.mark.parametrize("dry_run", [True, False])
def test_the_chart_observes_until_it_is_told_to_act(dry_run: bool) -> None:
    spec = chart(dryRun=dry_run)["Deployment", "takeup"]["spec"]
    container = spec["template"]["spec"]["containers"][0]

    assert ("--dry-run" in container["args"]) is dry_run
    assert container["args"][:5] == ["cluster", "run", "gfs", "--engine", "kubernetes"]
    assert spec["replicas"] == 2
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert all(isinstance(word, str) for word in container["args"])


def test_the_arguments_of_the_chart_are_understood() -> None:
    from takeup.cluster.commands import cluster

    words = chart()["Deployment", "takeup"]["spec"]["template"]["spec"]["containers"][0]["args"]
    run = cluster.commands[words[1]]

    assert run.make_context("run", list(words[2:])).params["engine"] == "kubernetes"


def test_versions_of_chart_and_package_agree() -> None:
    from takeup import __version__

    about = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))

    assert (
        about["appVersion"] == yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))["image"]["tag"] == __version__
    )


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_as_a_user_and_restarts(path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(path)

    assert unit["Service"]["User"] == "takeup"
    assert unit["Service"]["ExecStart"].startswith("/usr/bin/env takeup ")
    assert unit["Service"]["Restart"] in {"always", "on-failure"}
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_the_image_installs_from_this_tree_and_runs_without_root() -> None:
    lines = (DEPLOY / "Containerfile").read_text("utf-8").splitlines()
    words = [line.split()[0] for line in lines if line and line[0].isupper()]

    assert set(words) <= {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"}
    assert "USER 65532:65532" in lines
    assert any("constraints.txt" in line for line in lines)
    assert (ROOT / "constraints.txt").exists()
