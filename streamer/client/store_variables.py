"""Warns if the engine was started with other environment variables than this process has (credentials, proxies).

An engine keeps the variables of the process that started it. It also serves other processes, and stays for some seconds
after the last one: the next job may have other variables. `client/launcher.py` compares them at the first connection to
each engine, `client/engine_client.py` when an engine reports an error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from streamer.config import ENGINE_VARIABLES
from streamer.errors import StoreError, StreamerError

logger = logging.getLogger(__name__)

_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "GCE_METADATA_", "CLOUDSDK_", "IDENTITY_", "MSI_", "HF_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_NAMES = frozenset(
    [*_PROXIES, *map(str.upper, _PROXIES), *_CERTIFICATES, "NETRC", "STORAGE_EMULATOR_HOST", "STREAMER_CONFIG"]
    + [f"STREAMER_{name}" for name in ENGINE_VARIABLES]
)
# The variables of engines, by pid. If they cannot be read, those of this process when it first met that engine.
_met: dict[int, dict[str, str]] = {}


def record_engine(engine: int, variables: Mapping[str, str] = os.environ) -> None:
    """Notes the variables of an engine; logs a warning if this process has others. A second call for it does nothing.

    Args:
        engine: pid of the engine.
        variables: environment of this process.
    """
    if engine in _met:
        return
    mine = _select(variables)
    theirs = _read_engine(engine)
    _met[engine] = mine if theirs is None else theirs
    if theirs not in (None, mine):
        logger.warning(
            "the engine of this cache folder (pid %d) was started with other values of %s, and keeps them; where they "
            "matter, start 3 s after the last process that uses it, use another cache_dir, or pass storage_options",
            engine,
            ", ".join(_compare(mine, _met[engine])),
        )


def explain_error(error: StreamerError, engine: int, variables: Mapping[str, str] = os.environ) -> StreamerError:
    """Returns the engine's error, with the names of variables of this process that the engine has otherwise.

    The error is returned as it is unless it is a StoreError, variables differ, and `record_engine` knows the engine.

    Args:
        error: error that the engine reported.
        engine: pid of the engine.
        variables: environment of this process now.
    """
    before = _met.get(engine)
    now = _select(variables)
    if before is None or before == now or not isinstance(error, StoreError):
        return error
    return type(error)(
        f"{error.message}; {', '.join(_compare(before, now))} of this process are others than those of its "
        "engine, which keeps its own: close all datasets and loaders and try again after 3 s, or pass storage_options",
        **error.details,
    )


def _compare(some: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """Returns the names of variables that only one of both has, or that differ."""
    return sorted({name for name, _ in some.items() ^ others.items()})


def _read_engine(engine: int) -> dict[str, str] | None:
    """Reads from /proc the variables that matter to an engine, as it was started with them.

    Returns None if they cannot be read, or the process is no engine of this package.
    """
    try:
        with open(f"/proc/{engine}/cmdline", "rb") as command, open(f"/proc/{engine}/environ", "rb") as environment:
            is_engine = b"streamer" in command.read()
            content = environment.read()
    except OSError:  # not Linux, or in another container
        return None
    if not (is_engine and content):
        return None
    pairs = (os.fsdecode(line).partition("=") for line in content.split(b"\0") if line)
    return _select({name: text for name, _, text in pairs})


def _select(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in variables.items() if name.startswith(_PREFIXES) or name in _NAMES}
