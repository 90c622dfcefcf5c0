"""The sandbox of recoders, in real processes: libraries can be read, other files, networks and processes not."""

from __future__ import annotations

import os
import platform
import re
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
    """A recoder reaches no file, network or process from any of its threads, and libraries of formats still work.

    The libraries are imported after it has entered the sandbox.
    """
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
    """A format that tries what the sandbox forbids fails its job with the system's refusal, and changes nothing."""
    (tmp_path / "secret").write_text("hunter2")
    manifest = await indexed(engine, write([[f"!try-{what} {tmp_path}/secret {os.getpid()}".encode()]]))
    with pytest.raises(RecodeError, match=r"Permission denied|Operation not permitted"):
        await recoded(engine, manifest)
    assert (tmp_path / "secret").read_text() == "hunter2"


@pytest.mark.parametrize("lacks", ["landlock", "filter", "both", "machine"])
@pytest.mark.process
def test_a_kernel_without_it(lacks: str) -> None:
    """A recoder works on a kernel without Landlock or filters of calls, and says what is not there."""
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
    """Recoders can read only code of a folder on the import path, because it may be the home, with keys in it."""
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


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_ends_with_permission(machine: str) -> None:
    """Every jump of the filter's program leads to one of its instructions, and the last one permits."""
    made = sandbox._instructions(machine)
    for at, (code, true, false, _) in enumerate(made):
        if code & 7 == 5:
            assert at + 1 + max(true, false) < len(made)
    assert made[-1] == (sandbox._RETURN, 0, 0, sandbox._ALLOW)
    assert len(made) < 4096


# What harms other processes of the user without a file or a socket: tried with the filter of calls alone.
HARMS = """
os.kill(parent, 0)
os.kill(parent, signal.SIGTERM)
call(tgkill, parent, parent, 0)
resource.prlimit(parent, resource.RLIMIT_CPU, (1, 1))
os.sched_setaffinity(parent, {0})
os.sched_setscheduler(parent, os.SCHED_BATCH, os.sched_param(0))
os.setpriority(os.PRIO_PROCESS, parent, 19)
os.setpriority(os.PRIO_USER, 0, 19)
os.setpriority(os.PRIO_PGRP, 0, 19)
fcntl.fcntl(pipe, F_SETOWN, parent)
fcntl.fcntl(pipe, F_SETSIG, signal.SIGKILL)
fcntl.fcntl(pipe, F_SETOWN_EX, struct.pack("ii", 1, parent))
call(shmget, 1, 4096, 0o1600)
call(ioprio_set, 1, parent, 0)
"""
FILTER_ALONE = f"""
import ctypes, fcntl, os, resource, signal, struct, sys
from streamer.recode import sandbox
parent = int(sys.argv[1])
tgkill, shmget, ioprio_set = {{"x86_64": (234, 29, 251), "aarch64": (131, 194, 30)}}[os.uname().machine]
F_SETOWN, F_SETSIG, F_SETOWN_EX = 8, 10, 15
pipe = os.pipe()[0]
def call(*numbers):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(*map(ctypes.c_long, numbers)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
sandbox._restrict_paths = lambda: False
assert sandbox.enter() == "reading files", sandbox.enter()
for text in {HARMS!r}.strip().splitlines():
    try:
        exec(text)
    except PermissionError:
        continue
    except Exception as error:
        print(f"{{text}}: {{error!r}}")
    else:
        print(f"{{text}}: permitted")
# Of this process they are permitted.
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
signal.raise_signal(signal.SIGUSR1)
assert got == [1]
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.prlimit(os.getpid(), resource.RLIMIT_CORE)
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))
fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_NONBLOCK)
"""


@needs_all
@pytest.mark.process
def test_other_processes_are_safe_without_landlock() -> None:
    """The filter of calls alone keeps limits, priorities and signals of other processes from a recoder.

    Landlock scopes signals from version 6 only.
    """
    victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        command = [sys.executable, "-c", FILTER_ALONE, str(victim.pid)]
        environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert victim.poll() is None
    finally:
        victim.communicate(b"\n")


def _table(text: str) -> dict[str, int]:
    pairs = (entry.split() for entry in text.split(";") if entry.strip())
    return {name: int(number) for name, number in pairs}


# Linux 6.1, include/uapi/asm-generic/unistd.h, which arch/arm64/include/uapi/asm/unistd.h includes. Newer calls, from
# 424 on, have the same number on every machine (fchmodat2 is of Linux 6.6).
OF_AARCH64 = _table(
    """
    setxattr 5; lsetxattr 6; fsetxattr 7; removexattr 14; lremovexattr 15; fremovexattr 16; fcntl 25; ioprio_set 30;
    mknodat 33; mkdirat 34; unlinkat 35; symlinkat 36; linkat 37; renameat 38; umount2 39; mount 40; pivot_root 41;
    truncate 45; chroot 51; fchmod 52; fchmodat 53; fchownat 54; fchown 55; openat 56; vhangup 58; quotactl 60;
    utimensat 88; acct 89; unshare 97; kexec_load 104; init_module 105; delete_module 106; clock_settime 112;
    syslog 116; ptrace 117; sched_setparam 118; sched_setscheduler 119; sched_setaffinity 122; kill 129; tkill 130;
    tgkill 131; rt_sigqueueinfo 138; setpriority 140; reboot 142; sethostname 161; setdomainname 162;
    settimeofday 170; adjtimex 171; mq_open 180; mq_unlink 181; msgget 186; msgctl 187; msgrcv 188; msgsnd 189;
    semget 190; semctl 191; semtimedop 192; semop 193; shmget 194; shmctl 195; shmat 196; socket 198; bind 200;
    listen 201; accept 202; connect 203; add_key 217; request_key 218; keyctl 219; execve 221; swapon 224;
    swapoff 225; rt_tgsigqueueinfo 240; perf_event_open 241; accept4 242; prlimit64 261; open_by_handle_at 265;
    clock_adjtime 266; setns 268; process_vm_readv 270; process_vm_writev 271; finit_module 273; sched_setattr 274;
    renameat2 276; seccomp 277; bpf 280; execveat 281; userfaultfd 282; kexec_file_load 294;
    """
)
OF_ALL = _table(
    """
    pidfd_send_signal 424; io_uring_setup 425; io_uring_enter 426; io_uring_register 427; open_tree 428;
    move_mount 429; fsopen 430; fsconfig 431; fsmount 432; fspick 433; pidfd_open 434; openat2 437; pidfd_getfd 438;
    process_madvise 440; mount_setattr 442; quotactl_fd 443; landlock_create_ruleset 444; landlock_add_rule 445;
    landlock_restrict_self 446; process_mrelease 448; fchmodat2 452;
    """
)


def test_the_numbers_of_aarch64_are_those_of_the_kernel() -> None:
    """The filter's numbers for aarch64, where it never ran, are those of the kernel's table, and none is missing."""
    machine = "aarch64"
    _, seccomp_call, open_call, openat_call = sandbox._MACHINES[machine]
    assert (seccomp_call, open_call, openat_call) == (OF_AARCH64["seccomp"], None, OF_AARCH64["openat"])
    other = {"seccomp", "openat", "setpriority", "fcntl"}
    of_processes = ("tgkill", "prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")
    assert sandbox._OF_PROCESSES[machine] == tuple(OF_AARCH64[name] for name in of_processes)
    assert sandbox._SETPRIORITY[machine] == OF_AARCH64["setpriority"]
    assert sandbox._FCNTL[machine] == OF_AARCH64["fcntl"]
    refused = {number for name, number in OF_AARCH64.items() if name not in other.union(of_processes)}
    assert set(sandbox._REFUSED[machine]) == refused
    landlock = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")
    assert tuple(OF_ALL[name] for name in landlock) == sandbox._LANDLOCK
    assert OF_ALL["openat2"] == sandbox._OPENAT2
    assert set(sandbox._REFUSED_EVERYWHERE) == set(OF_ALL.values()) - {OF_ALL["openat2"], *sandbox._LANDLOCK}


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    ],
)
def test_both_machines_refuse_the_same_calls(machine: str, header: str) -> None:
    """Both machines refuse the same system calls, by the names that the kernel's headers give the numbers.

    The test is skipped where the headers are not installed.
    """
    if not Path(header).is_file():
        pytest.skip("the kernel's headers are not installed")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text())
    names = {int(number): name for name, number in found}
    refused = {names[number] for number in sandbox._REFUSED[machine]}
    if machine == "x86_64":  # which has older calls beside these, and ports
        refused -= {
            "rename",
            "unlink",
            "rmdir",
            "mkdir",
            "link",
            "symlink",
            "mknod",
            "creat",
            "chmod",
            "chown",
            "lchown",
        }
        refused -= {"utime", "utimes", "futimesat", "iopl", "ioperm"}
    other = {"seccomp", "openat", "setpriority", "fcntl", "tgkill", "prlimit64", "sched_setaffinity"}
    assert refused == set(OF_AARCH64) - other - {"sched_setscheduler", "sched_setparam", "sched_setattr"}


def test_packages_that_are_installed_in_place_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages installed with `pip install -e` can be read, although their folders are nowhere on the import path.

    Their finder names the folders, also those of later imports.
    """
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
    """A namespace package that is the user's home does not open it to recoders, because keys may lie there.

    A namespace package is any folder on the path of imports.
    """
    _, home = sandbox._private_folders()
    everywhere = ModuleType("everywhere")
    everywhere.__path__ = [home, "/"]
    monkeypatch.setitem(sys.modules, everywhere.__name__, everywhere)
    found = dict(sandbox._readable())
    assert home not in found
    assert "/" not in found
