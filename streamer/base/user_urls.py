"""Prepares urls that users give: makes local paths absolute, and moves logins from urls to the storage options.

A relative path would mean something else to another process of the machine, such as the engine.

Urls are written into manifests, messages, statistics and logs, where the login of `https://user:password@host/x.tar`
must not be. What takes urls from users (commands, `loader/`, `service/`, `shards/`) therefore splits them at once: the
url without the login goes on, and the login becomes the storage option `logins={"https://host": "user:password"}`,
which is kept where keys are. `store/` reads it there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from streamer.errors import ConfigError, is_login, printable, without_secrets

# Name of the storage option that has the logins, by root (scheme and host).
LOGINS = "logins"
_AUTHORITY = re.compile(r"(?:(?<=::)|^)([A-Za-z][\w+.-]*):/+([^/]*)")
# Finds a login whose password has a slash that is not escaped: there the colon seems to begin a port that has letters.
_CUT_LOGIN = re.compile(r":(?!\d*(?:/|$))[^/\[\]]*/.*@", re.DOTALL)
# Signs that end the host of a url for one library or another, so that libraries would read different logins.
_UNSAFE = re.compile(r"[?#\\\s\x00-\x1f\x7f]")


def absolute(url: str) -> str:
    """Returns a local path as an absolute one, with the slash at its end if it has one.

    A url with `://`, `file://` included, only gets its scheme in lower case.
    """
    scheme, separator, rest = url.partition("://")
    if separator:
        return f"{scheme.lower()}://{rest}"
    # abspath drops the slash that distinguishes a folder from an object.
    return os.path.abspath(url).rstrip("/") + ("/" if url.endswith("/") else "")


def shown(url: str) -> str:
    """Returns a url as it may be shown: without login, without a query that may be a signature, and on one line."""
    scheme, separator, _ = url.partition("://")
    url = without_login(url)
    path, mark, query = url.partition("?")
    # A question mark without "=" after it is part of a pattern or a name, in urls that are not of the web.
    if mark and separator and (scheme.lower() in ("http", "https") or "=" in query):
        url = path
    return printable(url).replace("\n", "\\n")


def without_login(url: str) -> str:
    """Returns a url without its login, also if it is chained by `::`.

    What `errors.is_login` does not take for a login, such as the container of `az://`, stays.
    """
    if "@" not in url:
        return url
    return "::".join(_without_login(part) for part in url.split("::")) if "::" in url else _without_login(url)


def _without_login(url: str) -> str:
    """Returns one url, which is not chained, without its login, also if the password has a slash."""
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
    """Returns urls without logins, and storage options that have those logins; changes neither argument.

    If no url has an `@`, the options are returned as they are.

    Raises:
        ConfigError: libraries would read a login in several ways, a host has two logins, a login is in chained urls,
            or the option `logins` is not a mapping of texts.
    """
    clean = tuple(urls)
    if not any("@" in url for url in clean):
        return clean, options
    logins = logins_of(options)
    for url in clean:
        root, login = _login_of(url)
        if not login:
            continue
        if logins.setdefault(login_key(root), login) != login:
            raise ConfigError(
                f"{root}: two logins for one host in one dataset; make a dataset of each, or give one of them in "
                f"storage_options as {LOGINS}={{{root!r}: ...}}",
                field="url",
            )
    found = {**options, LOGINS: logins} if logins else options
    return tuple(map(without_login, clean)), found


def logins_of(options: Mapping[str, object]) -> dict[str, str]:
    """Returns the logins that the storage options have, by `login_key` of the root; {} if they have none.

    Raises:
        ConfigError: the option is not a mapping of texts to texts, or has two logins for one root. The error shows none
            of its values.
    """
    given = options.get(LOGINS) or {}
    if not isinstance(given, Mapping) or not all(isinstance(part, str) for pair in given.items() for part in pair):
        raise ConfigError(
            f"{LOGINS} in storage_options is not a mapping of roots to logins; write "
            f'{LOGINS}={{"https://host": "user:password"}}',
            field="storage_options",
            option=LOGINS,
        )
    logins: dict[str, str] = {}
    for given_root, login in given.items():
        root = login_key(shown(given_root.rstrip("/")))
        if logins.setdefault(root, login) != login:
            raise ConfigError(
                f"{LOGINS} in storage_options has two logins for {root}; upper and lower case count alike there",
                field="storage_options",
                option=LOGINS,
            )
    return logins


def login_key(root: str) -> str:
    """Returns the name of a root in the mapping of logins: schemes and hosts count alike in upper and lower case."""
    return root.lower()


def has_secret(url: str) -> bool:
    """Whether a url has a login or a signature, which must not be stored."""
    is_signed = "?" in url and url.lower().startswith(("http://", "https://")) and without_secrets(url) != url
    return is_signed or without_login(url) != url


def _login_of(url: str) -> tuple[str, str]:
    """Returns the root of a url and its login; both are "" if the url has no login.

    Raises:
        ConfigError: it is not clear which part of the url is the login.
    """
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
