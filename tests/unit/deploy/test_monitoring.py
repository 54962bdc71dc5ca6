"""Test deploy/monitoring: promtool accepts the files for Prometheus and Grafana, their rules work as described, and the daemons
have the metrics that they query."""

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import hooks.daemon.settings
import runtimeproxy.settings
import shares.settings
from central.request.reasons import OfPod
from central.search.placement import Missing
from lading.health import parse_address
from lading.reasons import Reason
from tests.docs import ROOT, section
from tests.fakes.needs import need
from tests.fakes.records import Records
from tests.unit.deploy.exposed import Names, exposed

FOLDER: Final = ROOT / "deploy/monitoring"
RULES: Final = yaml.safe_load((FOLDER / "rules.yaml").read_text())
ALERTS: Final = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
RECORDED: Final = [rule for group in RULES["groups"] for rule in group["rules"] if "record" in rule]
PAGE: Final = (ROOT / "docs/monitoring.md").read_text()
DASHBOARD: Final = json.loads((FOLDER / "dashboard.json").read_text())
PANELS: Final = DASHBOARD["panels"]
TARGETS: Final = [(panel, target) for panel in PANELS for target in panel.get("targets", [])]
QUERIES: Final = [rule["expr"] for rule in (*RECORDED, *ALERTS)] + [target["expr"] for _, target in TARGETS]
OTHERS: Final[Names] = {"up": set()}  # series that Prometheus itself makes
ADDED: Final = {"job", "instance", "le"}  # labels that Prometheus adds
KEPT: Final = {"verb", "method"}  # labels that recorded series keep
_NAME: Final = re.compile(r"\b((?:lading|process)_\w+|lading:[\w:]+|up)\b(?:\{([^}]*)\})?")


def promtool(*text: str, folder: Path = FOLDER) -> None:
    need(shutil.which("promtool") is not None, "promtool, of Debian's package prometheus")
    done = subprocess.run(["promtool", *text], cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Names:
    return exposed(tmp_path_factory.mktemp("daemons"), Records().log) | OTHERS


# ---- rules


def test_prometheus_takes_the_rules() -> None:
    promtool("check", "rules", "rules.yaml")


def test_each_alert_fires_when_it_should() -> None:
    promtool("test", "rules", "rules_test.yaml")


def test_each_alert_is_tried() -> None:
    """Check that each alert fires in one case and is quiet in another."""
    tried: dict[str, set[bool]] = {}
    for test in yaml.safe_load((FOLDER / "rules_test.yaml").read_text())["tests"]:
        for case in test.get("alert_rule_test", ()):
            tried.setdefault(case["alertname"], set()).add(bool(case["exp_alerts"]))
    assert tried == {alert["alert"]: {False, True} for alert in ALERTS}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_for_how_long_how_bad_and_what_to_do(alert: Any) -> None:
    assert alert["for"]
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["runbook"] == f"docs/monitoring.md#{alert['alert'].lower()}"


def test_each_alert_is_explained() -> None:
    text = section("monitoring.md", "## Alerts")
    explained = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    assert [part.split("`")[1] for part in explained] == [alert["alert"] for alert in ALERTS]
    assert [part.split("`")[1] for part in explained if "**Do:**" not in part] == []
    for part, alert in zip(explained, ALERTS, strict=True):
        assert part.splitlines()[1].startswith(f"**{alert['labels']['severity'].capitalize()}.** ")


def test_the_rules_as_an_object_of_the_operator() -> None:
    (command,) = [
        block for block in re.findall(r"^ {3}```\n(.*?)^ {3}```", PAGE, re.MULTILINE | re.DOTALL) if "PrometheusRule" in block
    ]
    done = subprocess.run(
        ["bash", "-euc", "kubectl() { [[ $3 != - ]] || cat; }\n" + command],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    applied = yaml.safe_load(done.stdout)
    assert (applied["apiVersion"], applied["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert applied["spec"] == RULES


def test_reasons_in_selectors_are_codes() -> None:
    codes = {code.value for code in (*Reason, *Missing, *OfPod)}
    named = {word for rule in ALERTS for text in re.findall(r'reason=~?"([a-z|-]+)"', rule["expr"]) for word in text.split("|")}
    assert len(named) > 10
    assert named <= codes


# ---- what they ask for


def asked(query: str) -> Iterator[tuple[str, set[str]]]:
    """Return the queried metrics, and the labels by which they are selected."""
    for name, selector in _NAME.findall(query):
        yield name, set(re.findall(r"(\w+)\s*(?:=|!=|=~|!~)\s*\"", selector))


@pytest.mark.parametrize("query", QUERIES)
def test_the_daemons_have_what_is_asked_for(query: str, names: Names) -> None:
    known = names | {rule["record"]: KEPT for rule in RECORDED}
    result = list(asked(query))
    assert result
    for name, labels in result:
        assert name in known
        assert labels <= known[name] | ADDED, name


def test_a_metric_that_no_one_has_would_be_found(names: Names) -> None:
    (result,) = asked('sum(rate(lading_proxy_calls{verb="x"}[5m]))')
    assert result == ("lading_proxy_calls", {"verb"})
    assert "lading_proxy_calls" not in names
    assert names["lading_proxy_calls_total"] == {"method", "outcome"}


@pytest.mark.parametrize("query", QUERIES)
def test_groups_are_by_labels_that_there_are(query: str, names: Names) -> None:
    labels = (
        set(itertools.chain.from_iterable(names[name] for name, _ in asked(query) if name in names))
        | ADDED
        | {"verb", "method"}
    )
    for grouped in re.findall(r"\b(?:by|on) \(([^)]*)\)", query):
        assert {label.strip() for label in grouped.split(",")} <= labels


# ---- how they are found


def test_prometheus_takes_the_scrape_configuration(tmp_path: Path) -> None:
    """Check the scrape configuration with fixed targets, because Debian's promtool is built without the discovery of
    Kubernetes."""
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    for job in config["scrape_configs"]:
        (discovery,) = job.pop("kubernetes_sd_configs")
        assert discovery["role"] in {"pod", "node"}
        job["static_configs"] = [{"targets": ["127.0.0.1:1"]}]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    shutil.copy(FOLDER / "rules.yaml", tmp_path)
    promtool("check", "config", "prometheus.yaml", folder=tmp_path)


def test_both_find_the_same_daemons_at_their_ports() -> None:
    ports = {}
    listens = {
        "hooks": hooks.daemon.settings.Settings().metrics,
        "proxy": runtimeproxy.settings.Settings().metrics,
        "shares": shares.settings.Settings().metrics,
    }
    for daemon, metrics in listens.items():
        address = parse_address(metrics)
        assert address is not None
        ports[f"lading-{daemon}"] = f"$1:{address.port}"
    plain = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]
    assert {job["job_name"]: port for job in plain if (port := _port(job["relabel_configs"], "target_label"))} == ports
    objects = list(yaml.safe_load_all((FOLDER / "operator.yaml").read_text()))
    scraped = [result for result in objects if result["kind"] == "ScrapeConfig"]
    assert {result["metadata"]["name"]: _port(result["spec"]["relabelings"], "targetLabel") for result in scraped} == ports
    jobs = {job["job_name"] for job in plain}
    assert {result["metadata"]["name"] for result in objects} == jobs
    assert jobs >= set(re.findall(r'job="([^"]+)"', (FOLDER / "rules.yaml").read_text()))
    deployment = next(yaml.safe_load_all((ROOT / "deploy/central/deployment.yaml").read_text()))
    (pod_monitor,) = [result for result in objects if result["kind"] == "PodMonitor"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {end["port"] for end in pod_monitor["spec"]["podMetricsEndpoints"]} <= {port["name"] for port in container["ports"]}
    assert pod_monitor["spec"]["selector"]["matchLabels"].items() <= deployment["metadata"]["labels"].items()


def _port(relabelings: list[dict[str, Any]], target: str) -> str:
    return next((one["replacement"] for one in relabelings if one.get(target) == "__address__"), "")


# ---- the dashboard


def promql(query: str) -> str:
    """Return the query without Grafana's variables."""
    query = re.sub(r"\$(instance|namespace)\b", ".*", query.replace("$__rate_interval", "5m"))
    assert "$" not in query.replace('"$1"', "")
    return query


def test_each_query_of_the_dashboard_is_promql(tmp_path: Path) -> None:
    rules = [{"record": f"query:{number}", "expr": promql(target["expr"])} for number, (_, target) in enumerate(TARGETS)]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", "queries.yaml", folder=tmp_path)


def test_the_dashboard_is_one_of_grafanas() -> None:
    assert DASHBOARD["schemaVersion"] >= 36
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in PANELS:
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == source
        assert panel["title"]
        assert panel["targets"]
        assert [target["refId"] for target in panel["targets"]] == [chr(65 + n) for n in range(len(panel["targets"]))]
        assert all(target["datasource"] == source for target in panel["targets"])
    assert all(variable["datasource"] == source for name, variable in variables.items() if name != "datasource")
    used = {name for _, target in TARGETS for name in re.findall(r"\$(\w+)", target["expr"])} - {"__rate_interval", "1"}
    assert used == set(variables) - {"datasource"}


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in PANELS:
        at = panel["gridPos"]
        assert 0 <= at["x"] < at["x"] + at["w"] <= 24
        for cell in itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])):
            assert cell not in taken, (panel["title"], taken[cell])
            taken[cell] = panel["title"]


def test_the_table_has_a_column_for_each_query() -> None:
    (table,) = [panel for panel in PANELS if panel["type"] == "table"]
    assert all(target["format"] == "table" and target["instant"] for target in table["targets"])
    (organize,) = [one["options"] for one in table["transformations"] if one["id"] == "organize"]
    values = {f"Value #{target['refId']}" for target in table["targets"]}
    shown, hidden = organize["renameByName"], {name for name, deleted in organize["excludeByName"].items() if deleted}
    assert values <= shown.keys() | hidden
    assert {override["matcher"]["options"] for override in table["fieldConfig"]["overrides"]} <= set(shown.values())


def test_the_use_of_a_card_is_shown_beside_each_of_its_holders(tmp_path: Path) -> None:
    (table,) = [panel for panel in PANELS if panel["type"] == "table"]
    (query,) = [target["expr"] for target in table["targets"] if "lading_gpu_used_mib" in target["expr"]]
    holders = [f'{{device="GPU-1",instance="n1",kind="gpu",namespace="team",pod="{pod}",container="main"}}' for pod in "ab"]
    series = {f"lading_device_holder{labels}": "1" for labels in holders} | {
        'lading_gpu_used_mib{instance="n1",uuid="GPU-1"}': "4096",
        'lading_gpu_used_mib{instance="n1",uuid="GPU-2"}': "1",  # no one holds it
        'lading_gpu_used_mib{instance="n2",uuid="GPU-1"}': "2",
    }
    test = {
        "input_series": [{"series": name, "values": value} for name, value in series.items()],
        "promql_expr_test": [
            {"expr": promql(query), "eval_time": "0m", "exp_samples": [{"labels": labels, "value": 4096} for labels in holders]}
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"tests": [test]}))
    promtool("test", "rules", "test.yaml", folder=tmp_path)


def test_rows_of_the_table_are_merged() -> None:
    """Check that all queries have the same labels and none its own name: Grafana's merge makes one row of equal labels."""
    (table,) = [panel for panel in PANELS if panel["type"] == "table"]
    labels = {re.match(r"max by \(([^)]*)\) \(", target["expr"])[1] for target in table["targets"]}  # type: ignore[index]
    assert labels == {"instance, kind, device, namespace, pod, container"}
