"""README's program, the demo and the unit tests in other Pythons, with other versions of the libraries.

    python tests/pythons.py                                  every Python of this machine, newest and lowest versions
    python tests/pythons.py --pythons python3.13 --resolutions highest
    python tests/pythons.py --debian forky sid               the Pythons of these releases, by debootstrap; needs root

An environment for each under build/pythons, made by uv from the package index without constraints: `highest` takes the
newest version of everything, `lowest-direct` the lowest that pyproject.toml allows of what it names. Prints a table and
ends with 1 where something fails. A PyTorch with CUDA takes 7 GB, which environments share. Only the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from try_wheel import IMAGES, program

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "build" / "pythons"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Of the development tools, what no unit test imports.
_NO_TOOLS = ("import-linter", "mypy", "pip-audit", "ruff")
_OLDEST = 11
_PACKAGES = "python3,python3-dev,python3-venv,g++,ca-certificates,procps"
_STEP_SECONDS = 3600
# numpy 1.26 starts `lscpu` when numpy.testing is imported, which a unit test may not.
_UNIT = (
    "-m",
    "pytest",
    "-p",
    "numpy.testing",
    "-q",
    "-n",
    "2",
    "--dist",
    "loadfile",
    "-m",
    "not process and not slow and not gpu",
    # The lowest matplotlib calls the newest pyparsing by its old names.
    "-W",
    "ignore::DeprecationWarning:matplotlib._fontconfig_pattern",
    "-W",
    "ignore::DeprecationWarning:matplotlib._mathtext",
)
_VERSIONS = (
    "import importlib.metadata as m, json, platform;"
    "print(json.dumps([platform.python_version(), *map(m.version, ('torch', 'numpy'))]))"
)
# The tree at its own path, and what a process needs of the machine, for the time of one command.
_ENTER = """
set -e
root=$1; shift
for place in "$PWD" /proc /sys /dev /etc/ssl; do mkdir -p "$root$place"; mount --rbind "$place" "$root$place"; done
cp /etc/resolv.conf /etc/hosts "$root/etc/"
exec chroot "$root" /usr/bin/env -C "$PWD" "$@"
"""


@dataclass
class Place:
    """A Python, where it runs and with which versions.

    Attributes:
        python: its path there.
        resolution: of uv.
        root: of a Debian system; None: this machine.
        found: results by column.
    """

    python: str
    resolution: str
    root: Path | None = None
    found: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Folder of the environment of this Python."""
        name = f"{self.root.name if self.root else Path(self.python).parents[1].name}-{Path(self.python).name}"
        return BUILT / f"{name}-{self.resolution}"

    def run(self, *command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Runs a command there, with the network and without the settings of this machine's pip and streamer."""
        words = [str(word) for word in command]
        if self.root is not None:
            words = ["unshare", "--mount", "sh", "-c", _ENTER, "enter", str(self.root), "env", "-C", str(cwd), *words]
        kept = ("PATH", "HOME", "LANG", "SSL_CERT_FILE", "HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        environment |= {"UV_CACHE_DIR": str(BUILT / "uv-cache"), "UV_PYTHON_DOWNLOADS": "never", "MPLBACKEND": "agg"}
        environment |= {"STREAMER_CACHE_DIR": str(self.folder / "cache"), "UV_HTTP_TIMEOUT": "300"}
        environment |= {"STREAMER_RUNTIME_DIR": f"/tmp/streamer-{os.getpid()}"}
        return subprocess.run(
            words,
            cwd=ROOT if self.root else cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_STEP_SECONDS,
        )


def requirements(extras: Sequence[str]) -> list[str]:
    """Returns what the distribution asks for with these extras, with those that they name."""
    optional = PROJECT["optional-dependencies"]
    found = list(PROJECT["dependencies"])
    wanted = list(extras)
    for extra in wanted:
        for one in optional[extra]:
            if named := re.fullmatch(r"streamer-data\[(.+)\]", one):
                wanted += [name for name in named[1].split(",") if name not in wanted]
            else:
                found.append(one)
    return list(dict.fromkeys(found))


def pythons() -> Iterator[str]:
    """Yields the Pythons on the path and those of pyenv, one of each version."""
    versions = [f"python3.{minor}" for minor in range(_OLDEST, _OLDEST + 9)]
    places = [*versions, *map(str, Path.home().glob(".pyenv/versions/3.*/bin/python3.[0-9][0-9]"))]
    seen: dict[str, str] = {}
    for place in places:
        if (found := executable(place)) is not None and (version := Path(found).name) in versions:
            seen.setdefault(version, found)
    yield from seen.values()


def executable(name: str) -> str | None:
    """Returns what a name on the path really starts (pyenv puts scripts there), or None."""
    if (place := shutil.which(name)) is None:
        return None
    code = "import sys; print(f'{sys.base_prefix}/bin/python3.{sys.version_info.minor}')"
    asked = subprocess.run([place, "-c", code], capture_output=True, text=True, check=False)
    return asked.stdout.strip() if asked.returncode == 0 else None


def debian(release: str) -> tuple[Path, str]:
    """Returns the root of a new system of that release, and the newest Python that it has."""
    root = BUILT / "debian" / release
    if not (root / "usr" / "bin" / "python3").exists():
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        script = [] if Path("/usr/share/debootstrap/scripts", release).exists() else ["sid"]
        command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", release, str(root), _mirror(), *script]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = sorted((root / "usr" / "bin").glob("python3.*[0-9]"), key=lambda path: int(path.name.partition(".")[2]))
    return root, f"/usr/bin/{found[-1].name}"


def _mirror() -> str:
    """Returns the archive that this machine's own packages come from."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return next(uri for uri in found if "security" not in uri)


def examine(place: Place, uv: Path, wheel: Path) -> None:
    """Fills in the row; a step that fails says how and does not end the others."""
    shutil.rmtree(place.folder, ignore_errors=True)
    place.folder.mkdir(parents=True)
    python = place.folder / "env" / "bin" / "python"
    tools = [one for one in PROJECT["optional-dependencies"]["dev"][1:] if one not in _NO_TOOLS]
    (extras,) = re.findall(r"\[(.+)\]", PROJECT["optional-dependencies"]["dev"][0])

    def install(*more: object) -> tuple[object, ...]:
        return (uv, "pip", "install", "--quiet", "--python", python, *more)

    def product(names: str) -> list[tuple[object, ...]]:
        if place.resolution == "highest":
            return [install(f"{wheel}[{names}]")]
        wanted = requirements(names.split(","))
        return [install("--resolution", place.resolution, *wanted), install("--no-deps", wheel)]

    make = (uv, "venv", "--quiet", "--python", place.python, place.folder / "env")
    if not step(place, "install", place.folder, make, *product("torch,s3,images")):
        return
    (place.folder / "train.py").write_text(program())
    step(place, "README", place.folder, (python, "-c", IMAGES), (python, "train.py", "images/"))
    for folder in ("bucket", "demo"):
        shutil.copytree(ROOT / "examples" / folder, place.folder / "examples" / folder)
    if step(place, "demo", place.folder, *product("demo"), (python, "-m", "examples.demo")):
        place.found["keys"] = "".join(re.findall(r"all ranks and epochs: (\w+)", place.found.pop("output")))
    if step(place, "dev", place.folder, *product(extras), install(*tools)):
        # Warnings of old libraries about new ones are theirs.
        warnings = () if place.resolution == "highest" else ("-W", "ignore::DeprecationWarning")
        step(place, "unit", ROOT, (python, *_UNIT, *warnings, "tests/unit"))
        counted = re.findall(r"^(?:=+ )?(\d+ .*) in [\d.]+s", place.found.pop("output"), re.MULTILINE)
        place.found["unit"] = "".join(counted[-1:]) or place.found["unit"]
    versions = place.run(python, "-c", _VERSIONS)
    place.found |= zip(("python", "torch", "numpy"), json.loads(versions.stdout), strict=True)


def step(place: Place, column: str, cwd: Path, *commands: Sequence[object]) -> bool:
    """Runs commands until one fails; the column gets the seconds of the last one, or that it failed."""
    for command in commands:
        began = time.monotonic()
        done = place.run(*command, cwd=cwd)
        with (place.folder / "log").open("a") as log:
            log.write(f"$ {' '.join(map(str, command))[:400]}\n{done.stdout}\n")
        if done.returncode:
            place.found |= {column: "FAILED", "output": done.stdout}
            print(
                f"{place.folder.name}: {column} failed, see {place.folder / 'log'}\n{done.stdout[-1500:]}", flush=True
            )
            return False
    place.found |= {column: f"{time.monotonic() - began:.1f} s", "output": done.stdout}
    return True


def tool() -> Path:
    """Returns uv, of a release that the index has, in an environment of its own."""
    folder = BUILT / "uv"
    if not (folder / "bin" / "uv").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", "uv"], check=True)
    return folder / "bin" / "uv"


def build(uv: Path) -> Path:
    """Builds a wheel of the tree."""
    shutil.rmtree(BUILT / "wheel", ignore_errors=True)
    subprocess.run([str(uv), "build", "--quiet", "--wheel", "--out-dir", str(BUILT / "wheel"), str(ROOT)], check=True)
    (wheel,) = (BUILT / "wheel").glob("*.whl")
    return wheel


COLUMNS = ("python", "torch", "numpy", "resolution", "install", "README", "demo", "keys", "dev", "unit")


def main() -> int:
    """Examines each and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", nargs="*", help="paths or names; default: all that are found")
    parser.add_argument("--debian", nargs="*", default=[], metavar="RELEASE")
    parser.add_argument("--resolutions", nargs="+", default=["highest", "lowest-direct"], metavar="RESOLUTION")
    arguments = parser.parse_args()
    if missing := [name for name in arguments.pythons or () if executable(name) is None]:
        parser.error(f"not a Python that starts: {', '.join(missing)}; give a path, or put it on PATH")
    BUILT.mkdir(parents=True, exist_ok=True)
    uv = tool()
    wheel = build(uv)
    names = pythons() if arguments.pythons is None else map(executable, arguments.pythons)
    # The lowest versions have wheels for the oldest Python alone.
    places = [(str(name), None) for name in names]
    places += [(python, root) for root, python in map(debian, arguments.debian)]
    rows = []
    for number, (python, root) in enumerate(places):
        for resolution in arguments.resolutions:
            if resolution == "highest" or number == 0:
                place = Place(python, resolution, root)
                examine(place, uv, wheel)
                place.found.pop("output", "")
                rows.append({"python": Path(python).name, "resolution": resolution, **place.found})
                print(rows[-1], flush=True)
    print(table(rows))
    return int(any("FAILED" in row.values() or "failed" in row.get("unit", "") for row in rows))


def table(rows: Sequence[dict[str, str]]) -> str:
    """Returns the rows as Markdown."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *([row.get(column, "-") for column in COLUMNS] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
