"""Processes that start where something is missing or strange: each trains as always, or says in one line what is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

SAMPLES = 40

TRAINER = """
import os, signal, sys
from pathlib import Path

def numbers(samples):
    return [int(one["cls"]) for one in samples]

def train(workers, **options):
    from streamer import StreamingDataLoader, StreamingDataset
    source = StreamingDataset(sys.argv[1], cache_dir=sys.argv[2], cache_bytes="100MB", decode={"bin": None}, **options)
    with StreamingDataLoader(source, 5, workers, collate_fn=numbers, pin_memory=False) as loader:
        assert sorted(sum(loader, [])) == list(range(40))
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four tars."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(4):
        with tarfile.open(folder / f"part-{number}.tar", "w") as tar:
            for sample in range(number * 10, number * 10 + 10):
                for extension, content in (("cls", str(sample).encode()), ("bin", bytes(30_000))):
                    entry = tarfile.TarInfo(f"{sample:04d}.{extension}")
                    entry.size = len(content)
                    tar.addfile(entry, BytesIO(content))
    return folder


def run(data: Path, program: str, prefix: tuple[str, ...] = (), **variables: str) -> tuple[int, str]:
    """Runs a trainer; returns its exit code and what it wrote to standard error."""
    script = data.parent / "train.py"
    script.write_text(TRAINER + program)
    runtime = data.parent / "runtime"
    runtime.mkdir(exist_ok=True)
    environment = {**os.environ, "STREAMER_RUNTIME_DIR": str(runtime), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [*prefix, sys.executable, str(script), str(data), str(data.parent / "cache")],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment,
        cwd=data.parent,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr.decode(errors="replace")


def closing(descriptors: str) -> tuple[str, ...]:
    """A shell that closes descriptors, and becomes the program."""
    return ("sh", "-c", f'exec "$0" "$@" {descriptors}')


def test_several_oddities_at_once(data: Path) -> None:
    """A trainer with ignored SIGCHLD, blocked signals, no stdout and names beyond UTF-8 trains without an error."""
    latin = os.fsdecode(b"Jos\xe9")
    program = (
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "sys.path += [Path('x'), sys.argv[1] + '\\udce9']\n"
        "train(1)\n"
    )
    prefix = closing(">&- <&-")
    code, told = run(data, program, prefix, JOB_COMMENT=latin, STREAMER_JOB=latin, OMP_NUM_THREADS="4,2")
    assert (code, "crashed" in told, "Traceback" in told) == (0, False, False), told


@pytest.mark.slow
@pytest.mark.parametrize("descriptors", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_descriptors(data: Path, descriptors: str) -> None:
    """A trainer whose standard descriptors are closed trains as always:
    cron jobs and daemons close them; a socket of ours must not get their numbers.
    """
    code, told = run(data, "train(2)\n", closing(descriptors))
    assert (code, "crashed" in told, "Traceback" in told) == (0, False, False), told


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_frozen_program(data: Path, workers: int) -> None:
    """A frozen program that needs further processes raises ConfigError and is not started again; inline, it trains.
    It was started again and again, and waited for; the engine in its own process needs no second one.
    """
    app = data.parent / "app"
    app.write_text("#!/bin/sh\necho started >> starts\n")
    app.chmod(0o755)
    frozen = f"sys.frozen, sys.executable = True, {str(app)!r}\n"
    code, told = run(data, f"{frozen}train({workers})\n")
    assert code == 1
    assert "ConfigError: no further Python can be started: this program is frozen" in told
    assert not (data.parent / "starts").exists()
    code, told = run(data, f"{frozen}train(0, engine='inline')\n")
    assert code == 0, told


@pytest.mark.slow
@pytest.mark.parametrize("value", ["''", "None"])
def test_no_executable(data: Path, value: str) -> None:
    """A program that embeds Python without `sys.executable` trains: a Python is looked for."""
    code, told = run(data, f"sys.executable = {value}\ntrain(1)\n")
    assert code == 0, told


@pytest.mark.slow
def test_a_working_folder_that_cannot_be_entered(data: Path) -> None:
    """A trainer in a folder that it may not enter trains, and its workers stay in that folder,
    as a shell that was left in a folder of another user.
    """
    inside = ["unshare", "--user", "sh", "-c"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces")
    place = data.parent / "place"
    place.mkdir()
    code, told = run(data, "train(1)\n", (*inside, f'cd "{place}" && chmod 0 "{place}"; exec "$0" "$@"'))
    assert code == 0, told
    assert "Traceback" not in told


RIGHTS = """
import sys, os
from streamer import StreamingDataLoader, StreamingDataset
source = StreamingDataset(sys.argv[1], cache_dir=sys.argv[2], cache_bytes="100MB", decode={"bin": None})
with StreamingDataLoader(source, 5, 1, collate_fn=numbers, pin_memory=False) as loader:
    for epoch in range(3):
        seen = []
        for number, batch in enumerate(loader):
            seen += batch
            if (epoch, number) == (0, 2):
                CHANGE
        assert sorted(seen) == list(range(40))
if os.path.isdir(sys.argv[2]):
    os.chmod(sys.argv[2], 0o700)
    [os.chmod(path, 0o700) for path in Path(sys.argv[2], "chunks").iterdir()]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "os.chmod(sys.argv[2], 0)",
        "[os.chmod(path, 0) for path in Path(sys.argv[2], 'chunks').iterdir()]",
        "os.rename(sys.argv[2], sys.argv[2] + '-old'); open(sys.argv[2], 'w').close()",
        "os.rename(sys.argv[2], sys.argv[2] + '-old'); os.symlink('/nowhere/else', sys.argv[2])",
    ],
    ids=["no rights", "no rights to chunks", "a file in its place", "a link that leads nowhere"],
)
def test_a_cache_folder_that_is_taken_away(data: Path, change: str) -> None:
    """A job whose cache folder loses its rights passes chunks through memory and says so.
    The job ended with "the engine failed over chunk".
    """
    inside = ("unshare", "--user")
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces")
    code, told = run(data, RIGHTS.replace("CHANGE", change), inside)
    assert code == 0, told
    assert 1 <= told.count("pass through memory") <= 2, told


@pytest.mark.slow
@pytest.mark.parametrize("modules", [("_bz2", "_lzma"), ("_sqlite3",)])
def test_a_python_without_modules(data: Path, modules: tuple[str, ...]) -> None:
    """A Python that was built without modules that streamer does not need trains as always,
    as pyenv builds it without the headers.
    """
    site = data.parent / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import sys\nfor name in {modules!r}: sys.modules[name] = None\n")
    code, told = run(data, "train(1)\n", PYTHONPATH=str(site))
    assert code == 0, told


@pytest.mark.slow
def test_a_python_without_ssl(data: Path) -> None:
    """A Python without ssl ends with ConfigError that names the missing module, since every store needs it."""
    site = data.parent / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nsys.modules['_ssl'] = None\n")
    code, told = run(data, "train(0)\n", PYTHONPATH=str(site))
    assert code == 1
    assert "ConfigError: the engine cannot start with" in told
    assert "lacks _ssl" in told


@pytest.mark.slow
def test_a_mount_whose_name_is_not_utf8(data: Path) -> None:
    """A mount whose name is not UTF-8 disturbs no job: the check for network file systems reads all names."""
    inside = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
    mount = r'd=$(printf "donn\351es"); mkdir "$d" && mount -t tmpfs none "$d" && exec "$0" "$@"'
    if subprocess.run([*inside, "mount -t tmpfs none /tmp"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces")
    code, told = run(data, "train(1)\n", (*inside, mount))
    assert code == 0, told


@pytest.mark.slow
def test_a_debugger_that_listens(data: Path) -> None:
    """A trainer under a debugpy that listens trains, although debugpy attaches itself to every child;
    the start of an engine was waited for without an end.
    """
    pytest.importorskip("debugpy")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    begin = f"import debugpy\ndebugpy.listen(('127.0.0.1', {port}))\n"
    code, told = run(data, f"{begin}train(2)\n", PYDEVD_DISABLE_FILE_VALIDATION="1")
    assert code == 0, told


REMOVED = """
import shutil
from streamer import StreamingDataLoader, StreamingDataset

def loader():
    source = StreamingDataset(sys.argv[1], cache_dir=sys.argv[2], cache_bytes="100MB", decode={"bin": None})
    return StreamingDataLoader(source, 5, 0, collate_fn=numbers, pin_memory=False)

with loader() as first:
    batches = iter(first)
    next(batches)
    shutil.rmtree(os.environ["STREAMER_RUNTIME_DIR"])
    with loader() as second:
        assert sorted(sum(second, [])) == list(range(40))
    assert len(sum(batches, [])) == 35
"""


def test_the_runtime_folder_is_removed_under_a_job(data: Path) -> None:
    """A dataset finds the running engine although the runtime folder was removed under the job,
    as logind removes /run/user/UID when the last ssh session ends.
    """
    code, told = run(data, REMOVED)
    assert code == 0, told


@pytest.mark.slow
def test_two_jobs_with_a_tmp_of_their_own(data: Path) -> None:
    """Two jobs with a cache folder in common and a runtime folder each both train,
    as under PrivateTmp of systemd and job_container/tmpfs of SLURM: the second one waited 34 s, and ended.
    """
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = 'mount -t tmpfs none "$STREAMER_RUNTIME_DIR" && exec "$0" "$@"'
    if subprocess.run([*inside, "mount -t tmpfs none /tmp"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces")
    script = data.parent / "first.py"
    script.write_text(
        TRAINER
        + REMOVED.split("with loader() as first", maxsplit=1)[0]
        + "\nfirst = iter(loader())\nnext(first)\nprint()\ninput()\n"
    )
    runtime = data.parent / "runtime"
    runtime.mkdir()
    command = [*inside, mount, sys.executable, str(script), str(data), str(data.parent / "cache")]
    environment = {**os.environ, "STREAMER_RUNTIME_DIR": str(runtime)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "\n"
        code, told = run(data, "train(1)\n", (*inside, mount))
        first.communicate("\n", timeout=60)
    assert (code, first.returncode) == (0, 0), told


KILLED = """
from streamer import StreamingDataLoader, StreamingDataset
source = StreamingDataset(sys.argv[1], cache_dir=sys.argv[2], cache_bytes="100MB", engine="inline")
with StreamingDataLoader(source, 5, 0, collate_fn=numbers, pin_memory=False) as loader:
    next(iter(loader))
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_the_next_start_removes_what_a_killed_one_left(data: Path) -> None:
    """The next start of an engine removes the socket and memory folder that a killed inline engine left,
    whatever its cache folder.
    """

    code, told = run(data, KILLED)
    assert code == -signal.SIGTERM, told
    root_id = (data.parent / "cache" / "root-id").read_text().strip()
    memory = Path(f"/dev/shm/streamer-{os.geteuid()}-{root_id}")
    assert memory.exists()
    assert len(list((data.parent / "runtime").glob("*.sock"))) == 1
    (data.parent / "cache").rename(data.parent / "former")
    code, told = run(data, "train(0, engine='inline')\n")
    assert code == 0, told
    assert list((data.parent / "runtime").glob("*.sock*")) == []
    assert not memory.exists()
