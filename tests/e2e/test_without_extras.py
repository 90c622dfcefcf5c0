"""Python processes that can import no extra but torch: what works there, and what the errors say of the rest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from streamer.cli import main
from streamer.errors import ConfigError
from streamer.store import open_store

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Of every extra that users are offered, torch apart: a dataset is one of torch's.
LATER = (
    *("PIL", "adlfs", "aiohttp", "av", "boto3", "botocore", "cramjam", "cv2", "distributed", "fsspec", "gcsfs"),
    *("google_crc32c", "h5py", "hdf5plugin", "matplotlib", "moto", "numcodecs", "obstore", "prometheus_client"),
    *("pyarrow", "pycocotools", "pycurl", "ray", "rich", "s3fs", "simplejpeg"),
)
# Read by each Python that starts, the engine's and the workers' too.
BLOCK = f"import sys\nsys.modules.update(dict.fromkeys({LATER!r}))\n"
TRAIN = """
import sys
import streamer
from streamer import StreamingDataLoader, StreamingDataset

def longer(sample):
    return {"value": sample["npy"] + 1, "label": sample["label"]}

dataset = StreamingDataset("data/", cache_dir="cache", transform=longer)
with StreamingDataLoader(dataset, batch_size=4, num_workers=2) as loader:
    seen = sorted(value for batch in loader for value in batch["value"][:, 0].tolist())
    state = loader.state_dict()
print(seen, dataset.classes, state["epoch"])
dataset.close()
len(StreamingDataset("s3://bucket/data/", cache_dir="cache"))
"""


COMMANDS = """
import contextlib, io, json, sys
from streamer.cli.main import main

sys.modules["torch"] = None
found = []
for words in json.load(sys.stdin):
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = main(words)
    except SystemExit as end:
        code = end.code
    except Exception as error:
        code = repr(error)
    found.append([" ".join(words), code, said.getvalue()])
print(json.dumps(found))
"""


def in_a_bare_environment(folder: Path, *command: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command of a Python that finds none of the optional libraries."""
    (folder / "block").mkdir(exist_ok=True)
    (folder / "block" / "sitecustomize.py").write_text(BLOCK)
    variables = {"PYTHONPATH": str(folder / "block"), "STREAMER_RUNTIME_DIR": str(folder / "run")}
    variables["STREAMER_CACHE_DIR"] = str(folder / "cache")
    return subprocess.run(
        [sys.executable, *command],
        input=text,
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_every_extra_is_blocked() -> None:
    """The list of blocked modules has every module of the extras, and no hard dependency is blocked."""
    modules = {"google-crc32c": "google_crc32c", "opencv-python-headless": "cv2", "pillow": "PIL"}
    modules |= {"prometheus-client": "prometheus_client"}
    offered = {name: wanted for name, wanted in PROJECT["optional-dependencies"].items() if name not in ("dev", "fuzz")}
    named = {re.split(r"[\[>;]", one)[0] for wanted in offered.values() for one in wanted} - {"streamer-data", "torch"}
    assert {modules.get(name, name) for name in named} <= set(LATER)
    hard = {re.split(r"[>;]", one)[0] for one in PROJECT["dependencies"]}
    assert hard == {"cloudpickle", "diskcache", "isal", "msgspec", "nanoarrow", "numpy", "uvloop"}


def test_a_local_folder_is_read_and_a_bucket_without_its_extra_is_one_error(tmp_path: Path) -> None:
    """Without extras a local folder is read with workers and a transform, and a bucket raises one ConfigError.

    The error comes from the engine, without a retry.
    """
    import numpy as np

    for number in range(10):
        path = tmp_path / "data" / ("cat", "dog")[number % 2] / f"{number}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.full(3, number))
    found = in_a_bare_environment(tmp_path, "-c", TRAIN)
    assert found.stdout == f"{list(range(1, 11))} ['cat', 'dog'] 1\n", found.stderr[-3000:]
    assert "ConfigError: s3://bucket needs obstore and pycurl" in found.stderr.splitlines()[-1], found.stderr[-3000:]


def test_the_commands_answer(tmp_path: Path) -> None:
    """Without extras the commands show their help, index a local folder and show a sample."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("a")
    for command in (["--help"], ["index", "data/", "--cache-dir", "cache"], ["show", "--sample", "0", "data/"]):
        found = in_a_bare_environment(tmp_path, "-m", "streamer", *command)
        assert found.returncode == 0, found.stderr[-3000:]


def test_commands_without_torch_end_with_their_codes(tmp_path: Path) -> None:
    """Without torch and extras each command works, or ends with code 2 and what to install; none with a traceback."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("some words")
    (tmp_path / "right").mkdir()
    (tmp_path / "right" / "r.jsonl").write_text('{"id": "a", "x": 1}\n')
    plan = "--cache-bytes 1MB --batch-size 1 --step-seconds 0.1 --no-search"
    needs = {
        "measure data/ --field txt --out n.npy": "torch",
        "pack data/ --out joined/ --join right/:id": "torch",
        f"plan data/ {plan} --link 1MB/s --join right/:id": "torch",
        f"plan data/ {plan} --link 1MB/s --plot p.png": "plots",
        "pack data/ --out columns/ --output-format parquet --executor processes:1": "parquet",
        "index data/ --out m/ --executor dask:tcp://127.0.0.1:1": "dask",
        "index data/ --out m/ --executor ray:auto": "ray",
        "audit state.pt": "torch",
        "doctor s3://b/x": "s3",
        "serve --http 127.0.0.1:0": "serve",
    }
    works = ["bench data/ --seconds 0.1 --connections 1 --ranges 1KiB", f"plan data/ {plan} --link 1MB/s"]
    works += ["pack data/ --out out/ --executor processes:1", "verify out/"]
    with zipfile.ZipFile(tmp_path / "state.pt", "w") as file:
        file.writestr("archive/data.pkl", b"")
    found = in_a_bare_environment(
        tmp_path, "-c", COMMANDS, text=json.dumps([words.split() for words in [*works, *needs]])
    )
    assert found.returncode == 0, found.stderr[-3000:]
    for words, code, said in json.loads(found.stdout):
        if words in works:
            assert code == 0, (words, code, said)
        else:
            assert code == 2, (words, code, said)
            assert f"pip install 'streamer-data[{needs[words]}]'" in said, (words, said)


@pytest.mark.parametrize(
    ("url", "options", "missing", "extra"),
    [
        ("s3://bucket/data/", {}, "obstore and pycurl", "s3"),
        ("s3://bucket/data/", {"session": None}, "fsspec", "s3"),
        ("gs://bucket/data/", {}, "obstore", "gcs"),
        ("az://bucket/data/", {"account_name": "account"}, "obstore", "azure"),
        ("https://host/data/", {}, "obstore and pycurl", "stores"),
        ("memory://data/", {}, "fsspec", "stores"),
    ],
)
def test_a_url_names_the_extra_that_reads_it(
    monkeypatch: pytest.MonkeyPatch, url: str, options: dict[str, object], missing: str, extra: str
) -> None:
    """A url whose library is not installed raises a ConfigError with the extra to install, before any request."""
    for name in LATER:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"needs {missing} in this .*pip install 'streamer-data\[{extra}\]'"):
        open_store(url, options)


def test_a_service_with_http_names_its_extra(tmp_path: Path) -> None:
    """A service with --http but without its libraries ends with code 2 and names the extra to install."""
    found = in_a_bare_environment(
        tmp_path, "-m", "streamer", "serve", "--cache-dir", str(tmp_path / "cache"), "--http", "127.0.0.1:0"
    )
    assert found.returncode == 2, found.stderr[-3000:]
    assert "needs aiohttp and prometheus_client" in found.stderr
    assert "pip install 'streamer-data[serve]'" in found.stderr


@pytest.mark.slow
def test_peers_name_their_extra(tmp_path: Path) -> None:
    """A service with peers but without their libraries ends with code 2 and names them."""
    (tmp_path / "one.toml").write_text('[peers]\nmembers = "127.0.0.1:7070"\nlisten = "127.0.0.1:7070"\n')
    found = in_a_bare_environment(
        tmp_path, "-m", "streamer", "serve", "--cache-dir", str(tmp_path / "cache"), "--config", "one.toml"
    )
    assert found.returncode == 2, found.stderr[-3000:]
    assert "[peers] needs aiohttp and pycurl" in found.stderr


def test_top_in_a_terminal_names_its_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`streamer top` in a terminal without rich ends with code 2 and names what it needs.

    Elsewhere each look is a plain line, which needs nothing.
    """
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main.main(["top"]) == 2
    assert "streamer top needs rich" in capsys.readouterr().err
