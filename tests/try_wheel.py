"""Installs what is in a folder, wheel and sdist, into a fresh environment, and runs README's program with each of them.

python tests/try_wheel.py dist build/release/bin/cyclonedx-py

Then it writes what was installed beside the wheel: an SBOM of CycloneDX, with the versions of constraints.txt.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = """
from pathlib import Path
import numpy as np
from PIL import Image
random = np.random.default_rng(0)
for number in range(100):
    path = Path("images", ("cats", "dogs")[number % 2], f"{number:03}.jpg")
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(random.integers(0, 255, (240, 320, 3), np.uint8)).save(path)
"""
_VERSION = "import streamer; print(streamer.__version__, streamer.__file__)"


def program() -> str:
    """Returns the program that README shows."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return str(block)


def main() -> None:
    """Installs and runs both, and ends with an error where something fails."""
    built = Path(sys.argv[1]).resolve()
    writer = Path(sys.argv[2]).resolve()
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        folder = Path(name)
        python = folder / "env" / "bin" / "python"
        variables = {"STREAMER_CACHE_DIR": f"{name}/cache", "STREAMER_RUNTIME_DIR": f"{name}/run"}

        def run(*command: object) -> None:
            subprocess.run([*map(str, command)], cwd=folder, env=os.environ | variables, check=True)

        run(sys.executable, "-m", "venv", folder / "env")
        pinned = ("-c", ROOT / "constraints.txt", "--quiet", "--disable-pip-version-check")
        run(python, "-m", "pip", "install", *pinned, f"{wheel}[torch,s3,images]")
        run(python, "-c", IMAGES)
        (folder / "train.py").write_text(program())
        for found in (wheel, sdist):
            run(python, "-m", "pip", "install", *pinned, "--no-deps", "--force-reinstall", found)
            run(python, "-c", _VERSION)
            run(python, "train.py", "images/")
            print(f"{found.name}: installed, README's program ran", flush=True)
        written = built / f"{wheel.stem}.cdx.json"
        run(writer, "environment", python, "--output-reproducible", "-o", written)
        print(f"{written.name}: {len(json.loads(written.read_text())['components'])} packages", flush=True)


if __name__ == "__main__":
    main()
