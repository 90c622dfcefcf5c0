"""The files in deploy/ and docker/ are valid where there is a schema, and fit what the service needs.
kubectl, systemd-analyze and shellcheck run where they are installed."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from streamer.config import Environment, check_variables
from streamer.service.configuration import read_service_config

ROOT = Path(__file__).parents[2]
KUBERNETES_FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path for path in (KUBERNETES_FOLDER / "overlays").iterdir() if path.is_dir())
ALERTS = ROOT / "deploy" / "helm" / "streamer" / "files" / "alerts.yaml"
SCRIPTS = ["torchrun.sh", "slurm/train.sbatch", "slurm/train-sidecar.sbatch", "slurm/train-peers.sbatch"]
# Native sidecars are on by default from here on.
KUBERNETES = "1.29"


def objects(overlay: Path) -> list[dict]:
    """Returns the objects of an overlay's files: its own, and those of the base."""
    files = [*overlay.glob("*.yaml"), *(KUBERNETES_FOLDER / "base").glob("*.yaml")]
    texts = [path.read_text() for path in files if path.name != "kustomization.yaml"]
    return [found for text in texts for found in yaml.safe_load_all(text)]


def pod_spec(found: list[dict]) -> dict:
    (workload,) = [one for one in found if one["kind"] in ("Pod", "DaemonSet")]
    return workload["spec"] if workload["kind"] == "Pod" else workload["spec"]["template"]["spec"]


def containers(spec: dict) -> list[dict]:
    return [*spec.get("initContainers", []), *spec["containers"]]


@pytest.mark.parametrize("path", OVERLAYS, ids=lambda path: path.name)
def test_manifests_fit_kubernetes_schemas(path):
    """Each object of an overlay fits the Kubernetes schema, in which an unknown field is an error."""
    for found in objects(path):
        kubernetes_validate.validate(found, KUBERNETES, strict=True)


@pytest.mark.parametrize("path", OVERLAYS, ids=lambda path: path.name)
def test_kustomize_makes_the_same_objects(path):
    """kustomize makes an overlay's objects and a config map under the name that the workload mounts."""
    made = kustomized(path)
    assert sorted(one["kind"] for one in made) == sorted(["ConfigMap", *(one["kind"] for one in objects(path))])
    for found in made:
        kubernetes_validate.validate(found, KUBERNETES, strict=True)
    (config,) = [one for one in made if one["kind"] == "ConfigMap"]
    assert config["data"]["streamer.toml"] == (path / "streamer.toml").read_text()
    (volume,) = [one for one in pod_spec(made)["volumes"] if "configMap" in one]
    assert volume["configMap"]["name"] == config["metadata"]["name"]


def test_kustomize_adds_the_monitoring(tmp_path):
    """The monitoring component adds a PodMonitor that selects each overlay's pods, and the chart's rules."""
    for overlay in OVERLAYS:
        folder = tmp_path / overlay.name
        shutil.copytree(KUBERNETES_FOLDER, folder)
        file = folder / "overlays" / overlay.name / "kustomization.yaml"
        file.write_text(file.read_text().replace("# components:", "components:"))
        made = {one["kind"]: one for one in kustomized(file.parent)}
        (workload,) = [one for kind, one in made.items() if kind in ("Pod", "DaemonSet")]
        pod = workload if workload["kind"] == "Pod" else workload["spec"]["template"]
        wanted = made["PodMonitor"]["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= pod["metadata"]["labels"].items()
        assert made["PrometheusRule"]["spec"] == yaml.safe_load(ALERTS.read_text())


def is_restricted(spec: dict) -> bool:
    """Tells whether Pod Security admits a pod at the level "restricted" (Kubernetes: "Pod Security Standards")."""
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    contexts = [{**spec["securityContext"], **one["securityContext"]} for one in containers(spec)]
    return kinds <= allowed and all(
        context["runAsNonRoot"] is True
        and context["seccompProfile"]["type"] == "RuntimeDefault"
        and context["allowPrivilegeEscalation"] is False
        and context["capabilities"] == {"drop": ["ALL"]}
        for context in contexts
    )


def test_pod_security_is_what_the_readme_says():
    """The sidecar is admitted at the strictest level of Pod Security; the DaemonSet is not, for its host folders."""
    assert is_restricted(pod_spec(objects(KUBERNETES_FOLDER / "overlays" / "sidecar")))
    assert not is_restricted(pod_spec(objects(KUBERNETES_FOLDER / "overlays" / "daemonset")))


def test_kustomize_gives_the_sidecar_a_volume_of_its_own(tmp_path):
    """The ephemeral-volume component replaces the node's disk by a volume, at the same level of Pod Security."""
    shutil.copytree(KUBERNETES_FOLDER, tmp_path / "kubernetes")
    overlay = tmp_path / "kubernetes" / "overlays" / "sidecar"
    with (overlay / "kustomization.yaml").open("a") as file:
        file.write("components: [../../components/ephemeral-volume]\n")
    made = kustomized(overlay)
    for found in made:
        kubernetes_validate.validate(found, KUBERNETES, strict=True)
    spec = pod_spec(made)
    (cache,) = [volume for volume in spec["volumes"] if volume["name"] == "cache"]
    assert set(cache) == {"name", "ephemeral"}
    assert "ephemeral-storage" not in str(spec["initContainers"])
    assert is_restricted(spec)


def test_kustomize_makes_peers_of_the_engines(tmp_path):
    """The peers components give the engines a headless Service and a policy that admits only them to its port."""
    shutil.copytree(KUBERNETES_FOLDER, tmp_path / "kubernetes")
    overlay = tmp_path / "kubernetes" / "overlays" / "daemonset"
    with (overlay / "kustomization.yaml").open("a") as file:
        file.write("components: [../../components/peers, ../../components/peers-tls]\n")
    made = {one["kind"]: one for one in kustomized(overlay)}
    for found in made.values():
        kubernetes_validate.validate(found, KUBERNETES, strict=True)
    template, service, policy = made["DaemonSet"]["spec"]["template"], made["Service"], made["NetworkPolicy"]["spec"]
    (container,) = template["spec"]["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    check_variables(variables)
    (port,) = service["spec"]["ports"]
    assert variables["STREAMER_PEERS"] == f"dns:{service['metadata']['name']}:{port['port']}"
    listens = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert variables["STREAMER_PEERS_LISTEN"] == f"0.0.0.0:{listens[port['targetPort']]}"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == policy["podSelector"]["matchLabels"] == {"streamer-peers": "true"}
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    rules = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["ingress"]}
    assert rules == {"peers": [{"podSelector": policy["podSelector"]}], "metrics": None}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert str(Path(variables["STREAMER_PEERS_TOKEN_FILE"]).parent) in mounts
    assert mounts[variables["STREAMER_PEERS_TLS_FOLDER"]] in {volume["name"] for volume in template["spec"]["volumes"]}


def kustomized(path: Path) -> list[dict]:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl, which has kustomize")
    done = subprocess.run(["kubectl", "kustomize", str(path)], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("path", OVERLAYS, ids=lambda path: path.name)
def test_their_configuration_is_one_that_the_service_takes(path, tmp_path):
    """The service reads each overlay's configuration, whose port, floor, drain time and paths fit the pod."""
    found = objects(path)
    text = (path / "streamer.toml").read_text()
    (tmp_path / "bucket.json").write_text("{}")
    (tmp_path / "streamer.toml").write_text(text.replace("/etc/streamer-secret", str(tmp_path)))
    environment = Environment.read({"STREAMER_CACHE_DIR": "/cache", "STREAMER_GROUP": "10001", "HOME": "/"})
    engine = read_service_config(tmp_path / "streamer.toml", environment, {})
    assert engine.datasets
    ports = [port["containerPort"] for one in containers(pod_spec(found)) for port in one.get("ports", ())]
    assert ports == [int(engine.service.http.rpartition(":")[2])]
    # Above the thresholds at which kubelet evicts pods (10 %, of images 15 %).
    assert engine.cache.free_floor_share > 0.15
    assert engine.service.drain_seconds < pod_spec(found)["terminationGracePeriodSeconds"]
    mounts = {m["mountPath"] for c in containers(pod_spec(found)) for m in c["volumeMounts"]}
    assert "/etc/streamer-secret" in mounts
    assert any(str(engine.cache.directory).startswith(mount) for mount in mounts)


@pytest.mark.parametrize("path", OVERLAYS, ids=lambda path: path.name)
def test_every_mount_has_its_volume(path):
    """Every mount names a volume of the pod, which schemas do not check."""
    spec = pod_spec(objects(path))
    volumes = {volume["name"] for volume in spec["volumes"]}
    mounted = {mount["name"] for one in containers(spec) for mount in one["volumeMounts"]}
    assert mounted == volumes


@pytest.mark.parametrize("path", OVERLAYS, ids=lambda path: path.name)
def test_the_engine_can_read_its_secret(path):
    """The engine can read its secret, whose files belong to root and to fsGroup."""
    spec = pod_spec(objects(path))
    (volume,) = [volume for volume in spec["volumes"] if "secret" in volume]
    (engine,) = [one for one in containers(spec) if "--config" in one.get("args", ())]
    assert volume["secret"]["defaultMode"] == 0o440
    assert engine["securityContext"]["runAsGroup"] == spec["securityContext"]["fsGroup"]


def test_the_sidecar_is_native_and_the_trainer_has_no_rights():
    """The sidecar is a native one that restarts, and the trainer has neither the secret nor a writable cache."""
    spec = pod_spec(objects(KUBERNETES_FOLDER / "overlays" / "sidecar"))
    (sidecar,), (trainer,) = spec["initContainers"], spec["containers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {mount["name"]: mount for mount in trainer["volumeMounts"]}
    assert "credentials" not in mounts
    assert mounts["cache"]["readOnly"] is True
    assert mounts["run"]["readOnly"] is True
    variables = {entry["name"]: entry["value"] for entry in trainer["env"]}
    check_variables(variables)
    assert variables["STREAMER_ENGINE"].startswith("unix:/run/streamer/")


def test_compose_gives_the_trainer_no_network_and_no_secret():
    """The Compose file gives the trainer no network, no secret and read-only volumes."""
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    trainer, sidecar = services["trainer"], services["sidecar"]
    assert trainer["network_mode"] == "none"
    assert "secrets" not in trainer
    assert all(volume.endswith(":ro") for volume in trainer["volumes"])
    assert (sidecar["read_only"], sidecar["mem_limit"]) == (True, "512m")


def test_the_unit_notifies_and_reloads():
    """The systemd unit notifies, reloads by SIGHUP, and has longer to stop than the drain takes."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(ROOT / "deploy" / "systemd" / "streamer.service")
    service = parser["Service"]
    assert service["Type"] == "notify"
    assert "-HUP" in service["ExecReload"]
    assert int(service["TimeoutStopSec"]) > 20
    assert service["RuntimeDirectoryPreserve"] == "yes"
    check_variables(dict(pair.split("=", 1) for pair in service["Environment"].split()))


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_parse_and_name_real_variables(script):
    """Each script passes bash -n, and every STREAMER_ variable in it exists."""
    path = ROOT / "deploy" / script
    subprocess.run(["bash", "-n", str(path)], check=True)
    check_variables(dict.fromkeys(re.findall(r"STREAMER_[A-Z_]+", path.read_text()), "x"))


def test_systemd_finds_nothing_to_complain_about(tmp_path):
    """systemd-analyze verifies the unit without a complaint, with another program in place of streamer."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    text = (ROOT / "deploy" / "systemd" / "streamer.service").read_text()
    unit = tmp_path / "streamer.service"
    unit.write_text(text.replace("/opt/streamer/bin/streamer", "/bin/true"))
    found = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    complaints = [line for line in found.stderr.splitlines() if unit.name in line]
    assert (found.returncode, complaints) == (0, [])


@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck_finds_nothing_to_complain_about(script):
    """shellcheck reports nothing about the scripts at any severity."""
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck: apt-get install shellcheck")
    command = ["shellcheck", "--shell=bash", str(ROOT / "deploy" / script)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout == ""


def test_the_images_run_as_a_user_with_a_health_check():
    """Both images have two stages and a numeric user, by which Kubernetes sees that it is not root."""
    sidecar = (ROOT / "docker" / "Dockerfile").read_text()
    trainer = (ROOT / "docker" / "Dockerfile.trainer").read_text()
    for text in (sidecar, trainer):
        assert len(re.findall("^FROM ", text, re.MULTILINE)) == 2
        assert re.search(r"^USER \d+:\d+$", text, re.MULTILINE)
    assert "HEALTHCHECK" in sidecar
    assert "torch" not in re.sub(r"#.*", "", sidecar)
