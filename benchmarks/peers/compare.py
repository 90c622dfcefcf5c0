"""streamer beside other libraries that read from object storage: same samples, server, machine.

    python benchmarks/peers [--samples 10000] [--turns 3] [--only LitData] [--keep FOLDER]
    python benchmarks/peers --tls             over https
    python benchmarks/peers --workers 8

The samples are written by MosaicML's, LitData's and LanceDB's writers, tarfile and pyarrow (write.py), served by a
simulated S3 (first byte 30 ms, 90 MB/s a connection) and read by 2 workers in batches of 64, undecoded, as each peer's
documentation says (readers.py). Over https each is told of the server's authority in the way that it knows. Each reader
runs in a fresh process with an empty cache folder, in turns; the table has the medians. The environment is made from a
wheel of the tree and the pinned versions of tests/pages (needs a package index, once).
Keeps the table in benchmarks/results/peers-<date>.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from memory import bring
from readers import READERS, Reader
from report import kept
from s3sim import S3_PROFILE, Simulator, simulator
from write import WRITERS

from tests.pages.environments import build_wheel, libraries_environment

HERE = Path(__file__).parent
# A reader that takes longer has stopped; the slowest epoch takes 20 s on two cores.
SECONDS = 400
WORKERS = 2
Rows = list[dict[str, float]]
_VERSIONS = (
    "import json, sys; from importlib.metadata import version; print(json.dumps([version(n) for n in sys.argv[1:]]))"
)


def make_data(python: Path, root: Path, samples: int) -> None:
    """What is not there yet, in every format: local files, and objects of the bucket."""
    for name in WRITERS:
        folder = root / ("files" if name == "files" else f"bucket/{name}")
        if not folder.exists():
            print(f"writing {name}", file=sys.stderr)
            partial = root / f"partial-{name}"
            shutil.rmtree(partial, ignore_errors=True)
            _run(python, HERE / "write.py", name, partial, samples)
            folder.parent.mkdir(exist_ok=True)
            partial.rename(folder)


def settings(root: Path, server: Simulator, samples: int, cache: Path) -> dict[str, object]:
    """Of `readers.Settings`."""
    names = {form: sorted((root / "bucket" / form).glob(pattern)) for form, pattern in _PATTERNS.items()}
    urls = {form: [f"{server.endpoint}/bucket/{form}/{path.name}" for path in found] for form, found in names.items()}
    return {
        "endpoint": server.endpoint,
        "files": urls,
        "local": str(root / "files"),
        "cache": str(cache),
        "manifest": str(root / "manifest"),
        "authority": server.authority,
        "samples": samples,
    }


_PATTERNS = {"tars": "*.tar", "parquet": "*.parquet"}


def measure(python: Path, reader: Reader, chosen: dict[str, object], server: Simulator) -> Rows | str:
    """A row per epoch with what the server counted; what a reader says that does not get to its end."""
    server.statistics(reset=True)
    command = [str(python), str(HERE / "readers.py"), reader.name, json.dumps(chosen)]
    rows: Rows = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            ["timeout", str(SECONDS), *command],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(server, Path(str(chosen["cache"]))),
        )
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):  # some of them print
                continue
            counted = server.statistics(reset=True)
            rows.append({**json.loads(line), "sent_bytes": counted["body_bytes_sent"], "gets": counted["object_gets"]})
        if process.wait():
            errors.seek(0)
            return (errors.read().strip() or f"status {process.returncode}").splitlines()[-1]
    return rows


def _environment(server: Simulator, cache: Path) -> dict[str, str]:
    kept_ones = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    trust = ("AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
    return {
        **kept_ones,
        **(dict.fromkeys(trust, server.authority) if server.authority else {}),
        "HOME": str(cache),
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "S3_ENDPOINT_URL": server.endpoint,
        "STREAMER_RUNTIME_DIR": str(cache.parent / "run"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def table(found: dict[str, list[Rows]], failed: dict[str, str], versions: dict[str, str]) -> Iterator[str]:
    """Medians over the turns of the first and the last epoch, a line per reader, and how it was set."""
    yield (
        f"{'reader':24}{'samples/s, epoch 1':>20}{'last':>9}{'first batch':>13}{'last':>9}{'CPU s/1000':>12}{'last':>7}"
        f"{'store MB':>10}{'last':>7}{'GETs':>8}{'memory MB':>11}  samples"
    )
    for reader in READERS:
        if reader.name in failed:
            yield f"{reader.name:24}  failed: {failed[reader.name]}"
        if not (turns := found.get(reader.name)):
            continue
        cold, warm = ([turn[epoch] for turn in turns] for epoch in (0, -1))
        yield (
            f"{reader.name:24}{_of(cold, 'samples_per_second'):20,.0f}{_of(warm, 'samples_per_second'):9,.0f}"
            f"{_of(cold, 'first_batch_seconds'):11.2f} s{_of(warm, 'first_batch_seconds'):7.2f} s"
            f"{_of(cold, 'cpu_seconds_per_1000'):12.2f}{_of(warm, 'cpu_seconds_per_1000'):7.2f}"
            f"{_of(cold, 'sent_bytes') / 1e6:10,.0f}{_of(warm, 'sent_bytes') / 1e6:7,.0f}{_of(cold, 'gets'):8,.0f}"
            f"{max(row['memory_bytes'] for turn in turns for row in turn) / 1e6:11,.0f}  {_exactness(turns)}"
        )
    yield ""
    for reader in READERS:
        if reader.name in found:
            yield f"{reader.name:24}{reader.package} {versions[reader.package]}: {reader.setting or 'defaults'}"


def _of(rows: Rows, name: str) -> float:
    return statistics.median(row[name] for row in rows)


def _exactness(turns: Sequence[Rows]) -> str:
    """Over all epochs of all turns."""
    counts = {name: sum(row[name] for turn in turns for row in turn) for name in ("missing", "repeated", "wrong")}
    return ", ".join(f"{count:.0f} {name}" for name, count in counts.items() if count) or "each once"


def compare(arguments: argparse.Namespace) -> None:
    """The whole benchmark."""
    python = libraries_environment(build_wheel())
    chosen = [reader for reader in READERS if arguments.only in reader.name]
    root = Path(arguments.keep or tempfile.mkdtemp(prefix="streamer-peers-"))
    try:
        make_data(python, root, arguments.samples)
        with simulator(root, *S3_PROFILE, command=arguments.s3sim, tls=arguments.tls) as server:
            server.index("s3://bucket/tars/", root / "manifest", root / "index-cache")
            found, failed = _turns(python, root, server, arguments, chosen)
        names = sorted({reader.package for reader in READERS})
        versions = dict(zip(names, json.loads(_run(python, "-c", _VERSIONS, *names)), strict=True))
        conditions = f"{arguments.samples} samples", f"{arguments.turns} turns", f"store {' '.join(S3_PROFILE)}"
        name = "peers-tls" if arguments.tls else "peers"
        if arguments.workers != WORKERS:
            name += f"-{arguments.workers}_workers"
        with kept(name, *conditions, keep=not (arguments.quick or arguments.only)):
            print("\n".join(table(found, failed, versions)))
    finally:
        if not arguments.keep:
            shutil.rmtree(root)


def _turns(
    python: Path, root: Path, server: Simulator, arguments: argparse.Namespace, readers: Sequence[Reader]
) -> tuple[dict[str, list[Rows]], dict[str, str]]:
    found: dict[str, list[Rows]] = {}
    failed: dict[str, str] = {}
    for turn in range(arguments.turns):
        for reader in readers:
            bring(path for path in (root / "bucket").rglob("*") if path.is_file())
            os.sync()
            with tempfile.TemporaryDirectory(prefix="cache-", dir=root, ignore_cleanup_errors=True) as name:
                cache = Path(name, "c")
                cache.mkdir()
                of = {
                    **settings(root, server, arguments.samples, cache),
                    "epochs": arguments.epochs,
                    "workers": arguments.workers,
                }
                rows = measure(python, reader, of, server)
            told = rows if isinstance(rows, str) else f"{rows[0]['samples_per_second']:,.0f} samples/s"
            print(f"turn {turn + 1}, {reader.name}: {told}", file=sys.stderr)
            if isinstance(rows, str):
                failed[reader.name] = rows
            else:
                found.setdefault(reader.name, []).append(rows)
    return found, failed


def _run(*command: object) -> str:
    return subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--tls", action="store_true", help="over https, with the simulator of this repository")
    parser.add_argument("--only", default="", help="readers whose names contain this")
    parser.add_argument("--keep", help="folder for the data, kept for the next run")
    parser.add_argument("--quick", action="store_true", help="1,000 samples, two epochs, one turn; keep no result")
    parser.add_argument("--s3sim", help="path of the simulator's command; default $S3SIM")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.samples, arguments.epochs, arguments.turns = 1000, 2, 1
    compare(arguments)
