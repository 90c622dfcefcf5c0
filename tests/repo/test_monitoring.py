"""Alert rules and the dashboard are valid for Prometheus and use metrics that exist; promtool is the real one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from streamer.service.metrics import DEFINITIONS

FILES = Path(__file__).parents[2] / "deploy" / "helm" / "streamer" / "files"
ALERTS = FILES / "alerts.yaml"
DASHBOARD = json.loads((FILES / "dashboard.json").read_text())
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
LABELS = {definition.name: set(definition.labels) for definition in DEFINITIONS}
# Of the scrape, not of the metric; a training job's name comes out as exported_job.
TARGET_LABELS = {"instance", "namespace", "container", "pod"}


def promtool(*arguments: object) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("no promtool: apt-get install prometheus")
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def substituted(query: str) -> str:
    """Returns a query as Grafana sends it."""
    return query.replace("$__rate_interval", "2m").replace("$instance", ".*")


def test_rules_are_those_of_prometheus() -> None:
    """promtool accepts syntax, durations and templates of all alert rules."""
    assert f"SUCCESS: {len(RULES)} rules found" in promtool("check", "rules", ALERTS)


def test_each_rule_fires_when_it_should_and_not_before() -> None:
    """Each alert fires for its recorded series, and none for an engine at work."""
    cases = Path(__file__).with_name("alerts_test.yaml")
    named = re.findall(r"alertname: (\w+)", cases.read_text())
    assert set(named) == {rule["alert"] for rule in RULES}
    promtool("test", "rules", cases)


def test_queries_are_those_of_prometheus(tmp_path: Path) -> None:
    """promtool accepts the query of every panel."""
    recorded = [{"record": f"panel:{number}", "expr": substituted(query)} for number, query in enumerate(QUERIES)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    promtool("check", "rules", tmp_path / "rules.yaml")


@pytest.mark.parametrize("query", [*QUERIES, *(rule["expr"] for rule in RULES)])
def test_metrics_and_labels_exist(query: str) -> None:
    """Each query names metrics and labels that exist: a renamed one would leave an empty panel and a silent alert."""
    metrics = set(re.findall(r"\bstreamer_\w+", query))
    assert metrics <= set(LABELS)
    known = set().union(*(LABELS[name] for name in metrics)) | TARGET_LABELS
    renamed = {f"exported_{name}" if name == "job" else name for name in known}
    if "job" not in known:  # of the scrape, where the metric has none of its own
        renamed.add("job")
    grouped = [name.strip() for part in re.findall(r"by \(([^)]*)\)", query) for name in part.split(",")]
    assert set(grouped) | set(re.findall(r"[{,](\w+)(?:=|!)", query)) <= renamed


def test_the_dashboard_shows_every_metric_that_an_alert_is_about() -> None:
    """The dashboard shows every metric of the alerts, so that an alert can be followed to its series."""
    alerting = {name for rule in RULES for name in re.findall(r"\bstreamer_\w+", rule["expr"])}
    shown = {name for query in QUERIES for name in re.findall(r"\bstreamer_\w+", query)}
    assert alerting - shown <= {"streamer_uptime_seconds", "streamer_session_epoch", "streamer_build_info"}


def test_panels_do_not_overlap() -> None:
    """The dashboard's panels do not overlap on their grid of 24 columns."""
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
