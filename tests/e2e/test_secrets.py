"""Logins, keys and signatures of a real job, its engine and commands are in nothing that is stored, shown or logged."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.tars import tar_of

pytestmark = [pytest.mark.process, pytest.mark.slow]

CANARY = re.compile(r"CANARY\w+")
DATA = tar_of([(f"{number:03}.bin", b"x" * 1000) for number in range(40)])
TABLE = b"file_name,label\n" + b"".join(b"%03d.bin,%d\n" % (number, number) for number in range(40))

BASIC = f"Basic {base64.b64encode(b'u:CANARYLOGIN').decode()}"

# What a job does with such urls; each result is noted by the place in which it would be seen.
JOB = r"""
import json, subprocess, sys
import streamer
web, out = sys.argv[1:]
seen = {}
def command(*arguments):
    done = subprocess.run([sys.executable, "-m", "streamer", *arguments], capture_output=True, text=True)
    return f"{done.returncode} {done.stdout} {done.stderr}"
def error(make):
    try:
        return repr(make())
    except Exception as refused:
        chain = []  # without the lines of this program, which has the secrets
        while refused is not None:
            chain.append(f"{refused!r} {refused} {getattr(refused, 'details', '')}")
            refused = refused.__cause__ or refused.__context__
        return " ".join(chain)
def main():
    url = f"{web}/a.tar"
    plain = "http://" + web.partition("@")[2]
    dataset = streamer.StreamingDataset(url, annotations=f"{web}/labels.csv", decode=None)
    loader = streamer.StreamingDataLoader(dataset, batch_size=5, num_workers=1)
    batches = sum(1 for _ in loader)
    seen["batches"] = str(batches)
    seen["repr"] = repr(dataset) + repr(loader) + repr(dataset.__dict__.get("url"))
    seen["state"] = json.dumps(loader.state_dict(), default=str)
    seen["stat"] = command("stat", "--json") + command("stat")
    seen["index"] = command("index", url, "--out", f"{out}/published")
    seen["doctor"] = command("doctor", url) + command("doctor", url, "--json")
    seen["show"] = command("show", url, "--sample", "0")
    sizes = ["--cache-bytes", "1MB", "--batch-size", "4", "--step-seconds", "0.1", "--no-search"]
    seen["plan"] = command("plan", url, *sizes)
    seen["pack"] = command("pack", url, "--out", f"{out}/packed", "--annotations", f"{web}/labels.csv")
    seen["pack there"] = command("pack", url, "--out", f"{web}/packed/")
    seen["debug"] = command("--debug", "show", f"{web}/none.tar", "--sample", "0")
    del loader
    dataset.close()
    made = streamer.StreamingDataset
    signed = "X-Amz-Signature=CANARYSIGNATURE"
    keys = {"key": "k", "secret": "CANARYSECRET"}
    header = {"headers": {"Authorization": "Bearer CANARYHEADER"}}
    def at(endpoint):
        return len(made("s3://b/x/", storage_options={**keys, "endpoint_url": endpoint}))
    cases = {
        "nothing there": lambda: len(made(f"{web}/none.tar")),
        "wrong login": lambda: len(made(url.replace("CANARYLOGIN", "CANARYWRONG"))),
        "two logins": lambda: made([url, url.replace("CANARYLOGIN", "CANARYOTHER")]),
        "signed": lambda: len(made(f"{web}/a.tar?{signed}&sig=CANARYSIG&token=CANARYTOKEN")),
        "signed bucket": lambda: len(
            made(f"s3://b/a*.tar?{signed}", storage_options={"anon": True, "endpoint_url": plain})
        ),
        "one slash": lambda: made(url.replace("://", ":/")),
        "no url": lambda: made([url, 1]),
        "empty": lambda: made([url, ""]),
        "manifest inside": lambda: made(f"{web}/data/", manifest=f"{web}/data/m/"),
        "no manifest": lambda: len(made(url, manifest=f"{web}/manifest/")),
        "endpoint": lambda: at("http://u:CANARYENDPOINT@127.0.0.1:1"),
        "no scheme": lambda: at("u:CANARYENDPOINT@127.0.0.1"),
        "header": lambda: len(made(f"{plain}/a.tar", storage_options=header)),
        "sas": lambda: len(made("az://c/x/", storage_options={"account_name": "a b", "sas_token": "sig=CANARYSAS"})),
        "chain": lambda: len(made(f"zip://a::{url}")),
    }
    for name, make in cases.items():
        seen[f"error: {name}"] = error(make)
    with open(f"{out}/seen.json", "w") as file:
        json.dump(seen, file)
if __name__ == "__main__":
    main()
"""


class Web(BaseHTTPRequestHandler):
    """A web server of two files on loopback, with basic authentication.

    Like a real one it answers 401 without the login, 404 for other paths, and ranges with 206; uploads are not taken.
    """

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Logs nothing."""

    def do_GET(self) -> None:
        """Answers GET and HEAD."""
        is_known = self.headers.get("Authorization") == BASIC
        found = {"/a.tar": DATA, "/labels.csv": TABLE}.get(self.path)
        status = 401 if not is_known else 404 if found is None else 200
        content = b"" if found is None or status == 401 else found
        head = []
        if status == 200:
            head.append(("ETag", '"v"'))
            if (asked := self.headers.get("Range")) is not None:
                first, _, last = asked[6:].partition("-")
                stop = min(int(last or len(content)), len(content) - 1)
                status = 206
                head.append(("Content-Range", f"bytes {first}-{stop}/{len(content)}"))
                content = content[int(first) : stop + 1]
        self.send_response(status)
        for name, value in (*head, ("Content-Length", str(len(content)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET
    do_PUT = do_GET


@pytest.fixture
def web() -> Iterator[str]:
    """Yields the url of the server with its login."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Web)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://u:CANARYLOGIN@127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_job_stores_and_shows_no_secret(web: str, tmp_path: Path) -> None:
    """No secret of a url or option is in cache, manifest, shards, log, statistics, states, reprs or errors."""
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    (tmp_path / "job.py").write_text(JOB)
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "STREAMER_RUNTIME_DIR": str(run),
        "STREAMER_CACHE_DIR": str(tmp_path / "cache"),
        "STREAMER_LOG": "debug",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    done = subprocess.run(
        [sys.executable, str(tmp_path / "job.py"), web, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, str] = json.loads((tmp_path / "seen.json").read_text())
    assert seen["batches"] == "8"
    for name in ("index", "show", "plan"):
        assert seen[name].startswith("0 "), seen[name]
    seen["output"] = done.stdout + done.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in ("job.py", "seen.json")]
    assert {"published", "manifests"} <= {part for path in files for part in path.parts}
    seen |= {f"file {path.relative_to(tmp_path)}": path.read_bytes().decode("latin-1") for path in files}
    found = {where: sorted(set(CANARY.findall(text))) for where, text in seen.items() if CANARY.search(text)}
    assert found == {}
