"""The dependency audit in `make check`: run where its service answers, reported as left out where it does not.
The make target is the real one; service and audit command are replaced."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def audit(folder: Path, url: str, command: str) -> subprocess.CompletedProcess[str]:
    """Runs the target with another environment folder, url and command; nothing is installed."""
    stamp = folder / ".installed"
    stamp.touch()
    variables = (f"VENV={folder}", f"BIN={Path(sys.executable).parent}", f"AUDIT_URL={url}", f"AUDIT={command}")
    return subprocess.run(
        ["make", "-s", "-C", str(ROOT), "-o", str(stamp), "audit-when-reachable", *variables],
        capture_output=True,
        text=True,
        check=False,
        # A jobserver of the make that runs the tests is none of this one's.
        env={name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))},
    )


@pytest.fixture
def service() -> Iterator[str]:
    """Stands for the advisory service: it answers everything with 501, which counts as reachable."""
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.RequestHandlerClass.log_message = lambda *arguments: None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_without_network_check_goes_on_and_says_so(tmp_path):
    """Without network `make check` goes on, and one line names the service that could not be asked."""
    found = audit(tmp_path, "http://127.0.0.1:9/", "false")
    assert found.returncode == 0
    assert "no dependency audit: http://127.0.0.1:9/ cannot be reached" in found.stdout
    assert not (tmp_path / ".audited").exists()


def test_what_the_audit_finds_fails_the_check(tmp_path, service):
    """A failed audit fails the check and is not recorded as done."""
    assert audit(tmp_path, service, "false").returncode != 0
    assert not (tmp_path / ".audited").exists()


def test_an_audit_that_passed_is_good_for_a_day(tmp_path, service):
    """An audit that passed is not repeated for a day."""
    asked = f"echo asked >> {tmp_path}/log"
    assert audit(tmp_path, service, asked).returncode == 0
    assert audit(tmp_path, service, asked).returncode == 0
    assert (tmp_path / "log").read_text().split() == ["asked"]
    yesterday = time.time() - 2 * 86400
    os.utime(tmp_path / ".audited", (yesterday, yesterday))
    assert audit(tmp_path, service, asked).returncode == 0
    assert (tmp_path / "log").read_text().split() == ["asked", "asked"]
