"""AWS credentials as boto finds them, and its errors as ours."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from streamer.errors import ConfigError, StoreError
from streamer.store import boto_keys


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that boto reads, and nothing else."""
    for name in [*os.environ]:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path / "config"


def test_keys_and_region_of_a_profile(config: Path) -> None:
    """They do not end, and are not shown."""
    config.write_text("[profile p]\nregion = r-1\naws_access_key_id = k\naws_secret_access_key = hidden\n")
    found = boto_keys.find("p")
    assert found is not None
    assert (found.region, found.now(), found.expires_at) == ("r-1", boto_keys.Keys("k", "hidden"), None)
    assert "hidden" not in repr(found.now()) + repr(found)


def test_nothing_to_find() -> None:
    """None: somebody else may know."""
    assert boto_keys.find(None) is None


def test_what_is_configured_wrong(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that is not there and half a pair of keys name the error and the profile."""
    with pytest.raises(ConfigError, match=r"profile='none'.*ProfileNotFound"):
        boto_keys.find("none")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    with pytest.raises(ConfigError, match="PartialCredentialsError"):
        boto_keys.find(None)


@pytest.mark.process
def test_who_cannot_be_asked_now_is_worth_another_try(config: Path) -> None:
    """A program that fails; what it prints is not in the message."""
    config.write_text("[default]\ncredential_process = python3 -c 'import sys; sys.exit(\"token=hidden\")'\n")
    with pytest.raises(StoreError, match="CredentialRetrievalError") as caught:
        boto_keys.find(None)
    assert type(caught.value) is StoreError
    assert "hidden" not in str(caught.value) + str(caught.value.__cause__)


def test_the_environment_does_without_boto(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair is needed, a token is not; a profile is refused where botocore is missing."""
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    assert boto_keys.find(None) is None
    pair = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    assert boto_keys.of_environment({"AWS_ACCESS_KEY_ID": "k"}) is None
    assert boto_keys.of_environment(pair) == boto_keys.Keys("k", "s", None)
    assert boto_keys.of_environment({**pair, "AWS_SESSION_TOKEN": "t"}) == boto_keys.Keys("k", "s", "t")
    with pytest.raises(ConfigError, match="needs botocore"):
        boto_keys.find("p")
