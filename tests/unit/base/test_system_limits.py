"""Errors of the system that mean a limit of the process, and those that do not."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from streamer.base.system_limits import limit_error, name_limits
from streamer.errors import CacheError, ConfigError


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "RLIMIT_NOFILE"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "RLIMIT_NPROC"),
        (RuntimeError("can't start new thread"), "RLIMIT_NPROC"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "RLIMIT_AS"),
        (MemoryError(), "RLIMIT_AS"),
    ],
)
def test_a_limit_is_named(error: Exception, field: str) -> None:
    """An error that means a limit becomes a ConfigError with the limit, its value, and the error as its cause."""
    with pytest.raises(ConfigError) as caught, name_limits():
        raise error
    assert caught.value.details["field"] == field
    assert caught.value.__cause__ is error
    soft = resource.getrlimit(getattr(resource, field))[0]
    assert ("unlimited" if soft == resource.RLIM_INFINITY else str(soft)) in str(caught.value)


def test_a_name_that_is_no_utf8_is_shown() -> None:
    """A name that is not UTF-8 is a ConfigError that shows the name with escapes, as Python reads it."""
    with pytest.raises(ConfigError, match=r"'/data/b\\udcffd' is not UTF-8"), name_limits():
        os.fsdecode(b"/data/b\xffd").encode()


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "none"), RuntimeError("other"), CacheError("full")])
def test_another_error_stays(error: Exception) -> None:
    """An error that means no limit is raised unchanged."""
    assert limit_error(error) is None
    with pytest.raises(type(error)) as caught, name_limits():
        raise error
    assert caught.value is error
