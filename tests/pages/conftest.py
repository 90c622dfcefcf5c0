"""An S3 server with the bucket of the pages, and programs that see it as their reader sees S3.

The server is that of examples/bucket; `aws s3 cp URL -` is a script that calls curl.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.bucket.store import AUTHORIZATION, Link, Store, request
from tests.pages.environments import ROOT, build_wheel, fresh_environment, libraries_environment

PROGRAM_SECONDS = 400
# Of `aws s3 cp URL -`. The server asks for a name, not for a signature.
_AWS = f'#!/bin/sh\nexec curl --silent --fail -H "Authorization: {AUTHORIZATION}" "$AWS_ENDPOINT_URL/${{3#s3://}}"\n'


@pytest.fixture(scope="session")
def wheel() -> Path:
    return build_wheel()


@pytest.fixture(scope="session")
def fresh() -> Path:
    return fresh_environment()


@pytest.fixture(scope="session")
def libraries(wheel: Path) -> Path:
    return libraries_environment(wheel)


class Place:
    """A folder for programs, a bucket called "bucket", and an engine and cache of their own."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder = folder
        self.endpoint = endpoint
        request(endpoint, "PUT", "/bucket")

    def upload(self, source: Path, prefix: str) -> None:
        """Uploads all files below a folder to a prefix of the bucket."""
        for path in sorted(source.rglob("*")):
            if path.is_file():
                name = f"/bucket/{prefix}/{path.relative_to(source)}".replace("//", "/")
                request(self.endpoint, "PUT", name, path.read_bytes())

    def run(self, python: Path, program: str, *launcher: str) -> str:
        """Returns what a program prints that knows nothing of the repository."""
        assert str(ROOT) not in program
        (self.folder / "program.py").write_text(program.replace("/nvme/", f"{self.folder}/nvme/"))
        done = subprocess.run(
            [str(python), *launcher, "program.py"],
            cwd=self.folder,
            env=self._environment(python),
            capture_output=True,
            text=True,
            check=False,
            timeout=PROGRAM_SECONDS,
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        return done.stdout

    def write(self, python: Path, kind: str) -> Path:
        """Writes data with the writer of a library, and returns its folder."""
        target = self.folder / "written" / kind
        program = self.folder / "library_data.py"
        shutil.copy(Path(__file__).parent / "library_data.py", program)
        subprocess.run(
            [str(python), str(program), kind, str(target)],
            cwd=self.folder,
            env=self._environment(python),
            check=True,
            timeout=PROGRAM_SECONDS,
        )
        return target

    def _environment(self, python: Path) -> dict[str, str]:
        tools = self.folder / "bin"
        tools.mkdir(exist_ok=True)
        (tools / "aws").write_text(_AWS)
        (tools / "aws").chmod(0o755)
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR", "SSL_CERT_FILE") if name in os.environ}
        return {
            **kept,
            "PATH": f"{tools}:{python.parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "AWS_ACCESS_KEY_ID": "page",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            # As MosaicML calls it.
            "S3_ENDPOINT_URL": self.endpoint,
            "STREAMER_RUNTIME_DIR": str(self.folder / "run"),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Store(Link()) as server:
        yield Place(tmp_path_factory.mktemp("p"), server.endpoint)
