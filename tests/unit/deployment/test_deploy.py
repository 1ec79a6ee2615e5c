"""Prometheus and Grafana use existing metrics, and the alerts fire in the intended cases."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from stream.alerts.delivery import AlertMetrics, TargetMetrics
from stream.engine.health import Metrics
from stream.kafka.topic_creation import Inspection
from stream.monitor.api.monitor_state import metrics_text
from stream.services.feed_service import FeedMetrics
from tests.unit.monitor.installation import HIGH, Installation, spec

PROJECT = Path(__file__).parents[3]
DEPLOY = PROJECT / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
CONFIGURATION = DEPLOY / "prometheus" / "prometheus.yml"
CASES = Path(__file__).with_name("alert_cases.yml")
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "sotto.json"
LABELS_OF_PROMETHEUS = {"job", "instance"}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def queries() -> list[str]:
    asked = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    return [*asked, *(rule["expr"] for rule in alerts())]


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return all series that the services and the monitor offer, with their labels."""
    installation = Installation()
    installation.open(spec("one"))
    installation.ask("one", HIGH)
    installation.driver.send(0, b"no JSON")
    installation.flow()
    installation.monitor.set_topics(Inspection([], [], []))
    families = list(text_string_to_metric_families(metrics_text(installation.monitor).decode()))
    for role in ("worker", "budget", "feed"):
        families += Metrics(role).registry.collect()
    feeding = CollectorRegistry()
    figures = FeedMetrics(feeding)
    for gauge in (figures._lag_events, figures._lag_seconds, figures._refused):
        gauge.labels("visits")
    families += feeding.collect()
    alerting = AlertMetrics()
    TargetMetrics(alerting, "oncall")
    families += alerting.registry.collect()
    found: dict[str, set[str]] = {"up": set()}
    for family in families:
        names = {f"{family.name}_total"} if family.type == "counter" else {family.name}
        for name in {sample.name for sample in family.samples} | names:
            found.setdefault(name, set())
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    # Without a running service there are no figures of partitions.
    for name in ("sotto_monitor_lag_events", "sotto_monitor_unassigned_partitions"):
        found[name] |= {"role"}
    found["sotto_monitor_topic_stalled"] |= {"source"}  # and without a live topic, none of a live topic
    return found


@pytest.fixture(scope="module")
def begun() -> set[str]:
    """Return the counters that a service offers from its start."""
    alerting, feeding = AlertMetrics(), CollectorRegistry()
    TargetMetrics(alerting, "oncall")
    FeedMetrics(feeding)
    registries = [alerting.registry, feeding, *(Metrics(role).registry for role in ("worker", "budget", "feed"))]
    samples = [one for registry in registries for family in registry.collect() for one in family.samples]
    return {one.name for one in samples if one.value == 0}


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_metrics_in_rates_are_exported_from_the_start(rule: dict[str, Any], begun: set[str]) -> None:
    """Otherwise an alert would miss their first increase."""
    assert set(re.findall(r"\b(?:increase|rate)\((\w+)", rule["expr"])) <= begun


def test_alert_cases_use_exported_metrics_and_labels(exported: dict[str, set[str]]) -> None:
    for case in yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]:
        for given in case["input_series"]:
            name, _, labels = given["series"].partition("{")
            assert set(re.findall(r"(\w+)=\"", labels)) <= exported[name] | LABELS_OF_PROMETHEUS, given["series"]


@pytest.mark.parametrize("query", queries())
def test_every_query_is_promql_about_exported_metrics_and_labels(
    query: str, exported: dict[str, set[str]]
) -> None:
    promql_parser.parse(query.replace("$source", ".*"))
    series = re.findall(r"\b(sotto_\w+|up)(?=[\s{\[()]|$)(?:\{([^}]*)\})?", query)
    assert series
    for name, selectors in series:
        assert name in exported, name
        labels = set(re.findall(r"(\w+)(?==~?\")", selectors))
        assert labels <= exported[name] | LABELS_OF_PROMETHEUS, name
    grouped = {
        label for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", query) for label in group.split(", ") if label
    }
    assert grouped <= {label for name, _ in series for label in exported[name]} | LABELS_OF_PROMETHEUS


def test_every_alert_has_a_severity_and_a_remedy() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    assert {"SottoBudgetLow", "SottoLag", "SottoDeadLetters", "SottoNoAnswers"} <= set(names)
    for rule in alerts():
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def test_prometheus_scrapes_every_service_of_the_compose_file() -> None:
    services = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"]
    jobs = {job["job_name"]: job for job in yaml.safe_load(CONFIGURATION.read_text())["scrape_configs"]}
    own = {
        f"{name}:{services[name]['environment']['SOTTO_METRICS_PORT']}"
        for name in ("budget", "worker-1", "worker-2", "feed")
    }
    assert set(jobs["sotto-services"]["static_configs"][0]["targets"]) == own
    assert all(services[target.split(":")[0]]["environment"]["SOTTO_METRICS_HOST"] == "0.0.0.0" for target in own)  # noqa: S104
    monitor = services["monitor"]["environment"]
    assert jobs["sotto-monitor"]["static_configs"][0]["targets"] == [f"monitor:{monitor['SOTTO_MONITOR_PORT']}"]
    (secret,) = services["prometheus"]["secrets"]
    assert jobs["sotto-monitor"]["authorization"]["credentials_file"] == f"/run/secrets/{secret}"


def test_prometheus_scrapes_the_alerts_service() -> None:
    services = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"]
    jobs = {job["job_name"]: job for job in yaml.safe_load(CONFIGURATION.read_text())["scrape_configs"]}
    [found] = jobs["sotto-alerts"]["dns_sd_configs"]
    assert found["names"] == ["alerts"]
    assert str(found["port"]) == services["alerts"]["environment"]["SOTTO_METRICS_PORT"]


def test_alert_rules_cover_exactly_the_scraped_jobs() -> None:
    jobs = {job["job_name"] for job in yaml.safe_load(CONFIGURATION.read_text())["scrape_configs"]}
    assert {job for rule in alerts() for job in re.findall(r'\bjob="([^"]*)"', rule["expr"])} == jobs


def test_grafana_has_the_dashboard_and_its_prometheus() -> None:
    services = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"]
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services
    assert {panel["datasource"]["uid"] for panel in panels()} == {source["uid"]}
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "sotto.yml").read_text())["providers"]
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in services["grafana"]["volumes"]


def test_dashboard_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


@pytest.fixture(scope="module")
def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("promtool is not installed (Debian, Ubuntu: apt install prometheus)")
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "config", "--syntax-only", str(CONFIGURATION)],
        ["test", "rules", str(CASES)],
    ],
)
def test_promtool_accepts_the_files_and_alerts_fire_as_intended(promtool: str, arguments: list[str]) -> None:
    checked = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_metrics_and_rules_named_in_the_docs_exist(exported: dict[str, set[str]]) -> None:
    errors_and_labels = {"SottoAlert", "SottoError"}
    named: set[str] = set()
    for page in (PROJECT / "docs").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        named |= set(re.findall(r"\bSotto[A-Z]\w+", text)) - errors_and_labels
        figures = set(re.findall(r"`(sotto_(?:worker|budget|feed|monitor|alerts)_\w+)", text))
        assert figures <= exported.keys(), page
    assert named <= {rule["alert"] for rule in alerts()}
    assert {"SottoStreamsNotAnswering", "SottoPartitionStuck"} <= named


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    fired = {one["alertname"] for case in cases["tests"] for one in case["alert_rule_test"] if one["exp_alerts"]}
    assert fired == {alert["alert"] for alert in alerts()}
