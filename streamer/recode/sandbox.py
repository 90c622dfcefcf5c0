"""Restricts a recoder: it may read files of Python and its libraries, and use no other files, network or processes.

A recoder calls `enter` before its first job (`recode/__main__.py`). `streamer doctor` shows `describe_gaps`
(`tools/doctor/machine.py`).

A recoder gives bytes that a stranger has written to libraries in C. An attacker who takes one over must reach neither
the engine, which runs as the same user, nor credentials, caches or the network. Two mechanisms of the kernel prevent
it. Landlock restricts files by path (docs.kernel.org/userspace-api/landlock.html). A filter of system calls (man 2
seccomp) refuses sockets, signals to other processes, and files opened for writing. Each works without the other.

Both are called by ctypes: of the libraries on PyPI, `landlock` is a pre-release that knows no scopes (1.0.0.dev5,
2026-11), and `pyseccomp` loads a libseccomp that most images of Python do not have.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import pwd
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

# <linux/prctl.h>, <linux/seccomp.h>, <linux/audit.h>, <linux/bpf_common.h>
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER = 1
_GET_ACTION_AVAIL = 2
_TSYNC = 1
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_LOAD = 0x20
_IF_EQUAL = 0x15
_IF_AT_LEAST = 0x35
_IF_ANY_BIT = 0x45
_RETURN = 0x06
_NUMBER_AT = 0
_ARCHITECTURE_AT = 4
_FIRST_ARGUMENT_AT = 16
_SECOND_ARGUMENT_AT = 24
_THIRD_ARGUMENT_AT = 32
_X32 = 0x40000000
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# <linux/landlock.h>: the calls create_ruleset, add_rule and restrict_self. Calls from 424 on have the same numbers on
# all machines.
_LANDLOCK = (444, 445, 446)
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
# Bits of all rights to files, by version of Landlock. A version that is not listed knows the rights of the one before.
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_CONNECT_AND_BIND = 3
_SIGNALS_AND_SOCKETS = 3

# AUDIT_ARCH of each machine, and its numbers of the calls seccomp, open (None if there is none) and openat.
_MACHINES: dict[str, tuple[int, int, int | None, int]] = {
    "x86_64": (0xC000003E, 317, 2, 257),
    "aarch64": (0xC00000B7, 277, None, 56),
}
# These calls are refused, by number, in this order:
# socket, connect, accept, accept4, bind, listen; execve, execveat; ptrace, process_vm_readv, process_vm_writev, kill,
# tkill, rt_sigqueueinfo, rt_tgsigqueueinfo; rename.., unlink.., mkdir.., link.., symlink.., mknod.., chmod.., chown..,
# truncate, utime.., ..xattr; mount, umount2, pivot_root, chroot, setns, unshare; bpf, perf_event_open, userfaultfd,
# keyctl, add_key, request_key, open_by_handle_at, modules, kexec_load, kexec_file_load, reboot, swapon, swapoff, acct,
# syslog, vhangup, quotactl; settimeofday, clock_settime, adjtimex, clock_adjtime, sethostname, setdomainname; iopl,
# ioperm; ioprio_set; shm.., sem.., msg.., mq_open, mq_unlink: memory and queues by number or name are of all processes.
_REFUSED = {
    "x86_64": (
        *(41, 42, 43, 288, 49, 50, 59, 322, 101, 310, 311, 62, 200, 129, 297),
        *(82, 264, 316, 87, 263, 84, 83, 258, 86, 265, 88, 266, 133, 259, 85, 90, 91, 268, 92, 94, 93, 260),
        *(76, 280, 132, 235, 261, 188, 189, 190, 197, 198, 199, 165, 166, 155, 161, 308, 272),
        *(321, 298, 323, 250, 248, 249, 304, 175, 313, 176, 246, 320, 169, 167, 168, 163, 103, 153, 179),
        *(164, 227, 159, 305, 170, 171, 172, 173, 251),
        *(29, 30, 31, 64, 65, 66, 220, 68, 69, 70, 71, 240, 241),
    ),
    "aarch64": (
        *(198, 203, 202, 242, 200, 201, 221, 281, 117, 270, 271, 129, 130, 138, 240),
        *(38, 276, 35, 34, 37, 36, 33, 52, 53, 55, 54),
        *(45, 88, 5, 6, 7, 14, 15, 16, 40, 39, 41, 51, 268, 97),
        *(280, 241, 282, 219, 217, 218, 265, 105, 273, 106, 104, 294, 142, 224, 225, 89, 116, 58, 60),
        *(170, 112, 171, 266, 161, 162, 30),
        *(194, 196, 195, 190, 193, 191, 192, 186, 189, 188, 187, 180, 181),
    ),
}
# These are refused too, with the same numbers on all machines:
# pidfd_send_signal, io_uring.., open_tree, move_mount, fsopen.., pidfd_open, pidfd_getfd, process_madvise,
# mount_setattr, quotactl_fd, process_mrelease, fchmodat2.
_REFUSED_EVERYWHERE = (424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 434, 438, 440, 442, 443, 448, 452)
# Calls whose first argument is a process, which must be this one or 0: tgkill, prlimit64, sched_setaffinity,
# sched_setscheduler, sched_setparam, sched_setattr. A limit of its CPU time would end the engine as a signal does.
_OF_PROCESSES = {"x86_64": (234, 302, 203, 144, 142, 314), "aarch64": (131, 261, 122, 119, 118, 274)}
# The call setpriority must have 0 as its first argument, and this process or 0 as its second one: other first arguments
# are for groups and users.
_SETPRIORITY = {"x86_64": 141, "aarch64": 140}
# The call fcntl is refused with F_SETOWN, F_SETSIG and F_SETOWN_EX: by these the kernel sends any signal to any process
# of this user when a pipe has bytes.
_FCNTL = {"x86_64": 72, "aarch64": 25}
_FCNTL_SIGNALS = (8, 10, 15)
# The call openat2 is answered as if this kernel did not have it: its flags are in memory, which a filter does not see.
_OPENAT2 = 437

# Libraries read these besides themselves: the loader's cache, the number of cores, time zones, random numbers.
_SYSTEM = (
    *("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/ld.so.conf"),
    *("/etc/ld.so.conf.d", "/etc/localtime", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom", "/dev/random"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/sys/vm", "/sys/devices/system/cpu", "/sys/devices/system/node"),
)
_CODE = (".py", ".pyc", ".so", ".zip", ".pth")


def enter() -> str:
    """Restricts this process for good, as far as the kernel can; call it while the process has one thread.

    Returns:
        What is not restricted, as words of a sentence, or "" if everything is restricted.
    """
    lacks: list[str] = []
    # The kernel asks for this flag unless root sets filters, since a program of another user (setuid) could be misled.
    if platform.system() != "Linux" or ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return "files, network and processes"
    if not _restrict_paths():
        lacks.append("reading files")
    if not _filter_calls():
        lacks.append("network and processes")
    return ", ".join(lacks)


def describe_gaps() -> str:
    """Returns what `enter` cannot restrict on this machine and why; "" if nothing. Restricts nothing itself."""
    lacks: list[str] = []
    if platform.system() != "Linux":
        return "files, network and processes: they need Linux"
    if _landlock_version() < 1:
        lacks.append("reading files: this kernel, or the container, has no Landlock")
    machine = _MACHINES.get(platform.machine())
    action = ctypes.c_uint32(_ERRNO)
    if machine is None or _call(machine[1], _GET_ACTION_AVAIL, 0, ctypes.byref(action)) != 0:
        lacks.append("network and processes: there are no filters of system calls here")
    return "; ".join(lacks)


# ---------------------------------------------------------------- files


def _restrict_paths() -> bool:
    """Applies Landlock to this thread and its future children; returns False if the kernel has none or refuses."""
    version = _landlock_version()
    if version < 1:
        return False
    rights = _RIGHTS[max(known for known in _RIGHTS if known <= version)]
    net = _CONNECT_AND_BIND if version >= 4 else 0
    scoped = _SIGNALS_AND_SOCKETS if version >= 6 else 0
    attributes = struct.pack("=QQQ", rights, net, scoped)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    create, add, restrict = _LANDLOCK
    ruleset = _call(create, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    try:
        for path, allowed in _readable():
            _allow(add, ruleset, path, allowed)
        return _call(restrict, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(add: int, ruleset: int, path: str, allowed: int) -> None:
    """Allows rights below a path; one that does not exist, or that the kernel does not take, stays refused.

    Args:
        add: number of the call landlock_add_rule.
        ruleset: descriptor of the rules.
        path: a file or folder.
        allowed: bits of the rights.
    """
    try:
        descriptor = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            allowed &= ~_READ_DIR
        _call(add, ruleset, 1, struct.pack("=Qi", allowed, descriptor), 0)
    finally:
        os.close(descriptor)


def _readable() -> Iterator[tuple[str, int]]:
    """Yields the paths that may be read, with the rights below them.

    Folders of libraries are readable as a whole. Of other folders on the path of imports, only the code is.
    """
    everything = _READ_FILE | _READ_DIR
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    whole = {*_SYSTEM, *prefixes, *_library_folders(), *_package_folders()}
    private = _private_folders()
    kept = [path for path in sorted(whole) if not _holds(path, private)]
    yield from ((path, everything) for path in kept)
    for entry in filter(None, sys.path):
        if any(entry.startswith(f"{path}/") for path in kept):
            continue
        if Path(entry).name in ("site-packages", "dist-packages"):
            yield entry, everything
            continue
        yield entry, _READ_DIR
        for path in _code_in(entry):
            yield path, everything


def _private_folders() -> list[str]:
    """Returns the root and the user's home, which hold keys besides code: neither is made readable as a whole."""
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a user of a container without a name
        home = os.path.expanduser("~")
    return ["/", os.path.realpath(home)]


def _holds(path: str, private: list[str]) -> bool:
    """Returns whether a folder is one of the private ones, or above one."""
    real = os.path.realpath(path).rstrip("/") + "/"
    return any((one.rstrip("/") + "/").startswith(real) for one in private)


def _library_folders() -> Iterator[str]:
    """Yields the folders of the libraries that are loaded, and where the loader looks for others."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        name = line.partition("/")[2]
        if ".so" in name:
            yield os.path.dirname(f"/{name}")
    yield from filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))


def _package_folders() -> Iterator[str]:
    """Yields the folders of the packages that are loaded, and of those that are installed in place (`pip install -e`).

    The finders of setuptools for the latter name packages that are nowhere on the path of imports.
    """
    for name, module in list(sys.modules.items()):
        if "." not in name:
            yield from map(os.fspath, getattr(module, "__path__", ()))
    for finder in sys.meta_path:
        installed = sys.modules.get(getattr(finder, "__module__", ""))
        yield from getattr(installed, "MAPPING", {}).values()


def _code_in(folder: str) -> Iterator[str]:
    """Yields the paths of modules and packages in a folder on the path of imports, or the path itself of a zip file."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(_CODE) or (entry.is_dir() and _is_package(entry)):
                    yield entry.path
    except OSError:
        if os.path.isfile(folder):  # a zip archive
            yield folder


def _is_package(entry: os.DirEntry[str]) -> bool:
    if entry.name.endswith((".dist-info", ".egg-info")) or entry.name == "__pycache__":
        return True
    return os.path.isfile(os.path.join(entry.path, "__init__.py"))


def _landlock_version() -> int:
    """Returns the version of the kernel's Landlock, or -1 if it has none."""
    return _call(_LANDLOCK[0], None, 0, 1)


# ---------------------------------------------------------------- system calls


class _Program(ctypes.Structure):
    """A filter as the kernel takes it (struct sock_fprog)."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _filter_calls() -> bool:
    """Filters the system calls of all threads; returns False if there is no filter for this machine or kernel."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return False
    instructions = _instructions(platform.machine())
    code = b"".join(struct.pack("=HBBI", *one) for one in instructions)
    program = _Program(len(instructions), code)
    return _call(machine[1], _SET_MODE_FILTER, _TSYNC, ctypes.byref(program)) == 0


def _instructions(machine: str) -> list[tuple[int, int, int, int]]:
    """Returns the filter: it refuses calls of other architectures, the listed calls, and opening files for writing.

    Each instruction is (code, skip if true, skip if false, operand). The skips of a comparison are the number of
    instructions that are left out after it.
    """
    architecture, _, open_call, openat_call = _MACHINES[machine]
    own = os.getpid()
    allow = (_RETURN, 0, 0, _ALLOW)
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    made = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 1, 0, architecture),
        refuse,
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_AT_LEAST, 0, 1, _X32),
        refuse,
    ]
    for number in (*_REFUSED[machine], *_REFUSED_EVERYWHERE):
        made += [(_IF_EQUAL, 0, 1, number), refuse]
    made += [(_IF_EQUAL, 0, 1, _OPENAT2), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for opening, flags_at in ((open_call, _SECOND_ARGUMENT_AT), (openat_call, _THIRD_ARGUMENT_AT)):
        if opening is not None:
            made += [(_IF_EQUAL, 0, 4, opening), (_LOAD, 0, 0, flags_at), (_IF_ANY_BIT, 0, 1, _WRITES), refuse, allow]
    for number in _OF_PROCESSES[machine]:
        made += [(_IF_EQUAL, 0, 5, number), (_LOAD, 0, 0, _FIRST_ARGUMENT_AT)]
        made += [(_IF_EQUAL, 1, 0, 0), (_IF_EQUAL, 0, 1, own), allow, refuse]
    made += [(_IF_EQUAL, 0, 7, _SETPRIORITY[machine]), (_LOAD, 0, 0, _FIRST_ARGUMENT_AT), (_IF_EQUAL, 0, 4, 0)]
    made += [(_LOAD, 0, 0, _SECOND_ARGUMENT_AT), (_IF_EQUAL, 1, 0, 0), (_IF_EQUAL, 0, 1, own), allow, refuse]
    made += [(_IF_EQUAL, 0, 1 + 2 * len(_FCNTL_SIGNALS), _FCNTL[machine]), (_LOAD, 0, 0, _SECOND_ARGUMENT_AT)]
    for command in _FCNTL_SIGNALS:
        made += [(_IF_EQUAL, 0, 1, command), refuse]
    return [*made, allow]


def _call(number: int, *arguments: object) -> int:
    """Makes a system call with integers, buffers or None; returns its result, or -1 for an error."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    whole = (ctypes.c_long(one) if isinstance(one, int) else one for one in arguments)
    return int(call(ctypes.c_long(number), *whole))
