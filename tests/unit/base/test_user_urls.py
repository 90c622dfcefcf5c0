"""Secrets in urls, options and errors: what is shown and stored, and what becomes an option."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.base.user_urls import LOGINS, has_secret, logins_of, shown, take_logins
from streamer.config import DatasetConfig
from streamer.errors import ConfigError, StreamerError, without_secrets
from streamer.store.root import StoreRoot

CANARY = "hunter2"
# What a repr must not show.
SECRET_FIELDS = re.compile(r"(storage_|out_storage_)?options|token|secret|password|headers|login|proxy")
# Their options are those of a format, the token is a place in a listing.
NOT_SECRET = {"SourceDataset", "ListedPage"}
HOLDERS = ("wire", "client", "engine", "service", "store", "fetch", "indexing", "shards", "peers", "loader.options")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://user:hunter2@host:8443/a/b@c.tar", "https://host:8443/a/b@c.tar"),
        ("https://hunter2@host/a", "https://host/a"),
        ("HTTPS://u:hunter2@host/a", "HTTPS://host/a"),
        ("https://u:hunter2@w@host/a", "https://host/a"),
        ("https://u:hun/ter2@host/a", "https://host/a"),
        ("https:/u:hunter2@host/a", "https:/host/a"),
        ("https://h/a.tar?X-Amz-Signature=hunter2", "https://h/a.tar"),
        ("https://u:p?hunter2@host/a", "https://host/a"),
        ("sftp://u:hunter2@host/a", "sftp://host/a"),
        ("sftp://reader@host/a", "sftp://reader@host/a"),
        ("zip://a.csv::https://u:hunter2@host/a.zip", "zip://a.csv::https://host/a.zip"),
        ("abfs://container@account.dfs.core.windows.net/a", "abfs://container@account.dfs.core.windows.net/a"),
        ("s3://b/shard-???.tar", "s3://b/shard-???.tar"),
        ("s3://b/a.tar?X-Amz-Signature=hunter2", "s3://b/a.tar"),
        ("s3://bucket/user@example.org/a", "s3://bucket/user@example.org/a"),
        ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
        ("/data/user@host/a?b", "/data/user@host/a?b"),
        ("a@b/c", "a@b/c"),
    ],
)
def test_shown(url: str, expected: str) -> None:
    """The shown form of a url has neither login nor signature; containers, users' names and globs' ? stay."""
    assert shown(url) == expected


LETTERS = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="/?#\\@\x7f\x85\xa0"), min_size=1
)


@given(
    st.sampled_from(["http", "https", "ftp", "sftp", "webdav", "HTTPS"]),
    LETTERS,
    LETTERS,
    st.sampled_from(["", "/a@b", "/x?y=1"]),
)
def test_a_login_goes_where_keys_are(scheme: str, user: str, password: str, path: str) -> None:
    """A login of any characters in a url becomes an option: the url has none, and the option gives it back."""
    root = f"{scheme}://host.test:81"
    url = f"{scheme}://{user}:{password}@host.test:81{path}"
    (clean,), options = take_logins([url], {"pin": "size"})
    assert clean == root + path
    assert logins_of(options) == {f"{scheme.lower()}://host.test:81": f"{user}:{password}"}
    assert options["pin"] == "size"
    assert take_logins([clean], options) == ((clean,), options)
    assert has_secret(url)
    assert not has_secret(clean)


def test_urls_without_logins_change_nothing() -> None:
    """Urls without logins leave the options the same object, so that keys of sessions and manifests stay."""
    options = {"key": "k"}
    urls = ("s3://b/a@b/", "abfs://c@account/x", "sftp://reader@host/x", "/a@b", "https://host/u@v")
    assert take_logins(urls, options) == (urls, options)
    assert take_logins(urls, options)[1] is options


@pytest.mark.parametrize(
    "urls",
    [
        ["https://a:hunter2@h/x", "https://b:hunter2@h/y"],
        ["https://a:hun\nter2@h/x"],
        ["https://a:hunter2#@h/x"],
        ["https://a:hun/ter2@h/x"],
        ["zip://a::https://a:hunter2@h/x"],
        ["https://a:hunter2@/x"],
    ],
)
def test_logins_that_are_read_in_several_ways(urls: list[str]) -> None:
    """Urls with a login that can be read in several ways are refused, and the error does not show the login."""
    with pytest.raises(ConfigError) as refused:
        take_logins(urls, {})
    assert "hunter" not in f"{refused.value!r} {refused.value.details}"
    assert "ter2" not in str(refused.value)


@pytest.mark.parametrize("given_logins", ["hunter2", {"https://h": 1}, ["hunter2"]])
def test_an_option_that_is_no_mapping(given_logins: object) -> None:
    """An option for logins that is no mapping is refused, and the error does not show its value."""
    with pytest.raises(ConfigError, match="is not a mapping of roots to logins") as refused:
        logins_of({LOGINS: given_logins})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "GET https://u:hunter2@host/a failed",
        "GET 'https://hunter2@host/a': 403",
        "ftp://u:hunter2@h",
        "https://h/a?X-Amz-Credential=hunter2&X-Amz-Date=1&x-amz-signature=hunter2 failed",
        "https://account.blob.core.windows.net/c/a?sv=1&sig=hunter2%3D",
        "https://h/resolve?a=1&amp;token=hunter2",
    ],
)
def test_texts_of_other_libraries(text: str) -> None:
    """An error of streamer shows neither the login nor the signature in the text of another library that it quotes."""
    error = StreamerError(text, url=text)
    assert "hunter2" not in f"{error!r} {error} {error.details} {without_secrets(text)}"
    assert error.message != ""


def test_texts_without_secrets_stay() -> None:
    """Addresses, containers, decorators and mail addresses in a text are not taken for logins."""
    text = "abfs://c@account/x, see https://host/a@b and mail me@host; a='b@c'; sftp://reader@host; s3://b/k?x=1"
    assert without_secrets(text) == text


def _classes() -> list[type]:
    """Returns all structs and dataclasses that have a field which may be secret, in the packages that have options."""
    found: dict[str, type] = {"config": DatasetConfig}
    for package in HOLDERS:
        module = importlib.import_module(f"streamer.{package}")
        for one in pkgutil.walk_packages(module.__path__, f"streamer.{package}."):
            if one.name.endswith("__main__"):
                continue
            for kind in vars(importlib.import_module(one.name)).values():
                if isinstance(kind, type) and kind.__module__ == one.name and _has_secrets(kind):
                    found[f"{kind.__module__}.{kind.__qualname__}"] = kind
    return [found[name] for name in sorted(found)]


def _has_secrets(kind: type) -> bool:
    """Returns whether a struct or dataclass has a field that may be secret."""
    if issubclass(kind, msgspec.Struct):
        names: list[str] = list(kind.__struct_fields__)
    elif dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    else:
        return False
    return any(map(SECRET_FIELDS.fullmatch, names)) and kind.__name__ not in NOT_SECRET


def _made(kind: type) -> object:
    """Returns an instance whose secret fields have the canary."""
    if issubclass(kind, msgspec.Struct):
        return kind(**{name: CANARY if SECRET_FIELDS.fullmatch(name) else () for name in kind.__struct_fields__})
    one = object.__new__(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        object.__setattr__(one, field.name, CANARY if SECRET_FIELDS.fullmatch(field.name) else ())
    return one


@pytest.mark.process  # libraries that are imported ask for the kind of machine
def test_no_repr_shows_options() -> None:
    """No repr of a class that holds options, keys or tokens shows their values."""
    classes = _classes()
    assert len(classes) > 20
    telling = []
    for kind in classes:
        try:
            text = repr(_made(kind))
        except (AttributeError, TypeError, ValueError):  # it checks or shows values of other types
            continue
        telling += [f"{kind.__module__}.{kind.__qualname__}"] if CANARY in text else []
    assert not telling, "\n".join(telling)


def test_logins_are_found_in_either_case() -> None:
    """A login is found whatever the case of scheme and host in the option and in the url: both count alike.

    The request was sent without a login, and no error said why.
    """
    for written in ("HTTPS://Host:81", "https://host:81/", "https://HOST:81"):
        for url in ("https://host:81/x", "HTTPS://HOST:81/x", "https://Host:81/x"):
            assert StoreRoot.resolve(url, {LOGINS: {written: "u:p"}}).login == "u:p", (written, url)
            assert StoreRoot.resolve(url.replace("://", "://u:p@"), {LOGINS: {written: "u:p"}}).login == "u:p"
    assert StoreRoot.resolve("https://other:81/x", {LOGINS: {"https://host:81": "u:p"}}).login == ""


def test_two_logins_of_one_host_in_the_option() -> None:
    """Two logins for a host in two cases are refused, and the error does not show them."""
    with pytest.raises(ConfigError, match="two logins for https://host;") as refused:
        logins_of({LOGINS: {"https://Host": "a:hunter2", "https://host": "b:hunter2"}})
    assert "hunter2" not in f"{refused.value!r} {refused.value.details}"
    assert logins_of({LOGINS: {"https://Host": "a:p", "https://host/": "a:p"}}) == {"https://host": "a:p"}
