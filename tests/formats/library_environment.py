"""Environments with a library's package beside what this one has, for the scripts in `make/`; made by venv and pip."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.pages.environments import ROOT, _mend_torchvision

BUILT = ROOT / "build" / "formats"
SECONDS = 1500


def library_python(*packages: str) -> Path:
    """Returns the Python of an environment with these packages, without what they ask for; made once."""
    folder = BUILT / hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    python, stamp = folder / "bin" / "python", folder / "made"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", folder)
        (own,) = folder.glob("lib/python*/site-packages")
        (own / "this-one.pth").write_text(sysconfig.get_path("purelib"))
        # Also those that this environment has: tests read files that lie beside their code.
        _run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed", *packages)
        if any(package.startswith("torchvision") for package in packages):
            _mend_torchvision(folder)
        stamp.touch()
    return python


def source_of(package: str) -> Path:
    """Returns the archive of a package's source, which has files that its wheel has not; fetched once."""
    folder = BUILT / "sources" / package
    if not folder.exists():
        source = ("--no-deps", "--no-binary", ":all:", "--dest", folder, package)
        _run(sys.executable, "-m", "pip", "download", "--quiet", *source)
    (archive,) = folder.iterdir()
    return archive


def python_with_only(*packages: str) -> Path:
    """Returns the Python of an environment with these packages and what they need, nothing of this one; made once."""
    folder = BUILT / packages[0]
    stamp = folder / "made"
    if not stamp.exists():
        _run(sys.executable, "-m", "venv", "--clear", folder)
        _run(folder / "bin" / "pip", "install", "--quiet", *packages)
        stamp.touch()
    return folder / "bin" / "python"


def make(python: Path, script: str, *arguments: object) -> None:
    """Runs a script of `make/`."""
    _run(python, Path(__file__).parent / "make" / script, *arguments)


def _run(*command: object) -> None:
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
