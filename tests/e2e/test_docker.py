"""The Docker images with real containers: what is in them, two ranks without rights, a sidecar killed in mid-epoch.

    make test-docker

Uses the Docker engine that answers, or starts one of its own (Debian: apt-get install docker.io debootstrap; root). A
base image that cannot be pulled is made with debootstrap; packages come as wheels that this machine's pip has built.
$DOCKER_TEST_CACHE keeps both between runs. The bucket is moto on this machine; containers share its network.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
PULLED = "python:3.11-slim-bookworm"
MADE = "streamer-test-base"
MEMORY_BYTES = 512 << 20
MOST_IMAGE_BYTES = 440 * 10**6
SIDECAR_ID, TRAINER_ID = 10001, 20001


def run(*command: str | Path, stdin: bytes = b"", seconds: float = 900, **more) -> str:
    found = subprocess.run(command, input=stdin, capture_output=True, timeout=seconds, check=False, **more)
    assert found.returncode == 0, f"{command}: {found.stdout.decode()[-3000:]} {found.stderr.decode()[-3000:]}"
    return found.stdout.decode()


def docker(*arguments: str | Path, **more) -> str:
    return run("docker", *arguments, env={**os.environ, "DOCKER_BUILDKIT": "0"}, **more)


def answers() -> bool:
    return subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=30).returncode == 0


@pytest.fixture(scope="module")
def cache() -> Iterator[Path]:
    """Yields the folder where base image and wheels are kept."""
    if kept := os.environ.get("DOCKER_TEST_CACHE"):
        Path(kept).mkdir(parents=True, exist_ok=True)
        yield Path(kept)
        return
    with tempfile.TemporaryDirectory(prefix="docker-test-") as made:
        yield Path(made)


@pytest.fixture(scope="module", autouse=True)
def engine() -> Iterator[None]:
    """Makes sure that a Docker engine answers."""
    if shutil.which("docker") is None:
        pytest.skip("no docker: apt-get install docker.io debootstrap")
    if answers():
        yield
        return
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        pytest.skip("no Docker engine answers and none can be started: apt-get install docker.io, as root")
    with own_engine():
        yield


@contextlib.contextmanager
def own_engine() -> Iterator[None]:
    """Runs a Docker engine as long as the tests, with its own socket and folders; without bridges where need be."""
    with tempfile.TemporaryDirectory(prefix="dockerd-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{folder}/sock")
        daemon = started_engine(folder, "--ip6tables=false") or started_engine(
            folder, "--iptables=false", "--bridge=none"
        )
        assert daemon is not None, Path(folder, "log").read_text()[-3000:]
        try:
            yield
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(60)
            # It may leave its network namespace mounted, which rmtree cannot remove.
            for place in Path(folder, "exec", "netns").glob("*"):
                subprocess.run(["umount", place], capture_output=True, check=False)


def started_engine(folder: str, *options: str) -> subprocess.Popen[bytes] | None:
    """Returns a daemon that answers; None if it ended."""
    command = ["dockerd", *options, "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
    with Path(folder, "log").open("ab") as log:
        daemon = subprocess.Popen(
            [*command, "-H", f"unix://{folder}/sock", "--pidfile", f"{folder}/pid"],
            stdout=log,
            stderr=log,
        )
    deadline = time.monotonic() + 60
    while not answers():
        if daemon.poll() is not None:
            return None
        assert time.monotonic() < deadline, "dockerd does not answer"
        time.sleep(0.2)
    return daemon


# ---------------------------------------------------------------- images


@pytest.fixture(scope="module")
def base(engine, cache) -> str:
    """Returns the official image, or one made of Debian's packages."""
    if subprocess.run(["docker", "pull", "-q", PULLED], capture_output=True, check=False, timeout=300).returncode == 0:
        return PULLED
    if shutil.which("debootstrap") is None:
        pytest.skip(f"{PULLED} cannot be pulled and there is no debootstrap: apt-get install debootstrap")
    archive = cache / "base.tar"
    if not archive.exists():
        make_base(archive)
    docker("import", archive, MADE)
    return MADE


def make_base(archive: Path) -> None:
    """Makes an image of Debian with Python, without what a slim image leaves out."""
    with tempfile.TemporaryDirectory(prefix="rootfs-") as folder:
        run("debootstrap", "--variant=minbase", "--include=ca-certificates,python3,python3-venv", "bookworm", folder)
        for pattern in ("var/lib/apt/lists/*", "var/cache/apt/*", "usr/share/doc/*", "usr/share/man/*"):
            run("sh", "-c", f"rm -rf {folder}/{pattern}")
        run("sh", "-c", f"rm -rf {folder}/usr/share/locale/* {folder}/var/log/*")
        run("tar", "-C", folder, "-cf", archive, ".")


def dependencies() -> str:
    """Returns a digest of what is asked for, because wheels of an older list are of no use."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = json.dumps([project["dependencies"], project["optional-dependencies"]])
    return hashlib.blake2b((asked + (ROOT / "constraints.txt").read_text()).encode(), digest_size=6).hexdigest()


def build_image(name: str, base: str, cache: Path, extras: str) -> str:
    """Builds the base with wheels of everything that `extras` need, so that a build reaches no network."""
    wheels = cache / f"wheels-{extras.replace(',', '-')}-{dependencies()}"
    if not wheels.exists():
        pinned = ("-c", "constraints.txt", "-w", wheels)
        run(sys.executable, "-m", "pip", "wheel", "-q", *pinned, f".[{extras}]", cwd=ROOT)
    run(sys.executable, "-m", "pip", "wheel", "-q", "-w", wheels, "setuptools>=77", "wheel")
    recipe = (
        f"FROM {base}\nCOPY . /wheels\nRUN rm -f /wheels/streamer_data-*.whl && "
        "printf '[global]\\nno-index = true\\nfind-links = /wheels\\n' > /etc/pip.conf\n"
    )
    with tempfile.TemporaryDirectory(prefix="recipe-") as folder:
        Path(folder, "Dockerfile").write_text(recipe)
        docker("build", "-q", "-t", name, "-f", f"{folder}/Dockerfile", wheels)
    return name


def build(name: str, file: str, base: str, build_base: str, extras: str) -> str:
    images = ("--build-arg", f"PYTHON_IMAGE={base}", "--build-arg", f"BUILD_IMAGE={build_base}")
    more = ("--build-arg", f"EXTRAS={extras}")
    docker("build", "-q", "--network", "host", *images, *more, "-t", name, "-f", ROOT / "docker" / file, ROOT)
    return name


@pytest.fixture(scope="module")
def image(base, cache) -> str:
    extras = "stores,peers,serve,cli,codecs,parquet"
    return build("streamer-test", "Dockerfile", base, build_image("build-sidecar", base, cache, extras), extras)


@pytest.fixture(scope="module")
def trainer_image(base, cache) -> str:
    return build("trainer-test", "Dockerfile.trainer", base, build_image("build-torch", base, cache, "torch"), "torch")


def test_the_image_is_small_and_holds_no_torch(image):
    """The image is below its bound, has pyarrow and cramjam but neither torch nor pip, and its user is not root."""
    (found,) = json.loads(docker("inspect", image))
    assert found["Size"] < MOST_IMAGE_BYTES, f"{found['Size'] / 1e6:.0f} MB"
    assert found["Config"]["User"] == f"{SIDECAR_ID}:{SIDECAR_ID}"
    assert found["Config"]["Healthcheck"]
    code = "import importlib.util as u; print(*[m for m in ('torch', 'pip', 'pyarrow', 'cramjam') if u.find_spec(m)])"
    found_here = docker("run", "--rm", "--network", "none", "--entrypoint", "python3", image, "-c", code)
    assert found_here.split() == ["pyarrow", "cramjam"]
    print(f"image: {found['Size'] / 1e6:.0f} MB")


# ---------------------------------------------------------------- the scenario


class Bucket:
    """moto's S3 server on this machine: real HTTP, and buckets in memory."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 30
        while not self._is_up():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def _is_up(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=1).close()
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    made = Bucket()
    yield made
    made.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields cache, socket and configuration, as volumes that the sidecar's user owns."""
    made = Path(tempfile.mkdtemp(prefix="scenario-"))
    made.chmod(0o755)
    for name in ("cache", "run"):
        (made / name).mkdir()
        os.chown(made / name, SIDECAR_ID, SIDECAR_ID)
        (made / name).chmod(0o750)
    yield made
    shutil.rmtree(made)


@contextlib.contextmanager
def container(name: str, *arguments: str | Path) -> Iterator[str]:
    docker("run", "-d", "--name", name, *arguments)
    try:
        yield name
    finally:
        docker("rm", "-f", "-v", name)


def example():
    spec = importlib.util.spec_from_file_location("sidecar_trainer", ROOT / "examples" / "sidecar_trainer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stat(name: str) -> dict:
    return json.loads(docker("exec", name, "streamer", "stat", "--json"))


def wait_until(reached, what: str, *containers: str, seconds: float = 120) -> None:
    """Waits until a condition is reached, or fails with what the containers have said so far."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            logs = [subprocess.run(["docker", "logs", name], capture_output=True, check=False) for name in containers]
            pytest.fail(f"{what}: {[(log.stdout[-2000:], log.stderr[-2000:]) for log in logs]}")
        time.sleep(0.2)


def is_up(name: str) -> bool:
    found = subprocess.run(["docker", "exec", name, "streamer", "stat", "--json"], capture_output=True, check=False)
    return found.returncode == 0


def test_two_ranks_without_rights_survive_a_killed_sidecar(image, trainer_image, bucket, folder):
    """Two ranks with neither network nor write access read two epochs exactly, although the sidecar is killed.

    The sidecar stays within 512 MiB and ends with code 0, and no log has the secret.
    """
    trainer = example()
    trainer.fill(bucket.endpoint)
    (folder / "streamer.toml").write_text(
        "[cache]\nlimit_bytes = '30MB'\n[[datasets]]\nurl = 's3://train/data/'\n"
        f"storage_options = {{ endpoint_url = '{bucket.endpoint}', key = 'key', secret = 'hunter2hunter2' }}\n"
    )
    volumes = ("-v", f"{folder}/cache:/cache", "-v", f"{folder}/run:/run/streamer")
    read_only = ("-v", f"{folder}/cache:/cache:ro", "-v", f"{folder}/run:/run/streamer:ro")
    hard = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
    sidecar = (*hard, "--network", "host", "--memory", str(MEMORY_BYTES), "--memory-swap", str(MEMORY_BYTES))
    with (
        container(
            "sidecar-test", *sidecar, *volumes, "-v", f"{folder}/streamer.toml:/etc/streamer.toml:ro", image,
            "--config", "/etc/streamer.toml",
        ) as engine,
        container(
            "trainer-test", "--network", "none", "--group-add", str(SIDECAR_ID), "--shm-size", "1g", *read_only,
            trainer_image, "--epochs", "2", "--step-seconds", "0.2",
        ) as ranks,
    ):  # fmt: skip
        wait_until(lambda: is_up(engine), "the sidecar answers", engine)
        wait_until(lambda: sum(s["done"] for s in stat(engine)["sessions"]) >= 10, "ten batches", engine, ranks)
        docker("kill", "-s", "KILL", engine)
        docker("start", engine)
        wait_until(lambda: is_up(engine), "the sidecar answers again", engine)
        (refused,) = [docker("exec", ranks, "sh", "-c", "touch /cache/x 2>&1; true")]
        assert "Read-only" in refused or "denied" in refused
        assert docker("wait", ranks, seconds=300).strip() == "0", docker("logs", ranks)
        values = stat(engine)
        (state,) = json.loads(docker("inspect", engine))
        logs = run("docker", "logs", ranks)
        log = subprocess.run(["docker", "logs", engine], capture_output=True, text=True, check=True)
        peak = peak_bytes(state["Id"])
        docker("stop", "-t", "30", engine)
        (stopped,) = json.loads(docker("inspect", engine))
    assert_exact(trainer, logs)
    assert not state["State"]["OOMKilled"]
    assert stopped["State"]["ExitCode"] == 0
    assert "hunter2" not in log.stdout + log.stderr + logs
    print(
        f"memory: peak of the cgroup {peak / 1e6:.0f} MB of {MEMORY_BYTES / 1e6:.0f}, "
        f"anonymous {values['anonymous_bytes'] / 1e6:.0f} MB; store bytes {values['store_bytes'] / 1e6:.1f} MB"
    )


def assert_exact(trainer, logs: str) -> None:
    """Checks that both ranks together had every sample of the bucket once, in each of two epochs."""
    lines = [json.loads(line[line.index("{") :]) for line in logs.splitlines() if '{"rank"' in line]
    expected = 0
    for name, content in trainer.contents():
        expected ^= trainer.fingerprint(name, content)
    for epoch in range(2):
        mine = [line for line in lines if line["epoch"] == epoch]
        assert len(mine) == 2, logs[-3000:]
        assert sum(line["samples"] for line in mine) == trainer.SAMPLES
        assert int(mine[0]["digest"], 16) ^ int(mine[1]["digest"], 16) == expected


def peak_bytes(container_id: str) -> int:
    """Returns the most that the container's cgroup held, page cache included; -1 where the kernel does not tell."""
    for path in (
        Path(f"/sys/fs/cgroup/memory/docker/{container_id}/memory.max_usage_in_bytes"),
        Path(f"/sys/fs/cgroup/system.slice/docker-{container_id}.scope/memory.peak"),
        Path(f"/sys/fs/cgroup/docker/{container_id}/memory.peak"),
    ):
        if path.exists():
            return int(path.read_text())
    return -1


# ---------------------------------------------------------------- the compose file


def compose_command() -> list[str]:
    """Returns the command of Docker's plugin, or Debian's docker-compose."""
    for command in (["docker", "compose"], ["docker-compose"]):
        asked = shutil.which(command[0]) and subprocess.run([*command, "version"], capture_output=True, check=False)
        if asked and asked.returncode == 0:
            return command
    pytest.skip("no compose: apt-get install docker-compose")


@pytest.fixture(scope="module")
def store_image(base, cache) -> str:
    """Returns the S3 server of the compose file, built here where its image cannot be pulled."""
    name = "motoserver/moto:5.2.5"
    if subprocess.run(["docker", "pull", "-q", name], capture_output=True, check=False, timeout=300).returncode == 0:
        return name
    wheels = cache / "wheels-store"
    if not wheels.exists():
        run(sys.executable, "-m", "pip", "wheel", "-q", "-w", wheels, "moto[server]==5.2.5")
    recipe = (
        f"FROM {base}\nCOPY . /wheels\nRUN python3 -m venv /opt/moto && "
        "/opt/moto/bin/pip install -q --no-index --find-links /wheels 'moto[server]'\n"
        'ENTRYPOINT ["/opt/moto/bin/moto_server", "-H", "0.0.0.0", "-p", "5000"]\n'
    )
    with tempfile.TemporaryDirectory(prefix="recipe-") as folder:
        Path(folder, "Dockerfile").write_text(recipe)
        docker("build", "-q", "-t", "store-test", "-f", f"{folder}/Dockerfile", wheels)
    return "store-test"


class Composition:
    """The compose file with images that are built already.

    Args:
        options: File with the storage options.
    """

    def __init__(self, options: Path, **images: str) -> None:
        self._command = [*compose_command(), "-p", "streamer-compose-test", "-f", str(ROOT / "docker" / "compose.yaml")]
        self._env = {**os.environ, **images, "BUCKET_OPTIONS_FILE": str(options), "STEP_SECONDS": "0.2"}

    def __call__(self, *arguments: str) -> str:
        return run(*self._command, *arguments, env=self._env)

    def container(self, service: str) -> str:
        """Returns the container of a service; "" while there is none."""
        return self("ps", "-q", service).strip()


def has_bridges() -> bool:
    made = subprocess.run(["docker", "network", "create", "streamer-probe"], capture_output=True, check=False)
    subprocess.run(["docker", "network", "rm", "streamer-probe"], capture_output=True, check=False)
    return made.returncode == 0


def test_the_compose_file_as_it_stands(image, trainer_image, store_image, tmp_path):
    """The compose file runs bucket, sidecar and two ranks on their own network, and restarts a killed sidecar.

    Both epochs are exact, although the kill is in the first.
    """
    if not has_bridges():
        pytest.skip("this Docker engine can make no bridge network; the scenario above ran with plain docker run")
    options = tmp_path / "bucket.json"
    options.write_text(json.dumps({"key": "key", "secret": "hunter2hunter2"}))
    compose = Composition(options, STREAMER_IMAGE=image, TRAINER_IMAGE=trainer_image, STORE_IMAGE=store_image)
    try:
        compose("up", "-d")
        engine, ranks = compose.container("sidecar"), compose.container("trainer")
        wait_until(lambda: is_up(engine), "the sidecar answers", engine)
        wait_until(lambda: sum(s["done"] for s in stat(engine)["sessions"]) >= 10, "ten batches", engine, ranks)
        # As the kernel would: `docker kill` counts as the operator's wish, and nothing restarts.
        os.kill(json.loads(docker("inspect", engine))[0]["State"]["Pid"], signal.SIGKILL)
        wait_until(lambda: json.loads(docker("inspect", engine))[0]["RestartCount"] == 1, "a restart", engine)
        assert docker("wait", ranks, seconds=300).strip() == "0", docker("logs", ranks)
        (state,) = json.loads(docker("inspect", engine))
        peak, values = peak_bytes(state["Id"]), stat(engine)
        assert_exact(example(), run("docker", "logs", ranks))
        log = subprocess.run(["docker", "logs", engine], capture_output=True, text=True, check=True)
    finally:
        compose("down", "-v", "-t", "5")
    assert state["HostConfig"]["Memory"] == MEMORY_BYTES
    assert not state["State"]["OOMKilled"]
    assert "hunter2" not in log.stdout + log.stderr
    print(
        f"compose: peak of the cgroup {peak / 1e6:.0f} MB of {MEMORY_BYTES / 1e6:.0f}, anonymous "
        f"{values['anonymous_bytes'] / 1e6:.0f} MB, 1 restart, both epochs exact"
    )
