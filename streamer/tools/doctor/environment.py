"""Checks what is around a process, such as interpreter, signals, variables and sandbox, and the optional libraries.

`streamer doctor` runs these checks (`tools/doctor/__init__.py`).
"""

from __future__ import annotations

import importlib
import os
import re
import resource
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from streamer.base import linux
from streamer.base.child import find_interpreter, import_paths
from streamer.config import format_bytes
from streamer.errors import ConfigError
from streamer.launchers import find_place
from streamer.store.credentials import find_in_home
from streamer.tools.doctor import Finding

# Modules that a Python lacks if it was built without a library's headers, and what does not work then.
_MODULES = {
    "bz2": "bzip2 files are refused",
    "lzma": "xz files are refused",
    "sqlite3": "the cache has no catalog: each start reads the chunk files",
    "ssl": "no store can be read",
    "ctypes": "nothing works, torch neither",
    "zlib": "no compressed file can be read",
}
_NEEDED = ("ssl", "ctypes", "zlib")
# Length of files that must be possible: enough for a chunk, which one long sample may extend.
_FILE_BYTES = 1 << 30
_SOCKS = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY")
_DISTRIBUTION = "streamer-data"
_NAME = re.compile(r"[\w.-]+")
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")
# These extras are for developers of streamer.
_NOT_SHOWN = ("dev", "demo", "fuzz")


def environment_findings(runtime_dir: Path, variables: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Yields a finding for everything around the process that is missing or strange, or a single one if nothing is.

    Args:
        runtime_dir: folder of sockets, locks and logs.
        variables: environment to check; None means that of this process.
    """
    env = os.environ if variables is None else variables
    found = [*_interpreter(), *_process(), *_sandbox(), *_variables(env), *_runtime_folder(runtime_dir), *_ranks(env)]
    if found:
        yield from found
    else:
        yield Finding("ok", "environment", "interpreter, descriptors, SIGCHLD, variables and sandbox are as usual")


# The checks that follow yield nothing if all is as usual.


def _interpreter() -> Iterator[Finding]:
    """Checks the interpreter: its path, its calls for sockets, its modules, and how it reads names of files."""
    try:
        find_interpreter()
    except ConfigError as error:
        yield Finding("problem", "interpreter", f"sys.executable is {sys.executable!r}", str(error))
    try:
        linux.require_poll()
        linux.epoll().close()
    except ConfigError as error:
        yield Finding("problem", "select", "this Python lacks calls that the engine needs", str(error))
    if "_pydev_bundle.pydev_monkey" in sys.modules:
        fact = "debugpy or PyCharm's debugger is attached"
        yield Finding("optional", "debugger", fact, "the engine and its processes are started without it")
    for name, lack in _MODULES.items():
        try:
            importlib.import_module(name)
        except ImportError as error:
            advice = "install the library's headers and build Python again, or use another Python"
            yield Finding("problem" if name in _NEEDED else "warning", name, f"{lack} ({error})", advice)
    if sys.getfilesystemencoding().lower().replace("-", "") != "utf8":
        fact = f"names of files are read as {sys.getfilesystemencoding()}"
        yield Finding("warning", "locale", fact, "set LC_ALL=C.UTF-8, or PYTHONUTF8=1")


def _process() -> Iterator[Finding]:
    """Checks what the process has inherited: signals, descriptors, working folder, umask, and limit of files."""
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        yield Finding("warning", "SIGCHLD", "is ignored", "streamer copes; torch's own DataLoader misses dead workers")
    closed = [name for number, name in enumerate(("input", "output", "error")) if not _is_open(number)]
    if closed:
        fact = f"standard {' and '.join(closed)} closed"
        yield Finding(
            "warning", "descriptors", fact, "redirect them to /dev/null: libraries print to what is opened next"
        )
    try:
        os.getcwd()
    except OSError:
        advice = "cd to one that is there: the MKL that torch brings ends a process without one as it is imported"
        yield Finding("problem", "working directory", "was removed", advice)
    try:
        linux.require_own_files()
    except ConfigError as error:
        yield Finding("problem", "umask", str(error))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if hard != resource.RLIM_INFINITY and hard < _FILE_BYTES:
        fact = f"at most {format_bytes(hard)} (ulimit -f)"
        yield Finding("problem", "file size", fact, "raise it: ulimit -f unlimited, LimitFSIZE=infinity")
    elif soft != resource.RLIM_INFINITY and soft < _FILE_BYTES:
        fact = f"at most {format_bytes(soft)} in a trainer (ulimit -f)"
        yield Finding("warning", "file size", fact, "the engine raises its own; the ring of batches may be longer")


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _sandbox() -> Iterator[Finding]:
    """Checks calls and files that a container may lack, and the user's home."""
    try:
        os.close(os.memfd_create("streamer-doctor"))  # type: ignore[attr-defined, unused-ignore]  # macOS
    except (AttributeError, OSError) as error:
        advice = "unlinked files of /dev/shm, or of TMPDIR, are used instead: give /dev/shm room"
        yield Finding("warning", "memfd_create", f"refused ({error})", advice)
    try:
        os.close(linux.pidfd(os.getpid()))
    except OSError as error:
        yield Finding("optional", "pidfd_open", f"refused ({error})", "ends of workers are noticed by their sockets")
    if sys.platform == "linux" and not linux.mountinfo():
        fact = "/proc/self/mountinfo is not there"
        yield Finding("warning", "mounts", fact, "network file systems are not recognised: keep the cache off them")
    if find_in_home() is None:
        fact = f"user {os.getuid()} has none: no HOME, no entry in /etc/passwd"
        yield Finding(
            "warning", "home", fact, "netrc and ~/.aws are not looked for; name the cache folder (cache_dir=)"
        )


def _variables(env: Mapping[str, str]) -> Iterator[Finding]:
    """Checks variables of the environment, and the folders of `sys.path`."""
    if odd := sorted(name for name, text in env.items() if not _is_utf8(name + text)):
        yield Finding(
            "optional", "variables", f"not UTF-8: {', '.join(map(ascii, odd))}", "they are passed on as they are"
        )
    if odd := [ascii(path) for path in import_paths() if not _is_utf8(path)]:
        yield Finding("warning", "sys.path", f"not UTF-8: {', '.join(odd)}", "rename these folders")
    threads = env.get("OMP_NUM_THREADS", "")
    if threads and not threads.isdecimal():
        yield Finding("optional", "OMP_NUM_THREADS", ascii(threads), "a worker takes the first number, or one thread")
    socks = [name for name in (*_SOCKS, *map(str.lower, _SOCKS)) if env.get(name, "").lower().startswith("socks")]
    if socks:
        fact = f"{socks[0]} names a SOCKS proxy"
        yield Finding("warning", "proxy", fact, "S3 and web servers are read through it; Google's and Azure's are not")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _runtime_folder(folder: Path) -> Iterator[Finding]:
    """Checks whether the runtime folder can be written."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(place, os.W_OK):
        fact = f"{folder}: user {os.getuid()} may not write to {place}"
        yield Finding("problem", "runtime folder", fact, "set STREAMER_RUNTIME_DIR")
        return
    found = os.statvfs(place)
    if not found.f_bavail or (found.f_files and not found.f_favail):
        yield Finding("problem", "runtime folder", f"{folder}: the disk is full", "set STREAMER_RUNTIME_DIR")


def _ranks(env: Mapping[str, str]) -> Iterator[Finding]:
    """Checks whether the variables of launchers tell a rank without doubt."""
    try:
        place = find_place(env)
    except ConfigError as error:
        yield Finding("problem", "rank", str(error))
        return
    if place.note:
        yield Finding("warning", "rank", f"{place.rank} of {place.world_size}", place.note)


def library_findings() -> Iterator[Finding]:
    """Yields a finding for each extra of this distribution: the installed versions, or what is missing."""
    try:
        required = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        yield Finding("warning", "extras", f"{_DISTRIBUTION} is not installed, only importable", "pip install .")
        return
    for extra, names in sorted(extras(required).items()):
        versions = {name: _version(name) for name in names}
        if missing := sorted(name for name, version in versions.items() if version is None):
            advice = f"pip install '{_DISTRIBUTION}[{extra}]' where it is needed"
            yield Finding("optional", extra, f"no {', '.join(missing)}", advice)
        else:
            yield Finding("ok", extra, ", ".join(f"{name} {version}" for name, version in sorted(versions.items())))


def extras(required: list[str]) -> dict[str, list[str]]:
    """Returns the distributions of each extra, without extras for developers and references to other extras.

    Args:
        required: requirements of a distribution, as in its metadata.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for line in required:
        extra = _EXTRA.search(line)
        name = _NAME.match(line)
        if extra is not None and name is not None and extra[1] not in _NOT_SHOWN and name[0] != _DISTRIBUTION:
            found[extra[1]].append(name[0])
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
