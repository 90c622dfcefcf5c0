"""Logins in urls: how a url is shown and stored, and where its login is kept instead.

`https://user:password@host/x.tar` is written into manifests, messages, statistics and logs, so it must not have its
login there. What a user gives is split at once: the url without the login goes on, and the login becomes a storage
option, `logins={"https://host": "user:password"}`, which is kept where keys are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from streamer.errors import ConfigError, is_login, printable, without_secrets

# The storage option that has the logins, by root.
LOGINS = "logins"
_AUTHORITY = re.compile(r"(?:(?<=::)|^)([A-Za-z][\w+.-]*):/+([^/]*)")
# A password with a slash that is not escaped ends the authority too soon: no port has letters.
_CUT_LOGIN = re.compile(r":(?!\d*(?:/|$))[^/\[\]]*/.*@", re.DOTALL)
# These end a host for one library or another.
_UNSAFE = re.compile(r"[?#\\\s\x00-\x1f\x7f]")


def shown(url: str) -> str:
    """Returns a url as it is shown: without login, without query (signatures), and on one line."""
    scheme, separator, _ = url.partition("://")
    url = without_login(url)
    path, mark, query = url.partition("?")
    # A question mark in a bucket's keys stands for a letter.
    if mark and separator and (scheme.lower() in ("http", "https") or "=" in query):
        url = path
    return printable(url).replace("\n", "\\n")


def without_login(url: str) -> str:
    """Returns a url without `user:password@` before its host, also of urls that are chained by `::`."""
    if "@" not in url:
        return url
    return "::".join(_without_login(part) for part in url.split("::")) if "::" in url else _without_login(url)


def _without_login(url: str) -> str:
    found = _AUTHORITY.match(url)
    if found is None:
        return url
    start, stop = found.span(2)
    if "@" in found[2]:
        if not is_login(found[1], found[2].rpartition("@")[0]):
            return url
        return url[:start] + url[start:stop].rpartition("@")[2] + url[stop:]
    if is_login(found[1], ":") and _CUT_LOGIN.search(url, start):
        return url[:start] + url[start:].rpartition("@")[2]
    return url


def take_logins(urls: Iterable[str], options: Mapping[str, object]) -> tuple[tuple[str, ...], Mapping[str, object]]:
    """Moves the logins of urls into the option `logins`; the same options if no url has one.

    Raises:
        ConfigError: a login that libraries read in several ways, two of one host, or one inside chained urls.
    """
    clean = tuple(urls)
    if not any("@" in url for url in clean):
        return clean, options
    logins = logins_of(options)
    for url in clean:
        root, login = _login_of(url)
        if not login:
            continue
        if logins.setdefault(root, login) != login:
            raise ConfigError(
                f"{root}: two logins for one host in one dataset; make a dataset of each, or give one of them in "
                f"storage_options as {LOGINS}={{{root!r}: ...}}",
                field="url",
            )
    found = {**options, LOGINS: logins} if logins else options
    return tuple(map(without_login, clean)), found


def logins_of(options: Mapping[str, object]) -> dict[str, str]:
    """Returns the logins of the options, by root.

    Raises:
        ConfigError: they are not texts by name; no value is shown.
    """
    given = options.get(LOGINS) or {}
    if not isinstance(given, Mapping) or not all(isinstance(part, str) for pair in given.items() for part in pair):
        raise ConfigError(
            f"{LOGINS} in storage_options is not a mapping of roots to logins; write "
            f'{LOGINS}={{"https://host": "user:password"}}',
            field="storage_options",
            option=LOGINS,
        )
    return {shown(root.rstrip("/")): login for root, login in given.items()}


def has_secret(url: str) -> bool:
    """Whether a url has a login or a signature, which must not be stored."""
    is_signed = "?" in url and url.lower().startswith(("http://", "https://")) and without_secrets(url) != url
    return is_signed or without_login(url) != url


def _login_of(url: str) -> tuple[str, str]:
    """Returns the root of a url and its login; "" if it has none."""
    if "@" not in url or without_login(url) == url:
        return "", ""
    found = _AUTHORITY.match(url)
    login, _, host = found[2].rpartition("@") if found is not None else ("", "", "")
    if "::" in url or not login or not host:
        raise ConfigError(
            f"{shown(url)}: the login of this url is not understood; write it in storage_options, as "
            f'{LOGINS}={{"https://host": "user:password"}}',
            field="url",
        )
    if _UNSAFE.search(login):
        raise ConfigError(
            f"{shown(url)}: the login of this url has a sign that ends a host's name; escape it (%3F for ?, %23 for #)",
            field="url",
        )
    scheme = "" if found is None else found[1].lower()
    return f"{scheme}://{host}", login
