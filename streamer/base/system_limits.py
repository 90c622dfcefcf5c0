"""Turns errors of the operating system that mean one of its limits into errors that name the limit.

Used in every process: by the client, the loader and its workers, the cache and the engine.
"""

from __future__ import annotations

import contextlib
import errno
import resource
from collections.abc import Iterator

from streamer.errors import ConfigError, StreamerError, describe_undecodable


def is_shortage(error: OSError) -> bool:
    """Whether no file can be opened for the moment: this process (EMFILE) or the machine (ENFILE) has too many open."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def limit_error(error: BaseException) -> ConfigError | None:
    """Returns an error that names the limit which `error` means, and what to do; None if it means no limit.

    The limits are those of descriptors, processes and threads, length of a file, and memory. A UnicodeEncodeError
    means that a path has letters which the encoding of this process lacks. Errors of streamer give None.
    """
    if isinstance(error, StreamerError):
        return None
    if isinstance(error, UnicodeEncodeError):
        return ConfigError(
            f"{describe_undecodable(error.object)}; or rename the folder, or correct the variable of the environment",
            field="encoding",
        )
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EMFILE:
        return out_of_descriptors()
    if code == errno.EAGAIN or (isinstance(error, RuntimeError) and "new thread" in str(error)):
        return ConfigError(
            f"no further process or thread may start ({error}): raise the user's limit (ulimit -u, now "
            f"{_format_limit(resource.RLIMIT_NPROC)}), pids.max of the cgroup, or the address space (ulimit -v, now "
            f"{_format_limit(resource.RLIMIT_AS)}), or lower num_workers",
            field="RLIMIT_NPROC",
        )
    if code == errno.EFBIG:
        return ConfigError(
            f"a file may not be longer than {_format_limit(resource.RLIMIT_FSIZE)} bytes (ulimit -f, in blocks of "
            "1,024): raise the limit (ulimit -f unlimited; LimitFSIZE= of a service)",
            field="RLIMIT_FSIZE",
        )
    if code == errno.ENOMEM or isinstance(error, MemoryError):
        return ConfigError(
            f"no memory could be mapped ({error}): raise the limit of the address space (ulimit -v, now "
            f"{_format_limit(resource.RLIMIT_AS)}) or of the cgroup's memory, or lower num_workers or the batch size",
            field="RLIMIT_AS",
        )
    return None


def find_shortage(error: BaseException) -> ConfigError | None:
    """Returns the error that says what to do if `error` means that this process has too many files open, else None.

    Code of a user may raise that as well, and other errors of its own that `limit_error` would take for limits.
    """
    if not isinstance(error, OSError) or isinstance(error, StreamerError) or error.errno != errno.EMFILE:
        return None
    found = out_of_descriptors()
    found.__cause__ = error
    return found


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of any code means that this process gets no more memory.

    FFmpeg's own error of that name, which has a number, does not count: sizes in damaged files cause it, too.
    """
    return isinstance(error, MemoryError) and not hasattr(error, "errno")


def raise_shortage(error: BaseException) -> None:
    """Raises what the error of a decoder means if that says nothing of the bytes, and returns if they may be damaged.

    Raises:
        MemoryError: the error itself.
        ConfigError: this process has too many files open.
    """
    if is_out_of_memory(error):
        raise error
    if (shortage := find_shortage(error)) is not None:
        raise shortage from error


def out_of_descriptors() -> ConfigError:
    """Returns the error for this process when it has as many files open as it may; does not raise it."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ConfigError(
        f"this process has {_format_limit(resource.RLIMIT_NOFILE)} files open, and may have no more: raise "
        f"RLIMIT_NOFILE (ulimit -n, up to {hard_limit}; LimitNOFILE= of a service), or close the files that your own "
        "code leaves open",
        field="RLIMIT_NOFILE",
    )


@contextlib.contextmanager
def name_limits() -> Iterator[None]:
    """Lets a `with`, or a decorated function, raise a ConfigError instead of an error that means a limit of the system.

    Which errors these are says `limit_error`; all others are raised as they are.
    """
    try:
        yield
    except (OSError, RuntimeError, MemoryError, UnicodeEncodeError) as error:
        if (found := limit_error(error)) is None:
            raise
        raise found from error


def _format_limit(limit: int) -> str:
    soft = resource.getrlimit(limit)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
