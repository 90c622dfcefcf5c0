"""engine="inline" in a real notebook kernel that closes nothing, run by `nbconvert --execute`."""

from __future__ import annotations

import fcntl
import json
import os
import site
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.pages.environments import ROOT

pytestmark = [pytest.mark.pages, pytest.mark.timeout(900)]

CELLS = (
    'import streamer\nout = streamer.StreamingDataset("data", cache_dir="cache", engine="inline")\nprint(len(out))',
    'print("none", sum(len(b["__key__"]) for b in streamer.StreamingDataLoader(out, 4)))',
    'loader = streamer.StreamingDataLoader(out, 4, 2)\nprint("two", sum(len(b["__key__"]) for b in loader))',
    'for b in loader:\n    raise RuntimeError("of the cell")',
    # Interrupted: nbconvert does after its time for a cell what the stop button does.
    "import time\nfor b in loader:\n    time.sleep(600)",
    'print("after", sum(len(b["__key__"]) for b in loader))',
)
OPTIONS = (
    *("--execute", "--to", "notebook", "--allow-errors", "--output", "done.ipynb"),
    *("--ExecutePreprocessor.timeout=30", "--ExecutePreprocessor.interrupt_on_timeout=True"),
)


def notebook(path: Path) -> None:
    cells = [
        {"cell_type": "code", "execution_count": None, "id": str(i), "metadata": {}, "outputs": [], "source": text}
        for i, text in enumerate(CELLS)
    ]
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))


def environment(folder: Path) -> Path:
    """Makes a Python with nbconvert and a kernel, which sees this environment's packages behind its own."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "nbconvert", "ipykernel"], check=True)
    return python


def test_a_notebook_leaves_nothing(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A notebook with an inline engine leaves no socket and no lock, even after an exception and an interrupt.

    Loaders with and without workers go on in later cells.
    """
    for number in range(40):
        path = tmp_path / "data" / "ab"[number % 2] / f"{number}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.full(1000, number))
    notebook(tmp_path / "train.ipynb")
    python = environment(tmp_path_factory.mktemp("nb") / "venv")
    runtime = tmp_path / "run"
    subprocess.run(
        [str(python), "-m", "nbconvert", *OPTIONS, "train.ipynb"],
        cwd=tmp_path,
        env={
            **os.environ,
            "STREAMER_RUNTIME_DIR": str(runtime),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *site.getsitepackages()]),
        },
        check=True,
    )
    outputs = [cell["outputs"] for cell in json.loads((tmp_path / "done.ipynb").read_text())["cells"]]
    texts = ["".join("".join(o.get("text", o.get("ename", ""))) for o in one if _is_said(o)) for one in outputs]
    assert [text.split() for text in texts] == [
        ["40"],
        ["none", "40"],
        ["two", "40"],
        ["RuntimeError"],
        ["KeyboardInterrupt"],
        ["after", "40"],
    ]
    assert list(runtime.iterdir()) == []
    descriptor = os.open(tmp_path / "cache", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


def _is_said(output: dict[str, object]) -> bool:
    return output["output_type"] == "error" or output.get("name") == "stdout"
