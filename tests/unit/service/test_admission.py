"""Who may connect."""

import os
import socket

import pytest

from streamer.cache.folder import group_id
from streamer.config import CacheConfig, ServiceConfig
from streamer.errors import ConfigError, EngineUnavailableError
from streamer.service.admission import Admission, Credentials


def admission(tmp_path, *, group=None, **service):
    return Admission(CacheConfig(directory=tmp_path, group=group), ServiceConfig(**service))


def test_the_kernel_says_who_is_there():
    """Process, user and all groups of the other end."""
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        found = Credentials.of(here)
    assert (found.pid, found.uid) == (os.getpid(), os.getuid())
    assert found.groups == {os.getgid(), *os.getgroups()}


@pytest.mark.parametrize(
    ("uid", "groups"), [(os.geteuid(), ()), (0, ()), (1001, ()), (1002, (2000,)), (1002, (5, 2000))]
)
def test_the_owner_root_listed_users_and_the_group_may(tmp_path, uid, groups):
    """Any one of them is enough."""
    admission(tmp_path, group="2000", allow_uids=(1001,)).check(Credentials(1, uid, frozenset(groups)), "")


def test_everybody_else_may_not_and_learns_why(tmp_path):
    """The message names the user and what to do."""
    with pytest.raises(EngineUnavailableError, match=r"user 1002 .* allow_uids"):
        admission(tmp_path, group="2000").check(Credentials(1, 1002, frozenset([3000])), "")


@pytest.mark.parametrize(("shown", "match"), [("", "none was shown"), ("wrong", "another one")])
def test_a_token_is_asked_for_besides(tmp_path, shown, match):
    """Also of the owner; the error says which variable, and neither token."""
    (tmp_path / "token").write_text("hunter2\n")
    rule = admission(tmp_path, token_file=tmp_path / "token")
    rule.check(Credentials(1, os.geteuid(), frozenset()), "hunter2")
    with pytest.raises(EngineUnavailableError, match=match) as refused:
        rule.check(Credentials(1, os.geteuid(), frozenset()), shown)
    assert "STREAMER_TOKEN_FILE" in str(refused.value)
    assert "hunter2" not in f"{refused.value} {rule!r}"


@pytest.mark.parametrize("content", [None, " \n"])
def test_a_token_file_that_says_nothing_is_an_error(tmp_path, content):
    """Missing or empty: the service would be open to everybody, or to nobody."""
    if content is not None:
        (tmp_path / "token").write_text(content)
    with pytest.raises(ConfigError, match="token"):
        admission(tmp_path, token_file=tmp_path / "token")


def test_a_group_has_a_name_or_a_number():
    """In a container most have no name."""
    assert group_id("54321") == 54321
    assert group_id("root") == 0
    with pytest.raises(ConfigError, match="no-such-group"):
        group_id("no-such-group")
