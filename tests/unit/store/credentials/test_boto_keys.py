"""AWS credentials that botocore finds in files, variables and programs, and its errors as those of streamer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from streamer.errors import AccessDeniedError, ConfigError
from streamer.store.credentials import boto_keys

ROOT = "s3://b"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file that botocore reads; no other source of credentials is there."""
    for name in [*os.environ]:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path / "config"


def test_keys_and_region_of_a_profile(config: Path) -> None:
    """Keys and region of a profile in a file do not expire, and the keys are not shown in a repr."""
    config.write_text("[profile p]\nregion = r-1\naws_access_key_id = k\naws_secret_access_key = hidden\n")
    found = boto_keys.find(ROOT, "p")
    assert (found.region, found.credentials, found.ends) == ("r-1", boto_keys.AwsKeys("k", "hidden"), None)
    assert "hidden" not in repr(found.credentials) + repr(found)


def test_nothing_to_find() -> None:
    """A machine without configured credentials and without a metadata server is denied access."""
    with pytest.raises(AccessDeniedError, match="no credentials were found"):
        boto_keys.find(ROOT, None)


def test_what_is_configured_wrong(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing profile and half a pair of keys are errors that name the profile and botocore's error."""
    with pytest.raises(ConfigError, match=r"profile='none'.*ProfileNotFound"):
        boto_keys.find(ROOT, "none")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    with pytest.raises(ConfigError, match="PartialCredentialsError"):
        boto_keys.find(ROOT, None)


@pytest.mark.process
def test_a_program_that_fails(config: Path) -> None:
    """A credential_process that fails is denied with advice, may be tried again soon, and its output is not shown."""
    config.write_text("[default]\ncredential_process = python3 -c 'import sys; sys.exit(\"token=hidden\")'\n")
    with pytest.raises(AccessDeniedError, match=r"credential_process failed .*by hand") as caught:
        boto_keys.find(ROOT, None)
    assert caught.value.details["soon"]
    assert "hidden" not in str(caught.value) + str(caught.value.__cause__)


def test_the_environment_does_without_boto(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the environment are found without botocore: the pair is needed, the session token is not."""
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    assert boto_keys.find(ROOT, None).credentials is None
    pair = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    assert boto_keys.find_in_environment({"AWS_ACCESS_KEY_ID": "k"}) is None
    assert boto_keys.find_in_environment(pair) == boto_keys.AwsKeys("k", "s", None)
    assert boto_keys.find_in_environment({**pair, "AWS_SESSION_TOKEN": "t"}) == boto_keys.AwsKeys("k", "s", "t")


def test_what_needs_boto_is_refused_without_it(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile is refused without botocore, because obstore would take the machine's role instead.

    That holds for one by option or variable, and for a default profile in a file.
    """
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(ConfigError, match=r"profile='p' needs botocore; pip install 'streamer-data\[aws\]'"):
        boto_keys.find(ROOT, "p")
    config.write_text("[default]\nregion = r-1\n[profile q]\nrole_arn = r\n")
    assert boto_keys.find(ROOT, None).credentials is None
    config.write_text("[default]\nrole_arn = r\n")
    with pytest.raises(ConfigError, match=r"config has a default profile, which needs botocore"):
        boto_keys.find(ROOT, None)
    monkeypatch.setenv("AWS_PROFILE", "q")
    with pytest.raises(ConfigError, match="AWS_PROFILE='q' needs botocore"):
        boto_keys.find(ROOT, None)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert boto_keys.find(ROOT, None).credentials == boto_keys.AwsKeys("k", "s")
