"""Which users may connect to a service: by uid, group and token; credentials of real sockets are read once."""

import os
import socket

import pytest

from streamer.cache.folder import group_id
from streamer.config import CacheConfig, ServiceConfig
from streamer.errors import AccessDeniedError, ConfigError, EngineUnavailableError
from streamer.service.admission import Admission, Credentials, SoleUser


def admission(tmp_path, *, group=None, **service):
    """Makes the rule of a service with this configuration."""
    return Admission(CacheConfig(directory=tmp_path, group=group), ServiceConfig(**service))


def test_the_kernel_says_who_is_there():
    """The kernel gives the process, the user and all groups of a socket's other end."""
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        found = Credentials.read(here)
    assert (found.pid, found.uid) == (os.getpid(), os.getuid())
    assert found.groups == {os.getgid(), *os.getgroups()}


@pytest.mark.parametrize(
    ("uid", "groups"), [(os.geteuid(), ()), (0, ()), (1001, ()), (1002, (2000,)), (1002, (5, 2000))]
)
def test_the_owner_root_listed_users_and_the_group_may(tmp_path, uid, groups):
    """The owner of the cache, root, a listed user and a member of the group may connect, each for that alone."""
    rule = admission(tmp_path, group="2000", allow_uids=(1001,))
    rule.check(Credentials(1, uid, frozenset(groups)), "")
    with pytest.raises(EngineUnavailableError, match="user 1003 may not use this engine"):
        rule.check(Credentials(1, 1003, frozenset({5})), "")


def test_everybody_else_may_not_and_learns_why(tmp_path):
    """A user who may not connect gets an error with the uid and the setting that would allow it."""
    with pytest.raises(EngineUnavailableError, match=r"user 1002 .* allow_uids"):
        admission(tmp_path, group="2000").check(Credentials(1, 1002, frozenset([3000])), "")


@pytest.mark.parametrize(("shown", "match"), [("", "none was shown"), ("wrong", "another one")])
def test_a_token_is_asked_for_besides(tmp_path, shown, match):
    """A token is asked of every user, the owner too; the error names STREAMER_TOKEN_FILE and shows no token."""
    (tmp_path / "token").write_text("hunter2\n")
    rule = admission(tmp_path, token_file=tmp_path / "token")
    rule.check(Credentials(1, os.geteuid(), frozenset()), "hunter2")
    with pytest.raises(EngineUnavailableError, match=match) as refused:
        rule.check(Credentials(1, os.geteuid(), frozenset()), shown)
    assert "STREAMER_TOKEN_FILE" in str(refused.value)
    assert "hunter2" not in f"{refused.value} {rule!r}"


@pytest.mark.parametrize("content", [None, " \n"])
def test_a_token_file_that_says_nothing_is_an_error(tmp_path, content):
    """A missing or empty token file is a ConfigError, because the service would be open to all or to none."""
    if content is not None:
        (tmp_path / "token").write_text(content)
    with pytest.raises(ConfigError, match="token"):
        admission(tmp_path, token_file=tmp_path / "token")


def test_a_group_has_a_name_or_a_number():
    """A group is given by its name or by its number, which has no name in most containers."""
    assert group_id("54321") == 54321
    assert group_id("root") == 0
    with pytest.raises(ConfigError, match="no-such-group"):
        group_id("no-such-group")


def of_user(uid: int) -> Credentials:
    """Makes the credentials of a user."""
    return Credentials(1, uid, frozenset())


def test_a_service_without_datasets_serves_one_user():
    """A service without [[datasets]] serves the first user that asks; a second one is told what to configure."""
    rule = SoleUser(applies=True)
    for uid in (1001, 1002):  # so far, both may ask for statistics
        rule.check_connection(of_user(uid))
    rule.check_request(of_user(1001))
    rule.check_request(of_user(1001))
    rule.check_connection(of_user(1001))
    with pytest.raises(EngineUnavailableError, match=r'serves one user.* user 1001.*\[\[datasets\]\] url = "s3'):
        rule.check_connection(of_user(1002))
    for uid in (0, os.geteuid()):
        rule.check_connection(of_user(uid))
        with pytest.raises(AccessDeniedError, match=f"user {uid} needs a service of its own"):
            rule.check_request(of_user(uid))
    rule.check_request(None)  # a system that does not tell


def test_other_services_serve_all_that_may_connect():
    """Services with [[datasets]] and engines that a trainer starts serve all users that may connect."""
    rule = SoleUser(applies=False)
    for uid in (1001, 1002):
        rule.check_request(of_user(uid))
        rule.check_connection(of_user(uid))
