"""The Helm chart, linted and rendered by Helm's own engine and checked with Kubernetes' schemas.

A wheel of the package index has Helm's engine as a library.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from streamer.config import Environment, check_variables
from streamer.service.configuration import read_service_config
from tests.formats.library_environment import python_with_only
from tests.pages.environments import ROOT

pytestmark = [pytest.mark.pages, pytest.mark.timeout(600)]

CHART = ROOT / "deploy" / "helm" / "streamer"
HELM = "helm-python-sdk==0.2.2"
KUBERNETES = "1.29"
# The schemas of the Prometheus Operator are not Kubernetes' own.
CUSTOM = {"PodMonitor", "PrometheusRule"}
CONFIG = """
[cache]
limit_bytes = '1.5TB'
[service]
http = '0.0.0.0:9464'
[[datasets]]
url = 's3://bucket/train/'
"""
NAMED = {"config": CONFIG}
EVERYTHING = {
    **NAMED,
    "image": {"repository": "registry.example/streamer", "tag": "1.2.3", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "credentialsSecret": "streamer-bucket",
    "peers": {"enabled": True, "tlsSecret": "peers-tls"},
    "logFormat": "text",
    "extraEnv": [{"name": "STREAMER_LOG", "value": "debug"}],
    "nodeSelector": {"gpu": "yes"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "system-node-critical",
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "serviceAccount": {"create": True, "name": "own", "annotations": {"role": "arn:aws:iam::1:role/r"}},
    "podMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True, "labels": {"grafana_dashboard": "1"}},
}


def rendered(*values: dict[str, object]) -> list[dict[str, object]]:
    """Returns what the engine makes of each set of values."""
    script = Path(__file__).with_name("render_chart.py")
    command = [python_with_only(HELM), script, CHART, *map(json.dumps, values)]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, timeout=120)
    return list(json.loads(done.stdout))


def objects(found: dict[str, object]) -> dict[str, dict]:
    """Returns the objects by kind, and config maps by name."""
    texts = [text for name, text in found["templates"].items() if name.endswith(".yaml")]
    each = [one for text in texts for one in yaml.safe_load_all(text) if one]
    return {one["metadata"]["name"] if one["kind"] == "ConfigMap" else one["kind"]: one for one in each}


def test_the_chart_renders_to_what_kubernetes_takes(tmp_path: Path) -> None:
    """The chart renders to valid objects whose names fit together, with its defaults and with every value set.

    The linter has nothing to say but that an icon is recommended.
    """
    least: dict[str, object] = {"serveEveryUrl": True}
    for found, everything in zip(rendered(least, EVERYTHING), (False, True), strict=True):
        assert "error" not in found
        assert found["lint"]["errors"] == []
        assert [one["error"] for one in found["lint"]["messages"]] == ["icon is recommended"]
        made = objects(found)
        for kind, one in made.items():
            if kind not in CUSTOM:
                kubernetes_validate.validate(one, KUBERNETES, strict=True)
        spec = made["DaemonSet"]["spec"]["template"]["spec"]
        containers = [*spec["initContainers"], *spec["containers"]]
        volumes = {volume["name"] for volume in spec["volumes"]}
        assert {mount["name"] for one in containers for mount in one["volumeMounts"]} == volumes
        assert ("credentials" in volumes) == everything
        assert spec["serviceAccountName"] == made["ServiceAccount"]["metadata"]["name"]
        check_variables({entry["name"]: str(entry["value"]) for entry in spec["containers"][0]["env"]})
        (volume,) = [one for one in spec["volumes"] if "configMap" in one]
        config = made[volume["configMap"]["name"]]
        (tmp_path / "streamer.toml").write_text(config["data"]["streamer.toml"])
        environment = Environment.read({"STREAMER_CACHE_DIR": "/cache", "STREAMER_GROUP": "10001", "HOME": "/"})
        engine = read_service_config(tmp_path / "streamer.toml", environment, {})
        assert engine.service.drain_seconds < spec["terminationGracePeriodSeconds"]
        assert set(made) & CUSTOM == (CUSTOM if everything else set())


def test_the_chart_brings_its_monitoring() -> None:
    """The chart brings pod monitor, rules and dashboard: they select its engines, and are those of its files.

    They have the labels asked for.
    """
    (found,) = rendered(EVERYTHING)
    made = objects(found)
    labels = made["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    assert made["PodMonitor"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert made["PrometheusRule"]["spec"] == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    dashboard = made["engines-streamer-dashboard"]
    assert json.loads(dashboard["data"]["streamer.json"]) == json.loads(
        (CHART / "files" / "dashboard.json").read_text()
    )
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert made["PrometheusRule"]["metadata"]["labels"]["release"] == "prometheus"
    assert "port-forward daemonset/engines-streamer 9464" in found["templates"]["streamer/templates/NOTES.txt"]


def test_the_chart_makes_peers_of_the_engines() -> None:
    """Engines of the chart look up a headless Service of their own pods as peers, and only they reach its port.

    Without a token peers are refused.
    """
    found, refused = rendered(EVERYTHING, {**NAMED, "peers": {"enabled": True}})
    made = objects(found)
    template, service, policy = made["DaemonSet"]["spec"]["template"], made["Service"], made["NetworkPolicy"]["spec"]
    (container,) = template["spec"]["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    assert variables["STREAMER_PEERS"] == f"dns:{service['metadata']['name']}:7070"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == policy["podSelector"]["matchLabels"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert policy["ingress"][0]["from"] == [{"podSelector": policy["podSelector"]}]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert variables["STREAMER_PEERS_TLS_FOLDER"] in mounts
    assert str(Path(variables["STREAMER_PEERS_TOKEN_FILE"]).parent) in mounts
    assert "needs credentialsSecret" in refused["error"]


def test_a_misspelt_value_is_refused() -> None:
    """The chart's schema refuses values with unknown names or of the wrong kind, and names them."""
    wrong = ({"cacheHostPth": "/x"}, {"userId": "root"}, {"logFormat": "xml"}, {"podMonitor": {"enable": True}})
    for values, found in zip(wrong, rendered(*wrong), strict=True):
        (name,) = values
        assert name in str(found["error"])


def test_it_says_what_it_serves() -> None:
    """The chart is not rendered without [[datasets]], unless serveEveryUrl says that this is meant."""
    commented = {"config": "# [[datasets]]\n[service]\nhttp = '0.0.0.0:9464'\n"}
    for found in rendered({}, commented, {**NAMED, "config": "[cache]\nlimit_bytes = '1GB'\n"}):
        assert "names no [[datasets]]" in str(found["error"])
    for found in rendered({"serveEveryUrl": True}, NAMED, {"config": "datasets = [{url = 's3://b/'}]\nhttp='off'"}):
        assert "error" not in found


def test_ports_and_probes_follow_the_configuration() -> None:
    """The chart's ports and probes follow the configured address, and an address on loopback is refused.

    No probe would reach loopback.
    """
    other, off, loopback, default = rendered(
        {"config": CONFIG.replace("9464", "9999")},
        {"config": CONFIG.replace("0.0.0.0:9464", "off"), "podMonitor": {"enabled": True}},
        {"config": CONFIG.replace("0.0.0.0:9464", "127.0.0.1:9464")},
        {"config": "[[datasets]]\nurl = 's3://bucket/train/'\n"},
    )
    template = objects(other)["DaemonSet"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["ports"] == [{"name": "metrics", "containerPort": 9999}]
    assert container["readinessProbe"]["httpGet"]["port"] == "metrics"
    assert template["metadata"]["annotations"]["prometheus.io/port"] == "9999"
    assert "9999, then http://127.0.0.1:9999/" in other["templates"]["streamer/templates/NOTES.txt"]
    made = objects(off)
    (container,) = made["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    assert "ports" not in container
    assert container["livenessProbe"]["exec"]["command"] == ["streamer", "stat", "--json"]
    assert not {name for name in made["DaemonSet"]["spec"]["template"]["metadata"]["annotations"] if "prom" in name}
    assert "PodMonitor" not in made
    kubernetes_validate.validate(made["DaemonSet"], KUBERNETES, strict=True)
    for found in (loopback, default):
        assert "loopback" in str(found["error"])


def test_the_defaults_suit_nodes_with_accelerators() -> None:
    """The chart's defaults tolerate taints of accelerators, select Linux nodes, and request one CPU and 1 GiB."""
    (found,) = rendered(NAMED)
    spec = objects(found)["DaemonSet"]["spec"]["template"]["spec"]
    assert {"nvidia.com/gpu", "amd.com/gpu"} == {one["key"] for one in spec["tolerations"]}
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}


def test_the_cache_may_be_a_claim() -> None:
    """The chart's cache may be a claim of a local volume in place of a folder of the node."""
    (found,) = rendered({**NAMED, "cacheClaim": "nvme"})
    daemon_set = objects(found)["DaemonSet"]
    kubernetes_validate.validate(daemon_set, KUBERNETES, strict=True)
    volumes = {volume["name"]: volume for volume in daemon_set["spec"]["template"]["spec"]["volumes"]}
    assert volumes["cache"] == {"name": "cache", "persistentVolumeClaim": {"claimName": "nvme"}}
    assert "the claim nvme (read-only) at /cache" in found["templates"]["streamer/templates/NOTES.txt"]
