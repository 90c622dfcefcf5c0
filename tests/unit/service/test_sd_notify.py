"""Messages to the service manager, over a real datagram socket."""

import asyncio
import logging
import socket

import pytest

from streamer.service.sd_notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    """Stands for systemd: a socket by path and by abstract name, which receives and checks nothing."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@streamer-test-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + address[1:] if address.startswith("@") else address)
        listener.settimeout(60)
        yield address, listener


async def test_ready_reloading_stopping(manager):
    """A service reports ready, reload and stop in the words of systemd."""
    address, listener = manager
    notifier = Notifier(address)
    notifier.report_ready()
    notifier.report_reload()
    notifier.report_stop()
    heard = [listener.recv(1000).decode() for _ in range(3)]
    assert heard[0] == "READY=1"
    assert heard[1].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert heard[2] == "STOPPING=1"


async def test_the_watchdog_is_fed_by_the_loop(manager):
    """The event loop sends the watchdog's message twice an interval until it is closed."""
    address, listener = manager
    notifier = Notifier(address, watchdog_seconds=0.02)
    notifier.report_ready()
    heard = [await asyncio.to_thread(listener.recv, 1000) for _ in range(4)]
    notifier.close()
    assert heard == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    await asyncio.get_running_loop().shutdown_default_executor()


def test_no_manager_no_message(caplog):
    """Without a service manager nothing is sent or logged; one that is gone is logged and raises no error."""
    Notifier(None).report_stop()
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        Notifier("/nobody/there").report_stop()
    assert "/nobody/there" in caplog.text
