"""A recoder reads the libraries of Python, and reaches no other file, no network and no other process."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from streamer.engine.engine import Engine
from streamer.errors import RecodeError
from streamer.recode import sandbox
from tests.recoding.conftest import indexed
from tests.recoding.test_pool import recoded

needs_all = pytest.mark.skipif(
    sandbox.describe_gaps() != "", reason="this kernel has no Landlock, or no filters of calls"
)

# Each line is tried in a process that has entered; it must raise PermissionError.
TRIES = """
open(path).read()
open(f"/proc/{parent}/environ").read()
open("/etc/passwd").read()
os.listdir(os.path.dirname(path))
open(path, "w")
open(path, "ab")
os.open(os.path.dirname(path), os.O_TMPFILE | os.O_RDWR)
os.mkdir(path + ".folder")
os.rename(path, path + ".other")
os.unlink(path)
os.link(path, path + ".link")
os.symlink("/", path + ".link")
os.chmod(path, 0o777)
os.truncate(path, 0)
os.utime(path)
os.setxattr(path, "user.a", b"b")
os.mkfifo(path + ".pipe")
socket.socket()
socket.socket(socket.AF_UNIX)
socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
socket.create_connection(("127.0.0.1", port))
inherited.connect(("127.0.0.1", port))
inherited.bind(("127.0.0.1", 0))
os.execv("/bin/true", ["true"])
subprocess.run([sys.executable, "-c", ""])
os.posix_spawn("/bin/true", ["true"], {})
os.kill(parent, 0)
os.kill(parent, signal.SIGTERM)
os.chroot("/")
raw(101, 16, parent, 0, 0)
raw(310, parent, 0, 0, 0, 0, 0)
raw(425, 8, 0)
raw(434, parent, 0)
raw(438, 0, 0, 0)
raw(59 | 0x40000000, 0, 0, 0)
"""
PROGRAM = f"""
import ctypes, os, signal, socket, subprocess, sys, threading
from streamer.recode import sandbox
path, parent, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
inherited = socket.socket()
def raw(*numbers):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(*map(ctypes.c_long, numbers)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
assert sandbox.enter() == "", sandbox.enter()
bad = []
def attempt(text):
    try:
        exec(text)
    except PermissionError:
        return
    except Exception as error:
        bad.append(f"{{text}}: {{error!r}}")
    else:
        bad.append(f"{{text}}: permitted")
for text in {TRIES!r}.strip().splitlines():
    if not (text.startswith("raw") and {platform.machine()!r} != "x86_64"):
        attempt(text)
        thread = threading.Thread(target=attempt, args=(text,))
        thread.start()
        thread.join()
# What libraries do must still work: lazy imports, threads, memory files, random numbers, the time zone.
import decimal, sqlite3, zoneinfo, numpy, pyarrow.parquet, h5py, cramjam
import io, time
table = pyarrow.table({{"a": list(range(1000))}})
sink = io.BytesIO()
pyarrow.parquet.write_table(table, sink)
assert pyarrow.parquet.read_table(io.BytesIO(sink.getvalue())).num_rows == 1000
time.localtime()
os.urandom(4)
fd = os.memfd_create("x")
os.ftruncate(fd, 4096)
os.write(1, "\\n".join(bad).encode())
"""


@needs_all
@pytest.mark.process
def test_what_a_recoder_may_not_do(tmp_path: Path) -> None:
    """In its first thread and in others; the libraries of formats are imported afterwards, and work."""
    path = tmp_path / "secret"
    path.write_text("hunter2")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = [sys.executable, "-P", "-c", PROGRAM, str(path), str(os.getpid()), str(port)]
        environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert path.read_text() == "hunter2"
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


@needs_all
@pytest.mark.process
@pytest.mark.parametrize("what", ["read", "environ", "write", "connect", "exec", "signal"])
async def test_a_format_that_tries(what: str, engine: Engine, write: Callable[..., Path], tmp_path: Path) -> None:
    """In a real recoder of an engine: the job fails with the system's refusal, and nothing has happened."""
    (tmp_path / "secret").write_text("hunter2")
    manifest = await indexed(engine, write([[f"!try-{what} {tmp_path}/secret {os.getpid()}".encode()]]))
    with pytest.raises(RecodeError, match=r"Permission denied|Operation not permitted"):
        await recoded(engine, manifest)
    assert (tmp_path / "secret").read_text() == "hunter2"


@pytest.mark.parametrize("lacks", ["landlock", "filter", "both", "machine"])
@pytest.mark.process
def test_a_kernel_without_it(lacks: str) -> None:
    """The recoder works without what is not there, and says what that is."""
    program = f"""
import errno
from streamer.recode import sandbox
lacks = {lacks!r}
real = sandbox._call
def call(number, *arguments):
    if lacks in ("landlock", "both") and number in sandbox._LANDLOCK:
        return -1
    if lacks in ("filter", "both") and number in (317, 277):
        return -1
    return real(number, *arguments)
sandbox._call = call
if lacks == "machine":
    sandbox._MACHINES.clear()
said = sandbox.describe_gaps()
print(said, "|", sandbox.enter())
print(len(open("/etc/passwd").read()) if lacks in ("landlock", "both") else "")
"""
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment, check=True
    )
    said, entered = done.stdout.splitlines()[0].split(" | ")
    if lacks in ("landlock", "both"):
        assert "Landlock" in said
        assert "reading files" in entered
    if lacks != "landlock":
        assert "no filters of system calls" in said
        assert "network and processes" in entered


def test_homes_are_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder on the path of imports only code: a program's folder may be the home, with keys in it."""
    (tmp_path / "module.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / ".aws").mkdir()
    (tmp_path / "keys.json").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/nothing"])
    found = dict(sandbox._readable())
    assert found[str(tmp_path)] == sandbox._READ_DIR
    assert {Path(path).name for path in found if Path(path).parent == tmp_path} == {"module.py", "package"}
    assert not {"/", str(Path.home())} & {path for path, rights in found.items() if rights & sandbox._READ_FILE}


def test_the_filter_ends_with_permission() -> None:
    """Every jump of the program leads to one of its instructions; the last one permits."""
    for machine in ("x86_64", "aarch64"):
        made = sandbox._instructions(machine)
        for at, (code, true, false, _) in enumerate(made):
            if code & 7 == 5:
                assert at + 1 + max(true, false) < len(made)
        assert made[-1] == (sandbox._RETURN, 0, 0, sandbox._ALLOW)
        assert len(made) < 4096


def test_packages_that_are_installed_in_place_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finder of `pip install -e` names folders that are nowhere on the path of imports, also of later imports."""
    loaded = ModuleType("loaded_in_place")
    loaded.__path__ = [str(tmp_path / "loaded")]
    installed = ModuleType("__editable___later_finder")
    installed.MAPPING = {"later": str(tmp_path / "later")}  # type: ignore[attr-defined]
    finder = type("_EditableFinder", (), {"__module__": installed.__name__, "find_spec": lambda *_: None})
    monkeypatch.setitem(sys.modules, loaded.__name__, loaded)
    monkeypatch.setitem(sys.modules, installed.__name__, installed)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    found = dict(sandbox._readable())
    assert found[str(tmp_path / "loaded")] & sandbox._READ_FILE
    assert found[str(tmp_path / "later")] & sandbox._READ_FILE


def test_a_package_that_is_the_home_folder_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace package is any folder on the path of imports: one that is the user's home opens no keys."""
    _, home = sandbox._private_folders()
    everywhere = ModuleType("everywhere")
    everywhere.__path__ = [home, "/"]
    monkeypatch.setitem(sys.modules, everywhere.__name__, everywhere)
    found = dict(sandbox._readable())
    assert home not in found
    assert "/" not in found
