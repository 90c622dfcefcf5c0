"""Variables that a process has changed since its engine was started."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamer.client import store_variables
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.client.store_variables import explain_error, record_engine
from streamer.errors import AccessDeniedError, ManifestError

REFUSED = AccessDeniedError("s3://b/: refused", url="s3://b/", status=403)


def test_an_error_of_a_store_names_the_variables_that_have_changed() -> None:
    """The error of a store names the variables that changed since the process met its engine, without values."""
    record_engine(-1, {"AWS_PROFILE": "old", "AWS_REGION": "x", "HOME": "/a"})
    record_engine(-1, {"AWS_PROFILE": "later, and too late"})
    error = explain_error(REFUSED, -1, {"AWS_PROFILE": "new", "AWS_ACCESS_KEY_ID": "hush", "HOME": "/b"})
    assert isinstance(error, AccessDeniedError)
    assert str(error).startswith(
        "s3://b/: refused; AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_REGION of this process are others"
    )
    assert "hush" not in str(error)
    assert error.details["status"] == 403


@pytest.mark.process
def test_an_engine_that_lingers_keeps_the_variables_of_an_earlier_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that finds an engine of an earlier job is warned once which of its own variables are not used."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    settings = ClientSettings(
        cache_dir=tmp_path / "cache", runtime_dir=tmp_path / "run", cache_bytes=8 << 20, grace_seconds=0.1
    )
    with EngineClient(settings) as earlier:
        earlier.statistics()
        store_variables._met.clear()
        monkeypatch.setenv("SSL_CERT_FILE", "/etc/hush.pem")
        monkeypatch.setenv("AWS_PROFILE", "hush")
        with EngineClient(settings) as later:
            assert later.statistics()["pid"] == earlier.statistics()["pid"]
    warned = [record.getMessage() for record in caplog.records if "other values" in record.getMessage()]
    assert len(warned) == 1
    assert "started with other values of AWS_PROFILE, SSL_CERT_FILE, and keeps them" in warned[0]
    assert "hush" not in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        *(
            "AWS_CA_BUNDLE",
            "AWS_ENDPOINT_URL_S3",
            "AZURE_STORAGE_ACCOUNT",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "HF_TOKEN",
        ),
        *("https_proxy", "NO_PROXY", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("NETRC", "STORAGE_EMULATOR_HOST", "GCE_METADATA_HOST", "IDENTITY_ENDPOINT", "STREAMER_CONFIG"),
    ],
)
def test_every_variable_that_stores_read_is_compared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of credentials, addresses, proxies, certificates and settings are compared with the engine's."""
    monkeypatch.setattr(store_variables, "_met", {})
    record_engine(-1, {name: "old"})
    assert f"; {name} of this process are others" in str(explain_error(REFUSED, -1, {name: "new"}))


def test_other_errors_stay_as_they_are() -> None:
    """An error stays as it is if no variable changed, no store was asked, or this process has not met the engine."""
    record_engine(-2, {"AWS_PROFILE": "old"})
    assert explain_error(REFUSED, -2, {"AWS_PROFILE": "old", "HOME": "/"}) is REFUSED
    assert explain_error(REFUSED, -3, {"AWS_PROFILE": "new"}) is REFUSED
    other = ManifestError("no objects")
    assert explain_error(other, -2, {}) is other
