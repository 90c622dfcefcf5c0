"""The HTTP server of a service, asked over loopback: /metrics, /healthz, /readyz, the page and its statistics."""

import asyncio
import os
import re
import socket

import aiohttp
import pytest

from streamer.errors import ConfigError
from streamer.service.history.history import History
from streamer.service.web import parse_address, serve_http


def free_port() -> int:
    """Returns a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def get(address: str, path: str) -> tuple[int, str]:
    """Returns the status and the text of an answer."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}") as answer:
        return answer.status, await answer.text()


@pytest.mark.process
async def test_ready_says_why_not():
    """/readyz answers 503 with the reason while the service stops; /healthz and /metrics answer all the time."""
    reason = ""
    address = f"127.0.0.1:{free_port()}"
    async with serve_http(address, lambda: {"store_bytes": 5}, lambda: reason):
        assert await get(address, "/readyz") == (200, "ready\n")
        reason = "the service is stopping"
        assert await get(address, "/readyz") == (503, "the service is stopping\n")
        assert await get(address, "/healthz") == (200, "ok\n")
        status, text = await get(address, "/metrics")
        assert (status, "streamer_store_received_bytes_total 5.0" in text) == (200, True)


@pytest.mark.process
async def test_the_log_names_the_port_that_the_kernel_chose(caplog):
    """The log names the port that the kernel chose for port 0."""
    caplog.set_level("INFO")
    async with serve_http("127.0.0.1:0", dict, lambda: ""):
        (address,) = [record.args for record in caplog.records if "metrics" in record.message]
        assert (await get(":".join(map(str, address)), "/healthz"))[0] == 200


@pytest.mark.process
async def test_the_page_and_its_statistics():
    """The page may connect to its own server only, and /statistics.json has the statistics of that moment."""
    values = {"pid": 7, "sessions": [{"job": "<b>", "loader_waiting_share": None}]}
    address = f"127.0.0.1:{free_port()}"
    async with serve_http(address, lambda: values, lambda: ""), aiohttp.ClientSession() as session:
        async with session.get(f"http://{address}/") as answer:
            text = await answer.text()
            assert answer.content_type == "text/html"
            policy = answer.headers["Content-Security-Policy"].split("; ")
        assert {"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"} <= set(policy)
        assert not re.search(r"https?://|\binnerHTML\b|\son\w+=|\sstyle=", text)
        async with session.get(f"http://{address}/statistics.json") as answer:
            assert (answer.content_type, await answer.json()) == ("application/json", values)


@pytest.mark.process
async def test_another_name_in_the_header_is_refused(monkeypatch):
    """A request for another host name is refused (DNS rebinding), except metrics and health of an open server."""
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "gpu-07.example.org", "", "", "")))
    port = free_port()
    for host, open_paths in (("127.0.0.1", set()), ("0.0.0.0", {"/metrics", "/healthz", "/readyz"})):
        serving = serve_http(f"{host}:{port}", dict, lambda: "", History())
        async with serving, aiohttp.ClientSession() as session:
            for path in ("/", "/statistics.json", "/history.json", "/metrics", "/healthz", "/readyz"):
                for name in ("127.0.0.1", "localhost", f"gpu-07:{port}", "GPU-07.example.org", "[::1]:1", "[::1]"):
                    async with session.get(f"http://127.0.0.1:{port}{path}", headers={"Host": name}) as answer:
                        assert answer.status == 200, (path, name)
                for name in ("evil.example.org", f"localhost.evil.example.org:{port}", "127.0.0.1.evil.example.org"):
                    async with session.get(f"http://127.0.0.1:{port}{path}", headers={"Host": name}) as answer:
                        assert answer.status == (200 if path in open_paths else 421), (path, name)


@pytest.mark.parametrize("address", ["", "off"])
async def test_off_listens_nowhere(address):
    """With an empty address or "off" no socket is opened."""
    await asyncio.sleep(0)  # the loop's own descriptors are open
    before = os.listdir("/proc/self/fd")
    async with serve_http(address, dict, lambda: ""):
        assert os.listdir("/proc/self/fd") == before


@pytest.mark.process
async def test_a_port_that_is_taken_is_a_config_error():
    """A port that is taken is a ConfigError that names the setting."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="http"):
            async with serve_http(f"127.0.0.1:{taken.getsockname()[1]}", dict, lambda: ""):
                pass


@pytest.mark.parametrize("wrong", ["9464", "host:", "host:http", ":9464", "host:99999"])
def test_addresses(wrong):
    """An address of HTTP is a host and a port, and an IPv6 host is in square brackets."""
    assert parse_address("[::]:9464") == ("::", 9464)
    with pytest.raises(ConfigError, match="host:port"):
        parse_address(wrong)


@pytest.mark.process
async def test_who_opens_many_connections_keeps_nobody_out(monkeypatch):
    """Many open connections keep no other client out: of too many the one that was silent for longest is closed."""
    monkeypatch.setattr("streamer.service.web._MAX_CONNECTIONS", 4)
    address = f"127.0.0.1:{(port := free_port())}"
    async with serve_http(address, dict, lambda: ""):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        assert (await get(address, "/healthz"))[0] == 200
        ended = await asyncio.gather(*(_is_ended(reader) for reader, _ in silent))
        assert ended == [True] * 9 + [False] * 3
        for _, writer in silent:
            writer.close()


@pytest.mark.process
async def test_who_says_nothing_is_sent_away(monkeypatch):
    """A connection that sends nothing is closed after a time, even if there are few."""
    monkeypatch.setattr("streamer.service.web._SILENT_SECONDS", 0.05)
    async with serve_http(f"127.0.0.1:{(port := free_port())}", dict, lambda: ""):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(60):
            assert await _is_ended(reader, 60)
        writer.close()


async def _is_ended(reader: asyncio.StreamReader, seconds: float = 0.3) -> bool:
    """Returns whether the server closes the connection in time."""
    try:
        async with asyncio.timeout(seconds):
            return await reader.read(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.process
@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nFo\x1b[31mo: bar\r\n\r\n",
        b"\x1b]0;title\x07 / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nAuthorization: Bearer CANARY\x01\r\n\r\n",
        b"\n2026-01-01 00:00:00,000 forged INFO line\r\n\r\n",
        b"\x16\x03\x01 TLS hello\r\n\r\n",
    ],
)
async def test_garbage_is_not_logged(caplog, garbage):
    """A request that is no HTTP is answered with 400 and not logged; a failure of the service itself is logged."""
    caplog.set_level("DEBUG")
    address = f"127.0.0.1:{(port := free_port())}"
    async with serve_http(address, lambda: {}["missing"], lambda: ""):
        caplog.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(garbage)
        assert b"400" in await reader.read(100)
        writer.close()
        assert [record for record in caplog.records if record.name.startswith(("streamer", "aiohttp"))] == []
        assert (await get(address, "/statistics.json"))[0] == 500
        assert "GET /statistics.json was not answered" in caplog.text


@pytest.mark.process
async def test_a_host_that_cannot_be_a_name_is_a_config_error():
    """A host that no name can be ("a..b", a label of 64 letters) is a ConfigError that names the setting.

    Python raises UnicodeError there, which ended the service with a traceback.
    """
    for host in ("a..b", "x" * 64):
        with pytest.raises(
            ConfigError, match=r"cannot serve HTTP at .*: .*label (empty )?(or )?(is )?too long"
        ) as found:
            async with serve_http(f"{host}:0", dict, lambda: ""):
                pass
        assert found.value.details["field"] == "http"
