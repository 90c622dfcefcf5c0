"""Serves the state of a service over HTTP: a page for people, statistics, metrics and health.

`lifecycle.py` runs it beside the socket of an engine. Nothing can be changed through it.

/                 a page for people: the content of `streamer top`.
/statistics.json  the data behind it, as in `streamer stat --json`.
/history.json     the data behind its curves; ?seconds=3600 for the last hour.
/healthz          200 while the engine's loop runs.
/readyz           200 while trainers may connect; 503 with the reason otherwise.
/metrics          for Prometheus.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import ipaddress
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

from streamer.base.bounded_connections import BoundedConnections
from streamer.base.extras import require_modules
from streamer.engine.statistics import Values
from streamer.errors import ConfigError
from streamer.service.history.rings import DEFAULT_SECONDS, MAX_SECONDS

if TYPE_CHECKING:
    from aiohttp import web

    from streamer.service.history.history import History

logger = logging.getLogger(__name__)

# Values of the setting http= that mean no HTTP.
OFF = ("", "off")
# A scrape has no body and short headers, so longer requests are refused.
_MAX_BODY_BYTES = 1024
_MAX_LINE_BYTES = 4096
# A connection that has been answered is closed after this time without another request, since it costs a descriptor.
_KEEPALIVE_SECONDS = 15.0
# Connections at once: enough for scrapers, probes and a few pages; each costs a descriptor and 19 KB. One that sends
# nothing is closed after `_SILENT_SECONDS`.
_MAX_CONNECTIONS = 64
_SILENT_SECONDS = 20.0
_BACKLOG = 128
_DATA_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
# Longer texts are no number of seconds.
_MAX_DIGITS = 12

# Paths that are answered under any name of the host, unless it listens at loopback: scrapers and probes use names that
# only their cluster knows, such as that of a Service.
_OPEN = ("/metrics", "/healthz", "/readyz")
_OTHER_NAME = "ask by an address, as localhost, or by this machine's own name: the header Host has another one"

# Returns the statistics of the service.
Look = Callable[[], Values]
# Returns why the service is not ready, or "" if it is.
NotReady = Callable[[], str]
Handler = Callable[["web.Request"], Awaitable["web.StreamResponse"]]


@contextlib.asynccontextmanager
async def serve_http(
    address: str, look: Look, not_ready: NotReady, history: History | None = None
) -> AsyncIterator[None]:
    """Serves the page, the statistics and the metrics while the context lasts.

    Args:
        address: "host:port" to listen at. With "" or "off" nothing is served, and aiohttp is not imported.
        look: returns the service's statistics.
        not_ready: returns why the service is not ready, or "" if it is.
        history: data of the page's curves. Without it the page has none, and /history.json is 404.

    Raises:
        ConfigError: `address` is not an address, it is taken, or the extra `serve` is not installed.
    """
    if address in OFF:
        yield
        return
    require_modules(f"http={address!r}", "serve", "aiohttp", "prometheus_client", field="http")
    from aiohttp import web

    host, port = parse_address(address)
    connections = BoundedConnections(_MAX_CONNECTIONS, _SILENT_SECONDS)
    # aiohttp would log requests that it cannot parse with their bytes, which may hold escapes or tokens of others.
    silent = logging.getLogger("streamer.service.http")
    silent.disabled = True
    runner = web.AppRunner(
        _application(look, not_ready, history=history, host=host, connections=connections),
        access_log=None,
        logger=silent,
        handle_signals=False,
        keepalive_timeout=_KEEPALIVE_SECONDS,
        max_line_size=_MAX_LINE_BYTES,
        max_field_size=_MAX_LINE_BYTES,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    try:
        application = runner.server
        assert application is not None, "set up"

        def connect() -> asyncio.Protocol:
            connection = application()
            connections.count(connection)
            return connection

        try:
            listening = await asyncio.get_running_loop().create_server(connect, host, port, backlog=_BACKLOG)
        except (OSError, UnicodeError) as error:  # UnicodeError: a label of the name is empty, or too long
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"cannot serve HTTP at {address}: {reason}; choose another http=host:port, or off",
                field="http",
            ) from error
        port = listening.sockets[0].getsockname()[1]
        logger.info("page and metrics at http://%s:%d", address.rpartition(":")[0], port)
        try:
            yield
        finally:
            listening.close()
    finally:
        await runner.cleanup()


def is_own_name(name: str, host: str) -> bool:
    """Whether a name in a request is this server's: an address, localhost, the machine's name, or the configured host.

    The page and its data are refused to other names, or a page of any web site could read the answers: it would let a
    name of its own resolve to this address (DNS rebinding), and a browser takes both for one origin.

    Args:
        name: value of the Host header, perhaps with a port.
        host: host in the configuration.
    """
    name = name[: name.rfind(":")] if ":" in name and not name.endswith("]") else name
    own = os.uname().nodename
    return name.lower() in {"localhost", host.lower(), own.lower(), own.partition(".")[0].lower()} or _is_address(name)


def _is_address(name: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name.strip("[]"))
        return True
    return False


def parse_address(address: str) -> tuple[str, int]:
    """Splits an address such as 127.0.0.1:9464 or [::]:9464 into host, without brackets, and port.

    Raises:
        ConfigError: `address` is something else.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"http={address!r}: write host:port, such as 127.0.0.1:9464, or off", field="http")
    return host.strip("[]"), int(port)


def parse_seconds(text: str) -> int | None:
    """Returns the seconds of history that a request asks for, at most `MAX_SECONDS`.

    Args:
        text: Value of its parameter `seconds`; "" gives the default, 15 minutes.

    Returns:
        The seconds, or None if the text is not a whole number of at most `_MAX_DIGITS` digits.
    """
    if not text:
        return DEFAULT_SECONDS
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        return None
    return min(int(text), MAX_SECONDS)


def _application(
    look: Look, not_ready: NotReady, *, history: History | None, host: str, connections: BoundedConnections
) -> web.Application:
    """Returns the application that answers GET for each path; refuses other names (421), but see `_OPEN`."""
    from aiohttp import web

    def ready(request: web.Request) -> web.Response:
        reason = not_ready()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ready'}\n")

    def figures(request: web.Request) -> web.Response:
        from streamer.service import metrics

        body, kind = metrics.make_exposition(look())
        return web.Response(body=body, headers={"Content-Type": kind})

    def page(request: web.Request) -> web.Response:
        body, headers = make_page()
        return web.Response(body=body, content_type="text/html", charset="utf-8", headers=headers)

    def statistics(request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(look()), content_type="application/json", headers=_DATA_HEADERS)

    answers: dict[str, Callable[[web.Request], web.Response]] = {
        "/healthz": lambda request: web.Response(text="ok\n"),
        "/readyz": ready,
        "/metrics": figures,
        "/": page,
        "/statistics.json": statistics,
        "/history.json": lambda request: _answer_history(history, request),
    }

    async def answer(request: web.Request) -> web.Response:
        return answers[request.path](request)

    is_loopback = host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)

    @web.middleware
    async def check_name(request: web.Request, handler: Handler) -> web.StreamResponse:
        connections.count(request.protocol)
        if is_own_name(request.host, host) or (request.path in _OPEN and not is_loopback):
            try:
                return await handler(request)
            except web.HTTPException:
                raise
            except Exception:  # aiohttp's own log is silent
                logger.exception("GET %s was not answered", request.path)
                return web.Response(status=500, text="the service failed over this request; see its log\n")
        return web.Response(status=421, text=f"{_OTHER_NAME}\n")

    application = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[check_name])
    for path in answers:
        application.router.add_get(path, answer)
    return application


def _answer_history(history: History | None, request: web.Request) -> web.Response:
    """Answers /history.json: 404 without a history, 400 if `seconds` is no whole number."""
    from aiohttp import web

    if history is None:
        return web.Response(status=404, text="this service keeps no history\n")
    seconds = parse_seconds(request.query.get("seconds", ""))
    if seconds is None:
        return web.Response(status=400, text="write a whole number of seconds, as ?seconds=3600\n")
    body = history.to_json(time.time(), seconds)
    return web.Response(body=body, content_type="application/json", headers=_DATA_HEADERS)


@functools.cache
def make_page() -> tuple[bytes, dict[str, str]]:
    """Returns the page, `overview.html`, and the headers to send with it.

    The script of the page asks for `/statistics.json` and `/history.json`. What it shows has names that clients chose,
    so the headers let a browser run only the page's own script and style, and ask only this server.
    """
    text = files(__package__).joinpath("overview.html").read_text(encoding="utf-8")
    policy = {
        "default-src": "'none'",
        "script-src": _hash_of("script", text),
        "style-src": _hash_of("style", text),
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        # No string becomes markup, whatever a later change of the script does.
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    headers = {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    return text.encode(), headers


def _hash_of(tag: str, text: str) -> str:
    """Returns the hash by which a browser accepts the page's only inline element of this tag (CSP 3, section 2.3.1)."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
