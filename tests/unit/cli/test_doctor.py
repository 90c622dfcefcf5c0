"""`streamer doctor`: its checks of this machine, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamer.cli.exit_codes import Exit
from streamer.cli.main import main
from streamer.tools.doctor.libraries import extras, library_findings


def test_extras_are_read_from_the_metadata() -> None:
    """Requirements of the base and extras that are made of others are left out."""
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
    """s3fs is what the tests run with."""
    found = {finding.subject: finding for finding in library_findings()}
    assert found["s3"].state == "ok"
    assert found["s3"].fact.startswith("s3fs 2")


@pytest.mark.process
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Good machine, a folder to read: exit code 0; a url where nothing is: 1, and the line says which."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "0.bin").write_bytes(b"content")
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    argv = ["doctor", "--json", "--cache-dir", str(tmp_path / "cache")]
    main([*argv, str(tmp_path / "data")])
    found = _findings(capsys)
    assert {"python", "torch", "memory", "open files", "cache", "engine"} <= set(found)
    assert found["read"]["state"] == "ok"
    assert found["engine"]["state"] == "ok"
    assert main([*argv, str(tmp_path / "nothing")]) == Exit.FAILED
    assert _findings(capsys)["url"]["state"] == "problem"


def _findings(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    return {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
