"""Environments as the README makes them, from a wheel of the tree, and programs in them without the repository."""

from __future__ import annotations

import filecmp
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "pages"
# Stands behind the install lines of README that work once the package is on the index.
LATER = "from the first release on"
INSTALL_SECONDS = 1500
LIBRARIES = Path(__file__).parent / "libraries.txt"
LIBRARIES_ALONE = Path(__file__).parent / "libraries-alone.txt"
# torchvision from another index than torch does not find torch's operators and refuses to be imported (where torch is
# the one for the CPU, and torchvision the index's own); none of what the pages use of it needs them.
_OPERATORS = """
import sys


class TorchvisionOperators:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(TorchvisionOperators)
            import torch

            global operators
            operators = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                operators.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, TorchvisionOperators)
"""
# What a wheel is made of.
_PARTS = ("pyproject.toml", "README.md", "LICENSE")


def copy_source() -> Path:
    """Copies a clone as far as pip looks at it, because setuptools keeps modules in build/ that are gone."""
    source = BUILT / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "streamer", source / "streamer", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in _PARTS:
        shutil.copy(ROOT / name, source / name)
    return source


def build_wheel() -> Path:
    """Builds a wheel of the tree as it is."""
    source, wheels = copy_source(), BUILT / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, source)
    (wheel,) = wheels.glob("streamer_data-*.whl")
    return wheel


def fresh_environment() -> Path:
    """Returns the Python of a new environment, made in a clone by README's install line and nothing else."""
    folder = BUILT / "fresh"
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "venv", folder)
    (line,) = (line for line in install_lines() if LATER not in line)
    # The line as it stands; what a user's pip is configured for comes from the environment.
    pinned = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_QUIET": "1"}
    _run("sh", "-c", f"cd {copy_source()} && {line}", PATH=f"{folder / 'bin'}:{os.environ['PATH']}", **pinned)
    _check_installed(folder)
    return folder / "bin" / "python"


def libraries_environment(wheel: Path) -> Path:
    """Returns the Python of an environment with the libraries, made anew when their versions change."""
    folder = BUILT / "libraries"
    wanted = hashlib.sha256(
        b"".join(p.read_bytes() for p in (LIBRARIES, LIBRARIES_ALONE, ROOT / "constraints.txt"))
    ).hexdigest()
    stamp, pip = folder / "made-of", folder / "bin" / "pip"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", folder)
        _run(pip, "install", "--quiet", f"{wheel}[torch,s3,images]", "-r", LIBRARIES, **_pinned(wheel))
        _run(pip, "install", "--quiet", "--no-deps", "-r", LIBRARIES_ALONE)
        stamp.write_text(wanted)
    _run(pip, "install", "--quiet", "--no-deps", "--force-reinstall", wheel)
    _mend_torchvision(folder)
    _check_installed(folder)
    return folder / "bin" / "python"


def _mend_torchvision(folder: Path) -> None:
    command = [str(folder / "bin" / "python"), "-c", "import torchvision"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "sitecustomize.py").write_text(_OPERATORS)
        subprocess.run(command, capture_output=True, check=True)


def install_lines() -> list[str]:
    """Returns the install lines of README's blocks, with their comments."""
    return re.findall(r"^ *pip3? install .*$", (ROOT / "README.md").read_text(), re.MULTILINE)


def _pinned(wheel: Path) -> dict[str, str]:
    links = f"{os.environ.get('PIP_FIND_LINKS', '')} {wheel.parent}".strip()
    return {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_FIND_LINKS": links, "PIP_QUIET": "1"}


def _check_installed(folder: Path) -> None:
    """Checks that what is installed is this tree, file by file."""
    (installed,) = folder.glob("lib/python*/site-packages/streamer")
    tree = (path for path in (ROOT / "streamer").rglob("*") if path.suffix in (".py", ".html"))
    files = [path.relative_to(ROOT / "streamer") for path in tree]
    _, *different = filecmp.cmpfiles(ROOT / "streamer", installed, map(str, files), shallow=False)
    assert different == [[], []], f"not the tree: {different}"


def _run(*command: object, **variables: str) -> None:
    done = subprocess.run(
        list(map(str, command)),
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_SECONDS,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
