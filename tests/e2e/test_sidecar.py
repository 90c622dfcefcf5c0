"""`streamer serve` as a process beside trainers: one variable to set, no credentials, other users and namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from streamer import StreamingDataLoader, StreamingDataset
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.errors import AccessDeniedError, CacheError, EngineUnavailableError, ProtocolVersionError, StreamerError
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.schedule import EpochSchedule
from tests.disks import small_disk, take_the_rest
from tests.e2e.keyed_s3 import KeyedS3

STRANGER = 12345
GROUP = 23456
SAMPLES = 40
SAMPLE_BYTES = 100_000
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
# Every folder above the tests lets every user through; a clone in /root does not.
for_strangers = pytest.mark.skipif(
    not all(folder.stat().st_mode & 0o001 for folder in Path(__file__).resolve().parents),
    reason="needs a clone that other users can read",
)


def command_lines() -> list[str]:
    """Returns the command lines of all processes, as `ps` shows them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


class Sidecar:
    """A real `streamer serve` with its folders, and trainers that use it.

    Args:
        root: Folder of everything, which other users may go through.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.socket = root / "run" / "engine.sock"
        self.cache = root / "cache"
        self.data = root / "data"
        self.config = root / "streamer.toml"
        self.log = root / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.trainers: list[subprocess.Popen[bytes]] = []
        self.http = f"127.0.0.1:{free_port()}"
        self.configure()

    def configure(self, cache: str = "", service: str = "", datasets: str | None = None) -> None:
        served = f"[[datasets]]\nurl = '{self.data}/'\n" if datasets is None else datasets
        self.config.write_text(
            f"[cache]\ndirectory = '{self.cache}'\nlimit_bytes = '64MiB'\n{cache}\n"
            f"[engine]\nsocket_path = '{self.socket}'\nsettle_seconds = 0.1\n"
            f"[service]\nhttp = '{self.http}'\ndrain_seconds = 5\n{service}\n{served}"
        )

    def start(
        self, *prefix: str, env: dict[str, str] | None = None, look_seconds: float = 5.0, versions: int = 0
    ) -> None:
        program = (
            f"import streamer.wire.messages as m; m.PROTOCOL += {versions}; "
            f"import streamer.service.lifecycle as s; s.LOOK_SECONDS = {look_seconds}; "
            "from streamer.cli.main import main; main()"
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-c", program, "serve", "--config", str(self.config)],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **(env or {})},
                cwd="/",
            )
        line = self.process.stdout.readline()
        assert line.startswith(b"listening:"), self.log.read_text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.stdout.close()
        code = self.process.wait(60)
        self.process = None
        return code

    def close(self) -> None:
        if self.process is not None:
            self.stop(signal.SIGKILL)
        for trainer in self.trainers:
            trainer.kill()
            trainer.communicate()

    def settings(self, **changes: object) -> ClientSettings:
        values = {"engine": f"unix:{self.socket}", "cache_dir": self.cache, "connect_seconds": 60, **changes}
        return ClientSettings(runtime_dir=self.root / "nobody", **values)

    def client(self, **changes: object) -> EngineClient:
        return EngineClient(self.settings(**changes))

    def trainer(self, task: dict, *prefix: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Starts a program that reads everything, whose environment has the engine's address and nothing else."""
        trainer = subprocess.Popen(
            [*prefix, sys.executable, str(Path(__file__).with_name("read_all.py")), json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={"STREAMER_ENGINE": f"unix:{self.socket}", "PATH": os.environ["PATH"], **(env or {})},
        )
        self.trainers.append(trainer)
        return trainer

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def command(self, *arguments: str) -> str:
        found = subprocess.run(
            [sys.executable, "-m", "streamer", *arguments, "--socket", str(self.socket)],
            capture_output=True,
            text=True,
            check=True,
        )
        return found.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def result(trainer: subprocess.Popen[bytes], said: bytes = b"") -> dict:
    out, err = trainer.communicate(said, timeout=240)
    assert trainer.returncode == 0, err.decode()
    return json.loads(out.splitlines()[-1])


def metric(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name)


@pytest.fixture
def sidecar() -> Iterator[Sidecar]:
    # Not tmp_path: only its owner may go through that.
    root = Path(tempfile.mkdtemp(prefix="sidecar-"))
    root.chmod(0o755)
    random = np.random.default_rng(5)
    for number in range(SAMPLES):
        path = root / "data" / "a" / f"{number:03}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(SAMPLE_BYTES))
    made = Sidecar(root)
    yield made
    made.close()
    shutil.rmtree(root)


def task_of(sidecar: Sidecar, **more: object) -> dict:
    return {"url": f"{sidecar.data}/", "epochs": 1, **more}


# ---------------------------------------------------------------- what it serves


def test_it_serves_its_datasets_and_nothing_else(sidecar):
    """A service denies urls outside of its [[datasets]], and does not use the options that a trainer sends."""
    (sidecar.root / "private").mkdir()
    (sidecar.root / "private" / "a.bin").write_bytes(b"secret")
    sidecar.start()
    with sidecar.client(storage_options={"key": "the trainer's"}) as client:
        client.manifest(GetManifest(0, [f"{sidecar.data}/"], "auto"))
        for url in (f"{sidecar.root}/private/", f"{sidecar.data}/../private/", "http://169.254.169.254/"):
            with pytest.raises(AccessDeniedError, match="datasets"):
                client.manifest(GetManifest(0, [url], "auto"))
    assert sidecar.stop() == 0
    assert sidecar.log.read_text().count("sends storage_options: not used") == 1


def test_without_datasets_it_serves_nothing_of_its_machine(sidecar):
    """A service without [[datasets]] warns at its start, and refuses files, loopback and link-local addresses."""
    sidecar.configure(datasets="")
    sidecar.start()
    assert "no [[datasets]] in the configuration" in sidecar.log.read_text()
    with sidecar.client(
        storage_options={"key": "k", "secret": "s", "endpoint_url": f"http://{sidecar.http}"}
    ) as client:
        for url in (f"{sidecar.data}/", f"file://{sidecar.data}/", "s3://bucket/train/"):
            with pytest.raises(AccessDeniedError, match="datasets"):
                client.manifest(GetManifest(0, [url], "auto"))
    with sidecar.client() as client:
        for url in (f"http://{sidecar.http}/metrics", "http://169.254.169.254/latest/meta-data/"):
            with pytest.raises(AccessDeniedError, match="datasets"):
                client.manifest(GetManifest(0, [url], "auto"))
        with pytest.raises(AccessDeniedError, match="local file"):  # which it would write
            client.manifest(GetManifest(0, ["s3://bucket/"], "auto", manifest=f"{sidecar.root}/private/"))
    assert sidecar.stop() == 0


@as_root
def test_without_datasets_it_serves_one_user(sidecar):
    """A service without [[datasets]] serves the first user that asks for data, and gives others statistics only."""
    sidecar.configure(datasets="", service="allow_uids = [1001, 1002]")
    sidecar.start()

    def asks() -> str:
        with sidecar.client(connect_seconds=1) as client:
            client.statistics()
            with pytest.raises(StreamerError) as refused:
                client.manifest(GetManifest(0, ["/etc/"], "auto"))
            return str(refused.value)

    assert "local file" in as_user(1001, asks)
    assert "it serves one user, and that is user 1001" in as_user(1002, asks)
    assert "local file" in as_user(1001, asks)
    assert "user 0 needs a service of its own" in asks()


def as_user(uid: int, call: Callable[[], str]) -> str:
    """Returns what a call returns or raises in a process of another user."""
    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            text = call()
        except BaseException as error:  # noqa: BLE001 - the parent looks at it
            text = repr(error)
        os.write(writes, text.encode()[:60_000])
        os._exit(0)
    os.close(writes)
    with open(reads) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return text


@pytest.mark.slow
def test_two_datasets_have_their_own_options(sidecar):
    """A service with two datasets finds each by its url, with options that the trainer does not know."""
    other = sidecar.root / "other"
    shutil.copytree(sidecar.data, other)
    sidecar.configure(
        datasets=f"[[datasets]]\nurl = '{sidecar.data}/'\n[[datasets]]\nurl = '{other}/'\n"
        "storage_options = { auto_mkdir = false }\n"
    )
    sidecar.start()
    one = result(sidecar.trainer(task_of(sidecar)))
    two = result(sidecar.trainer({"url": f"{other}/", "epochs": 1}))
    assert one["digests"] == two["digests"]
    with sidecar.client() as client:
        assert len(client.statistics()["datasets"]) == 2


# ---------------------------------------------------------------- its life


@pytest.mark.slow
def test_one_service_for_one_folder(sidecar):
    """A second service on a cache folder is refused with the reason, and the first goes on."""
    sidecar.configure(service="")
    sidecar.start()
    second = Sidecar(sidecar.root)
    second.config = sidecar.root / "second.toml"
    second.http = "off"
    second.socket = sidecar.root / "run" / "second.sock"
    second.configure()
    text = second.config.read_text().replace("drain_seconds = 5", "drain_seconds = 0")
    second.config.write_text(text)
    program = "import streamer.service.lifecycle as l; l.LOCK_SECONDS = 0.2; from streamer.cli.main import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", program, "serve", "--config", str(second.config)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert CacheError.__name__ not in found.stderr
    assert "in use by another engine" in found.stderr
    assert result(sidecar.trainer(task_of(sidecar)))["samples"] == SAMPLES


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), pytest.param(signal.SIGTERM, marks=pytest.mark.slow)],
)
def test_an_upgrade_in_mid_epoch_is_ridden_out(sidecar, number):
    """A trainer whose service is killed or ended in mid-epoch goes on with the next service, with the same samples.

    The next service takes the cache over.
    """
    sidecar.start()
    whole = result(sidecar.trainer(task_of(sidecar)))
    shutil.rmtree(sidecar.cache / "chunks")
    sidecar.stop(signal.SIGKILL)
    sidecar.start()
    trainer = sidecar.trainer(task_of(sidecar, pause_at=3))
    assert json.loads(trainer.stdout.readline()) == {"paused": 3}
    assert sidecar.stop(number) == (0 if number == signal.SIGTERM else -number)
    sidecar.start()
    found = result(trainer, b"\n")
    assert found["digests"] == whole["digests"]
    assert len(found["engines"]) == 2
    statistics = json.loads(sidecar.command("stat", "--json"))
    assert statistics["store_bytes"] < SAMPLES * SAMPLE_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("versions", [-1, 1])
def test_stat_looks_at_engines_of_neighbouring_versions(sidecar, versions):
    """`streamer stat` and `top` read an engine one protocol version apart, as in an upgrade node by node, but not two.

    A trainer one version apart is refused with ProtocolVersionError.
    """
    sidecar.start(versions=versions)
    assert json.loads(sidecar.command("stat", "--json"))["pid"] == sidecar.process.pid
    assert sidecar.command("top", "--count", "1").startswith("store ")
    with sidecar.client() as client, pytest.raises(ProtocolVersionError):
        client.statistics()
    sidecar.stop()
    sidecar.start(versions=2 * versions)
    with pytest.raises(subprocess.CalledProcessError):
        sidecar.command("stat", "--json")


@pytest.mark.slow
def test_a_late_start_is_waited_for(sidecar):
    """A trainer that starts before its service waits for it, as a container that is up first does."""
    trainer = sidecar.trainer(task_of(sidecar))
    sidecar.start()
    assert result(trainer)["samples"] == SAMPLES


def test_an_engine_that_stays_away_is_an_error_that_says_what_to_check(sidecar):
    """A client whose service does not come raises an error that says to check service, variable and mount."""
    with (
        sidecar.client(connect_seconds=0.3) as client,
        pytest.raises(EngineUnavailableError, match=r"after 0 s .*`streamer serve` running.*STREAMER_ENGINE.*mounted"),
    ):
        client.statistics()


@pytest.mark.slow
@as_root
@for_strangers
def test_the_sockets_folder_appears_with_its_rights(sidecar):
    """The socket's folder appears with its final rights, so that a waiting trainer of another user is not refused."""
    sidecar.configure(cache=f"group = '{GROUP}'")
    become = ("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", f"--groups={GROUP}")
    trainer = sidecar.trainer(task_of(sidecar), *become)
    sidecar.start()
    assert result(trainer)["samples"] == SAMPLES
    assert stat.S_IMODE(sidecar.socket.parent.stat().st_mode) == 0o750
    assert sorted(path.name for path in sidecar.root.iterdir() if path.name.startswith(".")) == []


@pytest.mark.slow
def test_sigterm_takes_the_socket_away_and_ends_in_order(sidecar):
    """SIGTERM ends a service with code 0, without socket or temporary files, and the next one knows every chunk."""
    sidecar.start()
    result(sidecar.trainer(task_of(sidecar)))
    assert sidecar.stop() == 0
    assert not sidecar.socket.exists()
    assert not list((sidecar.cache / "tmp").iterdir())
    assert "drained in" in sidecar.log.read_text()
    sidecar.start()
    assert result(sidecar.trainer(task_of(sidecar)))["samples"] == SAMPLES
    assert json.loads(sidecar.command("stat", "--json"))["store_bytes"] == 0


def test_sighup_reads_the_limit_again(sidecar):
    """SIGHUP makes a service read its limit again; a wrong configuration is logged and changes nothing."""
    sidecar.start()
    result(sidecar.trainer(task_of(sidecar)))
    with sidecar.client() as client:
        before = client.statistics()
        text = sidecar.config.read_text()
        sidecar.config.write_text(text.replace("64MiB", "3MB"))
        sidecar.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 60
        while (after := client.statistics())["limit_bytes"] == before["limit_bytes"]:
            assert time.monotonic() < deadline
        assert after["limit_bytes"] < 3_000_000
        assert after["kept_bytes"] <= after["limit_bytes"] < before["kept_bytes"]
        sidecar.config.write_text("[cash]")
        sidecar.process.send_signal(signal.SIGHUP)
        while "no section [cash]" not in sidecar.log.read_text():
            assert time.monotonic() < deadline
        assert client.statistics()["limit_bytes"] == after["limit_bytes"]
        # Part of it could be taken over: the new limit; who may connect by it cannot.
        refused = text.replace("64MiB", "2MB").replace("[cache]", "[cache]\ngroup = 'group-that-is-not-there'")
        sidecar.config.write_text(refused)
        sidecar.process.send_signal(signal.SIGHUP)
        while "group-that-is-not-there" not in sidecar.log.read_text():
            assert time.monotonic() < deadline
        assert client.statistics()["limit_bytes"] == after["limit_bytes"]


@as_root
@for_strangers
def test_a_service_starts_on_a_full_disk(sidecar):
    """A service on a full disk keeps its cache in memory and tells its clients, and SIGHUP does not raise its limit."""
    with small_disk(sidecar.root / "disk", "64k") as disk:
        take_the_rest(disk)
        sidecar.cache = disk / "cache"
        sidecar.configure(cache=f"group = '{GROUP}'")
        sidecar.start()
        assert "refuses writes (No space left on device): the cache is in memory" in sidecar.log.read_text()
        become = ("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", f"--groups={GROUP}")
        assert result(sidecar.trainer(task_of(sidecar, epochs=2), *become))["samples"] == 2 * SAMPLES
        with sidecar.client() as client:
            before = client.statistics()["limit_bytes"]
            memory = Path(client.welcome.root)
            assert memory.parent == Path("/dev/shm")
            sidecar.config.write_text(sidecar.config.read_text().replace("64MiB", "640GiB"))
            sidecar.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 60
            while "configuration read again" not in sidecar.log.read_text():
                assert time.monotonic() < deadline
            assert client.statistics()["limit_bytes"] == before <= 64 << 20
        sidecar.stop()
        assert not memory.exists()


@pytest.mark.slow
def test_a_rotated_secret_is_read(sidecar):
    """A service reads a rotated secret without a signal, and jobs go on with the new keys.

    The file is replaced as kubelet does, by renaming a link.
    """
    secrets = {name: sidecar.root / f"..{name}" for name in ("old", "new")}
    for name, folder in secrets.items():
        folder.mkdir()
        (folder / "bucket.json").write_text(json.dumps({"key": name, "secret": "secret"}))
    (sidecar.root / "..data").symlink_to(secrets["old"])
    (sidecar.root / "bucket.json").symlink_to("..data/bucket.json")
    store = KeyedS3({"bucket": {f"a/{number}.bin": b"x" * 100 for number in range(4)}}, {"bucket": "new"})
    sidecar.configure(
        datasets=f"[[datasets]]\nurl = 's3://bucket/'\nstorage_options_file = '{sidecar.root}/bucket.json'\n"
        f"storage_options = {{ endpoint_url = '{store.options('')['endpoint_url']}' }}\n"
    )
    with contextlib.closing(store):
        sidecar.start(look_seconds=0.05)
        with sidecar.client() as client:
            with pytest.raises(AccessDeniedError):
                client.manifest(GetManifest(0, ["s3://bucket/"], "auto"))
            (sidecar.root / "..next").symlink_to(secrets["new"])
            (sidecar.root / "..next").rename(sidecar.root / "..data")
            deadline = time.monotonic() + 60
            while "configuration read again" not in sidecar.log.read_text():
                assert time.monotonic() < deadline
            client.manifest(GetManifest(0, ["s3://bucket/"], "auto"))


@pytest.mark.slow
def test_systemd_is_notified_when_it_is_ready_and_when_it_stops(sidecar):
    """A service notifies systemd: READY once its socket answers, STOPPING before the drain."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(sidecar.root / "notify"))
        manager.settimeout(60)
        sidecar.start(env={"NOTIFY_SOCKET": str(sidecar.root / "notify")})
        assert manager.recv(100) == b"READY=1"
        assert sidecar.stop() == 0
        assert manager.recv(100) == b"STOPPING=1"


# ---------------------------------------------------------------- what it tells


def test_health_metrics_stat_and_top_show_the_same(sidecar):
    """/healthz, /readyz, /metrics, `stat` and `top` agree with the statistics of the engine."""
    sidecar.start()
    with sidecar.client() as client:
        result(sidecar.trainer(task_of(sidecar, epochs=2)))
        values = client.statistics()
        status, text = sidecar.get("/metrics")
    assert (status, sidecar.get("/healthz"), sidecar.get("/readyz")) == (200, (200, "ok\n"), (200, "ready\n"))
    assert sidecar.get("/elsewhere")[0] == 404
    assert metric(text, "streamer_store_received_bytes_total") == values["store_bytes"] == SAMPLES * SAMPLE_BYTES
    assert metric(text, "streamer_cache_needs_total") == values["needs"]
    assert metric(text, "streamer_cache_kept_bytes") == values["kept_bytes"]
    assert metric(text, "streamer_dataset_samples") == SAMPLES
    assert metric(text, "streamer_connections") == 1
    shown = sidecar.command("stat")
    assert "store" in shown
    assert str(SAMPLES) in shown
    lines = sidecar.command("top", "--count", "2", "--interval", "0.1").splitlines()
    assert len(lines) == 2
    assert all("store" in line and "hits" in line and "waiting" in line for line in lines)


def test_without_an_engine_stat_says_so(sidecar):
    """`streamer stat` without an engine ends with code 5 and says so, and starts none."""
    found = subprocess.run(
        [sys.executable, "-m", "streamer", "stat"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "STREAMER_RUNTIME_DIR": str(sidecar.root / "run"), "STREAMER_ENGINE": ""},
    )
    assert (found.returncode, found.stdout) == (5, "")
    assert "no engine runs here" in found.stderr


# ---------------------------------------------------------------- bounds of the cgroup


@contextlib.contextmanager
def own_group(controller: str, older: dict[str, str], newer: dict[str, str]) -> Iterator[Path]:
    """Yields a cgroup with these limits, of version 1 or 2, whichever this machine has."""
    root = Path("/sys/fs/cgroup")
    limits = newer
    if (root / controller).is_dir():
        root, limits = root / controller, older
    group = root / f"streamer-test-{os.getpid()}"
    try:
        group.mkdir()
        for file, text in limits.items():
            (group / file).write_text(text)
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no cgroup of our own here: {error}")
    yield group
    deadline = time.monotonic() + 60
    while True:  # a group with a process that is still leaving is busy
        try:
            group.rmdir()
            return
        except OSError:
            assert time.monotonic() < deadline


@pytest.fixture
def half_a_cpu() -> Iterator[Path]:
    older = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}
    with own_group("cpu", older, {"cpu.max": "50000 100000"}) as group:
        yield group


@pytest.fixture
def half_a_gigabyte() -> Iterator[Path]:
    limit = str(512 << 20)
    with own_group("memory", {"memory.limit_in_bytes": limit}, {"memory.max": limit, "memory.swap.max": "0"}) as group:
        yield group


@pytest.mark.slow
def test_a_quota_of_the_cgroup_bounds_its_threads(half_a_cpu, sidecar):
    """A service with half a CPU in its cgroup counts on one core, bounds its threads by that, and serves trainers."""
    sidecar.start("sh", "-c", f'echo $$ > {half_a_cpu}/cgroup.procs && exec "$@"', "sh")
    assert result(sidecar.trainer(task_of(sidecar)))["samples"] == SAMPLES
    values = json.loads(sidecar.command("stat", "--json"))
    assert values["usable_cores"] == 1
    # The loop, 5 for blocking calls, 2 for files, one for the catalog, 4 of libuv's, 1 of obstore's; numpy's own.
    assert values["threads"] <= 14 + len(os.sched_getaffinity(0))
    assert sidecar.stop() == 0


def memory_of(group: Path) -> tuple[int, int]:
    """Returns the most that a group has held, page cache included, and how often it had to kill for memory."""
    if (group / "memory.peak").exists():
        events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
        return int((group / "memory.peak").read_text()), int(events["oom_kill"])
    control = dict(line.split() for line in (group / "memory.oom_control").read_text().splitlines())
    return int((group / "memory.max_usage_in_bytes").read_text()), int(control.get("oom_kill", 0))


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_512_mib_suffice_at_full_speed(half_a_gigabyte, sidecar, capsys):
    """A service stays within 512 MiB while 1.5 GB in chunks of 8 MiB, all asked for at once, come at full speed."""
    files, size = 192, 8 << 20
    big = sidecar.root / "big" / "a"
    big.mkdir(parents=True)
    for number in range(files):
        with (big / f"{number:03}.bin").open("wb") as file:
            file.truncate(size - number)  # sparse: the source costs neither disk nor time
    sidecar.configure(datasets=f"[[datasets]]\nurl = '{big.parent}/'\n")
    sidecar.config.write_text(sidecar.config.read_text().replace("64MiB", "800MiB"))
    sidecar.start("sh", "-c", f'echo $$ > {half_a_gigabyte}/cgroup.procs && exec "$@"', "sh")
    with sidecar.client() as client:
        manifest = Manifest.open(client.manifest(GetManifest(0, [f"{big.parent}/"], "auto")))
        session = client.open_session(OpenSession(0, "", dataset=manifest.digest, consumer="rank 0"))
        steps = np.arange(manifest.chunks, dtype=np.int64)
        session.extend(EpochSchedule(0, steps.astype(np.uint32), steps, steps))
        session.want(manifest.chunks - 1)
        most = 0
        for step in steps.tolist():
            session.wait(step, 60)
            session.done(step + 1)
            most = max(most, client.statistics()["anonymous_bytes"])
        values = client.statistics()
    peak, kills = memory_of(half_a_gigabyte)
    with capsys.disabled():
        print(
            f"\n{values['store_bytes'] / 1e6:.0f} MB: anonymous at most {most / 1e6:.0f} MB, peak of the cgroup ",
            end="",
        )
        print(f"{peak / 1e6:.0f} MB with page cache, {kills} kills")
    assert values["pid"] == sidecar.process.pid
    assert (kills, values["store_bytes"]) == (0, manifest.total_bytes)
    assert most < 400 << 20


# ---------------------------------------------------------------- other users, other namespaces


@pytest.mark.slow
def test_folders_and_files_are_the_owners_alone(sidecar):
    """Cache, chunks and socket of a service have modes 0700, 0600 and 0600; with a group 0750, 0640 and 0660."""
    for cache, modes in [("", (0o700, 0o600, 0o600)), (f"group = '{os.getegid()}'", (0o750, 0o640, 0o660))]:
        sidecar.configure(cache=cache)
        shutil.rmtree(sidecar.cache, ignore_errors=True)
        sidecar.start()
        result(sidecar.trainer(task_of(sidecar)))
        chunk = next(sidecar.cache.glob("chunks/*/*.chunk"))
        found = [stat.S_IMODE(path.stat().st_mode) for path in (sidecar.cache, chunk, sidecar.socket)]
        assert tuple(found) == modes
        sidecar.stop()


@as_root
@for_strangers
def test_a_stranger_is_refused_before_and_at_the_socket(sidecar):
    """Another user is refused by the socket's mode, or by the service where the mode lets the user through."""
    sidecar.start()
    (sidecar.root / "run").chmod(0o755)
    become = ("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups")
    refused = sidecar.trainer(task_of(sidecar), *become)
    assert b"no permission to connect" in refused.communicate(timeout=240)[1]
    sidecar.socket.chmod(0o666)
    refused = sidecar.trainer(task_of(sidecar), *become)
    assert f"user {STRANGER} may not use this engine".encode() in refused.communicate(timeout=240)[1]
    assert metric(sidecar.get("/metrics")[1], "streamer_connections_refused_total") == 1


@pytest.mark.slow
@as_root
@for_strangers
def test_a_trainer_of_another_user_reads_but_cannot_write(sidecar):
    """A trainer in the service's group reads without a right on the data, and cannot write to the cache."""
    sidecar.configure(cache=f"group = '{GROUP}'")
    sidecar.data.chmod(0o700)
    sidecar.start()
    become = ("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", f"--groups={GROUP}")
    assert result(sidecar.trainer(task_of(sidecar, epochs=2), *become))["samples"] == 2 * SAMPLES
    refused = subprocess.run([*become, "touch", str(sidecar.cache / "chunks" / "x")], check=False, capture_output=True)
    assert b"Permission denied" in refused.stderr


@pytest.mark.slow
@as_root
@for_strangers
def test_another_pid_namespace_and_a_read_only_mount_elsewhere(sidecar):
    """A trainer in namespaces of its own, as in a pod, reads the cache from a read-only mount at another path.

    It is pid 1 there, and does not see the path that the engine has.
    """
    probe = subprocess.run(["unshare", "--pid", "--mount", "--fork", "true"], check=False, capture_output=True)
    if probe.returncode:
        pytest.skip(f"no namespaces here: {probe.stderr.decode().strip()}")
    sidecar.configure(cache=f"group = '{GROUP}'")
    sidecar.start()
    elsewhere = sidecar.root / "elsewhere"
    elsewhere.mkdir()
    script = (
        f"mount --bind {sidecar.cache} {elsewhere} && mount -o remount,ro,bind {elsewhere} && "
        f"mount -t tmpfs none {sidecar.cache} && "
        f'exec setpriv --reuid={STRANGER} --regid={STRANGER} --groups={GROUP} "$@"'
    )
    namespaces = ("unshare", "--pid", "--mount", "--fork", "--mount-proc", "sh", "-c", script, "sh")
    found = result(sidecar.trainer(task_of(sidecar), *namespaces, env={"STREAMER_CACHE_DIR": str(elsewhere)}))
    assert found["samples"] == SAMPLES


@pytest.mark.slow
def test_a_token_is_shown_from_its_file(sidecar):
    """A service with a token serves a trainer that has its file; without it the error names STREAMER_TOKEN_FILE."""
    token = sidecar.root / "token"
    token.write_text("hunter2\n")
    sidecar.configure(service=f"token_file = '{token}'")
    sidecar.start()
    assert result(sidecar.trainer(task_of(sidecar), env={"STREAMER_TOKEN_FILE": str(token)}))["samples"] == SAMPLES
    with sidecar.client() as client, pytest.raises(EngineUnavailableError, match="STREAMER_TOKEN_FILE"):
        client.statistics()


def test_auto_starts_an_engine_of_its_own(sidecar):
    """engine="auto" without a service starts an engine process of its own, which ends with its client."""
    settings = sidecar.settings(engine="auto", cache_bytes=64 << 20, grace_seconds=0.1)
    with EngineClient(settings) as client:
        client.manifest(GetManifest(0, [f"{sidecar.data}/"], "auto"))
        pid = client.statistics()["pid"]
        assert pid != os.getpid()
        engine = os.pidfd_open(pid)
    try:
        assert select.select([engine], [], [], 60)[0]  # it has closed its catalog as well
    finally:
        os.close(engine)
    assert not settings.socket_path.exists()


# ---------------------------------------------------------------- secrets


def test_the_error_that_ends_a_job_is_in_the_log_and_on_the_page(sidecar):
    """An error that ends a job is in the log and the statistics of the page once for all ranks, with the job's name.

    Another job has a line of its own.
    """
    sidecar.start()
    shutil.rmtree(sidecar.data / "a")
    for job in ("first", "first", "second"):
        with sidecar.client(job=job) as client, pytest.raises(StreamerError, match="no objects below"):
            client.manifest(GetManifest(0, [f"{sidecar.data}/"], "auto"))
    values = json.loads(sidecar.get("/statistics.json")[1])
    texts = [entry["text"] for entry in values["warnings"] if entry["level"] == "ERROR"]
    assert [text.partition(" got ")[0] for text in texts] == ["job second", "job first"]
    assert sidecar.log.read_text().count("ERROR") == 2
    assert values["cache_dir"] == str(sidecar.cache)
    assert values["host"] == socket.gethostname()
    assert 0 < values["disk_free_bytes"] < values["disk_bytes"]


def refused(sample: dict) -> dict:
    raise ArithmeticError(f"no sense in {sample['__key__']}")


def refused_batch(batch: object) -> object:
    raise ArithmeticError("no sense in it")


@pytest.mark.parametrize(
    ("workers", "options", "loader_options"),
    [
        (0, {"transform": refused}, {}),
        pytest.param(2, {"transform": refused}, {}, marks=pytest.mark.slow),
        pytest.param(2, {}, {"device_transform": refused_batch}, marks=pytest.mark.slow),
    ],
    ids=["in the trainer", "in a worker", "on the way to the device"],
)
def test_an_error_that_only_the_trainer_sees_is_there_too(sidecar, monkeypatch, workers, options, loader_options):
    """An error of user code in trainer, worker or device transform is in log and statistics, with its type and text."""
    monkeypatch.setenv("STREAMER_JOB", "trains")
    sidecar.start()
    dataset = StreamingDataset(
        f"{sidecar.data}/",
        cache_dir=sidecar.cache,
        engine=f"unix:{sidecar.socket}",
        shuffle=False,
        decode=None,
        **options,
    )
    with contextlib.closing(dataset), StreamingDataLoader(dataset, 4, workers, **loader_options) as loader:
        batches = iter(loader)
        for _ in range(2 if options else 1):
            with pytest.raises(ArithmeticError):
                next(batches)
        texts = [entry["text"] for entry in json.loads(sidecar.get("/statistics.json")[1])["warnings"]]
    found = [text for text in texts if "ArithmeticError" in text]
    assert found[-1].startswith("job trains, rank 0 got ArithmeticError: no sense in ")
    assert sidecar.log.read_text().count("got ArithmeticError") == (2 if options else 1)


def test_a_secret_is_nowhere_to_be_seen(sidecar):
    """Key, token and signed url are in no log, metric, error, statistic, process list or file of the cache."""
    canary = "hunter2hunter2"
    (sidecar.root / "token").write_text(canary)
    (sidecar.root / "options.json").write_text(json.dumps({"key": "AKIA", "secret": canary}))
    port = free_port()  # no server listens: every request fails, and every failure tells
    sidecar.configure(
        cache="",
        service=f"token_file = '{sidecar.root}/token'",
        datasets=f"[[datasets]]\nurl = 's3://bucket/train/'\nstorage_options_file = '{sidecar.root}/options.json'\n"
        f"storage_options = {{ endpoint_url = 'http://127.0.0.1:{port}' }}\n"
        f"[[datasets]]\nurl = 'http://127.0.0.1:{port}/a.tar?sig={canary}'\n"
        f"[[datasets]]\nurl = 'http://u:{canary}@127.0.0.1:{port}/x/'\n"
        "[fetch]\noutage_seconds = 0.1\n",
    )
    sidecar.start(env={"STREAMER_LOG": "debug"})
    seen = []
    client_options = {"secret": canary, "endpoint_url": "http://127.0.0.1:1"}
    with sidecar.client(token_file=sidecar.root / "token", storage_options=client_options) as client:
        urls = ["s3://bucket/train/", f"http://127.0.0.1:{port}/a.tar?sig={canary}", f"https://u:{canary}@host/x"]
        urls.append(f"http://u:{canary}@127.0.0.1:{port}/x/a.tar")
        for url in urls:
            with pytest.raises(Exception) as failed:
                client.manifest(GetManifest(0, [url], "webdataset"))
            seen.append(f"{failed.value!r} {failed.value.details}")
        seen.append(json.dumps(client.statistics()))
        seen.append(sidecar.get("/metrics")[1])
        seen.append(sidecar.get("/statistics.json")[1])
        assert json.loads(seen[-1])["warnings"]
        seen += command_lines()
        seen.append(Path(f"/proc/{sidecar.process.pid}/environ").read_text())
    sidecar.process.send_signal(signal.SIGHUP)
    sidecar.stop()
    seen.append(sidecar.log.read_text())
    seen += [path.read_bytes().decode(errors="replace") for path in sidecar.cache.rglob("*") if path.is_file()]
    with contextlib.suppress(ValueError):
        seen.remove("")
    assert [text for text in seen if canary in text] == []
