"""How libcurl reaches a root: addresses, headers and trusted certificates."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamer.errors import ConfigError
from streamer.store.curl import access as curl_access
from streamer.store.curl.access import Access, find_ca_bundle, make_access
from streamer.store.root import StoreRoot

SECRET = "do-not-show"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://h/a b", "http://h/a%20b"),
        ("http://h/a%20b", "http://h/a%20b"),
        ("http://h/100%.bin", "http://h/100%25.bin"),
        ("http://h/a%zz", "http://h/a%25zz"),
        ("http://h/a#b", "http://h/a%23b"),
        ("http://h/\u00fc?x=1&y=a%2Fb", "http://h/%C3%BC?x=1&y=a%2Fb"),
        ("http://[::1]:80/a[1]", "http://[::1]:80/a[1]"),
    ],
)
def test_a_web_address_keeps_what_is_escaped(url: str, address: str) -> None:
    """A web address keeps what is escaped and gets the rest escaped; a # is part of the name, as it is for obstore."""
    assert Access().address(url) == address


def test_the_address_of_a_key() -> None:
    """The address of a key has every character escaped but those that SigV4 leaves alone."""
    assert Access(base="http://h/b/").address("a/b~c+d%20e?") == "http://h/b/a/b~c%2Bd%2520e%3F"


def _access(headers: dict[str, str]) -> Access | None:
    """Makes the access to a web server with these headers."""
    return make_access(StoreRoot.resolve("http://h/x", {"headers": headers}))


@pytest.mark.parametrize("wrong", [f"{SECRET}\r\nEvil: 1", f"{SECRET}\u20ac"], ids=["two lines", "not Latin-1"])
def test_headers_become_lines(wrong: str) -> None:
    """Headers become lines of libcurl; a value that breaks the line or is not Latin-1 is refused and not shown."""
    access = _access({"A": "b c", "Empty": ""})
    assert access is not None
    assert access.headers == ("A: b c", "Empty;")
    with pytest.raises(ConfigError, match="'A'") as caught:
        _access({"A": wrong})
    assert SECRET not in str(caught.value)


def test_trusted_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSL_CERT_FILE and SSL_CERT_DIR go before the system's certificates; a missing file is ignored."""
    (tmp_path / "ca.pem").touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert find_ca_bundle() == (str(tmp_path / "ca.pem"), str(tmp_path))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    assert find_ca_bundle()[0] in (None, *curl_access._BUNDLES)
