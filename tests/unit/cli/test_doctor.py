"""`streamer doctor`: its checks of this machine, and the command, in this process and on a local folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamer.cli.exit_codes import Exit
from streamer.cli.main import main
from streamer.tools.doctor.environment import extras, library_findings
from streamer.tools.doctor.reach import assess_link
from streamer.tools.link_meter import Cell, Latency, QuickTest


def test_extras_are_read_from_the_metadata() -> None:
    """Extras are read from the package's metadata without the base's requirements and extras made of others."""
    required = [
        "numpy>=1.26",
        'isal>=1.6; platform_machine == "x86_64"',
        'pillow>=10; extra == "images"',
        'opencv-python-headless>=4.9; extra == "images"',
        'streamer-data[codecs]; extra == "zarr"',
        "numcodecs>=0.12; extra == 'zarr'",
        'mypy; extra == "dev"',
    ]
    assert extras(required) == {"images": ["pillow", "opencv-python-headless"], "zarr": ["numcodecs"]}


def test_an_installed_extra_is_shown_with_its_version() -> None:
    """An installed extra is shown with its version, as s3fs, which the tests run with."""
    found = {finding.subject: finding for finding in library_findings()}
    assert found["s3"].state == "ok"
    assert found["s3"].fact.startswith("s3fs 2")


def test_failed_requests_and_a_silent_store_are_warnings() -> None:
    """Failed requests are a warning that names the errors; a silent store is one that says to measure longer."""

    def cell(received_bytes: int, *errors: str) -> Cell:
        return Cell(
            client="auto",
            connections=64,
            range_bytes=8 << 20,
            received_bytes=received_bytes,
            seconds=1.0,
            cpu_seconds=0.1,
            requests=9,
            errors=errors,
        )

    latency = Latency(requests=10, first_seconds=0.1, median_seconds=0.03, p95_seconds=0.08, max_seconds=0.1)
    judged = [
        next(iter(assess_link(QuickTest(latency=latency, one=cell(9), many=many))))
        for many in (cell(9_000_000), cell(9, "ThrottledError", "ThrottledError"), cell(0))
    ]
    assert [finding.state for finding in judged] == ["ok", "warning", "warning"]
    assert "9.0 MB/s with 64" in judged[0].fact
    assert "failed: 2 ThrottledError" in judged[1].fact
    assert "measures longer" in judged[2].advice


@pytest.mark.process
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` of a good machine and a readable folder exits with 0; of a missing url it exits with 1 and names it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "0.bin").write_bytes(b"content")
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    argv = ["doctor", "--json", "--cache-dir", str(tmp_path / "cache")]
    main([*argv, str(tmp_path / "data")])
    found = _findings(capsys)
    assert {"python", "torch", "memory", "open files", "cache", "engine"} <= set(found)
    assert found["read"]["state"] == "ok"
    assert found["link"]["state"] == "ok"
    assert "with one connection" in found["link"]["fact"]
    assert found["engine"]["state"] == "ok"
    assert main([*argv, str(tmp_path / "nothing")]) == Exit.FAILED
    found = _findings(capsys)
    assert found["url"]["state"] == "problem"
    assert "link" not in found


def _findings(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    return {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
