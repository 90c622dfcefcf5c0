"""The commands `index` and `serve` as processes, on real folders, with a real engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from streamer.manifest.table import Manifest

COMMAND = [sys.executable, "-m", "streamer"]


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Returns environment variables with a cache and a runtime folder of this test's own."""
    folder = tmp_path_factory.mktemp("s")
    own = {"STREAMER_CACHE_DIR": str(folder / "cache"), "STREAMER_RUNTIME_DIR": str(folder / "run")}
    return {**{name: value for name, value in os.environ.items() if not name.startswith("STREAMER_")}, **own}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Returns a folder of six files in two classes."""
    for label in ("cats", "dogs"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(3):
            (tmp_path / "images" / label / f"{i}.jpg").write_bytes(label.encode() * 100)
    return tmp_path / "images"


@pytest.fixture
def service(environment: Mapping[str, str], tmp_path: Path) -> Iterator[str]:
    """Runs `streamer serve` of everything in a folder; yields what a trainer sets as STREAMER_ENGINE."""
    config = tmp_path / "streamer.toml"
    config.write_text(f"[[datasets]]\nurl = '{tmp_path}'\n")
    process = subprocess.Popen(
        [*COMMAND, "serve", "--config", config],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    yield line.removeprefix("listening: STREAMER_ENGINE=").strip()
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 0


def _run(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env=environment, check=False, timeout=240
    )


def test_index_writes_a_manifest_that_opens(environment: Mapping[str, str], service: str, images: Path) -> None:
    """`streamer index` through a running service prints counts on standard output and writes a manifest to --out."""
    done = _run(
        {**environment, "STREAMER_ENGINE": service}, "index", f"{images}/", "--out", f"{images.parent}/manifest"
    )
    assert done.returncode == 0, done.stderr
    # Its own size: what chunks were to be cut to is no size of one (52 chunks "of up to 2.1 MB" had 1.1 GB).
    assert done.stdout.startswith("6 samples in 6 objects, 2.4 kB, 1 chunk of up to 2.4 kB\n")
    assert "2 classes: cats, dogs" in done.stdout
    manifest = Manifest.open(images.parent / "manifest")
    assert (manifest.samples, manifest.classes) == (6, ("cats", "dogs"))
    assert manifest.digest in done.stdout


def test_nothing_to_index_is_one_line_and_a_code(environment: Mapping[str, str], service: str, tmp_path: Path) -> None:
    """`streamer index` of a folder that does not exist ends with code 3 and names the folder without a traceback."""
    done = _run({**environment, "STREAMER_ENGINE": service}, "index", f"{tmp_path}/nowhere/")
    assert (done.returncode, done.stdout) == (3, "")
    assert "nowhere" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_an_engine_that_is_no_socket_is_wrong_use(environment: Mapping[str, str], tmp_path: Path) -> None:
    """A command whose STREAMER_ENGINE is no socket ends with code 2 and shows how to write one."""
    done = _run({**environment, "STREAMER_ENGINE": "tcp:1234"}, "index", f"{tmp_path}/")
    assert done.returncode == 2
    assert "unix:/path/to/socket" in done.stderr


@pytest.mark.slow  # the second engine gives the first one 10 s to leave
def test_two_services_do_not_share_a_folder(environment: Mapping[str, str], service: str, tmp_path: Path) -> None:
    """A second service on the same cache folder ends with code 4 and says that another engine runs there."""
    done = _run(environment, "serve", "--socket", f"{environment['STREAMER_RUNTIME_DIR']}/other.sock")
    assert done.returncode == 4
    assert "another engine" in done.stderr.splitlines()[-1]


def test_storage_options_stay_out_of_messages(environment: Mapping[str, str], service: str, tmp_path: Path) -> None:
    """A command that fails does not print the secret of its storage options."""
    (tmp_path / "options.json").write_text(
        json.dumps({"key": "AKIA", "secret": "very-secret", "nonsense": object.__name__})
    )
    done = _run(
        {**environment, "STREAMER_ENGINE": service},
        "index",
        f"{tmp_path}/none/",
        "--storage-options",
        f"@{tmp_path}/options.json",
    )
    assert done.returncode != 0
    assert "very-secret" not in done.stderr + done.stdout
