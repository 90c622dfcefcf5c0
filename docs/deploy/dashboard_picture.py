"""Draws docs/deploy/dashboard.png: the Grafana dashboard's queries over a service at work. Needs Prometheus.

    python docs/deploy/dashboard_picture.py [OUT.png] [--seconds 90]

Starts a service over local files with a job of two ranks and a Prometheus that scrapes it. Then
every query of deploy/helm/streamer/files/dashboard.json is asked of that Prometheus and drawn where the dashboard has
its panel. Grafana itself looks better; titles, units, places and figures are those of the file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "helm" / "streamer" / "files" / "dashboard.json"
PROGRAM = shutil.which("prometheus")
PORT, SCRAPED = 9474, 9475
CONFIGURATION = f"""
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: streamer
    static_configs: [{{targets: ["127.0.0.1:{SCRAPED}"]}}]
"""
# Grafana takes at least four scrapes.
RATE_INTERVAL = "10s"
UNITS = {"percentunit": (100, "%"), "bytes": (1e-6, "MB"), "Bps": (1e-6, "MB/s"), "s": (1e3, "ms"), "reqps": (1, "/s")}


@contextlib.contextmanager
def prometheus(folder: Path) -> Iterator[None]:
    """Scrapes the service once a second while the context lasts."""
    assert PROGRAM is not None, "needs Prometheus: apt-get install prometheus"
    (folder / "prometheus.yml").write_text(CONFIGURATION)
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command = [PROGRAM, *options, f"--web.listen-address=127.0.0.1:{PORT}", "--log.level=error"]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def asked(query: str, begun: float | None, until: float) -> list[dict[str, object]]:
    """The series of a query of the dashboard: over a time, or at its end where `begun` is None."""
    text = query.replace("$__rate_interval", RATE_INTERVAL).replace("$instance", ".*")
    path, times = ("query", {"time": until}) if begun is None else ("query_range", {"start": begun, "end": until})
    parameters = urllib.parse.urlencode({"query": text, **times, **({"step": 1} if begun else {})})
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/api/v1/{path}?{parameters}", timeout=30) as answer:
        return list(json.load(answer)["data"]["result"])


def legend(form: str, labels: dict[str, str]) -> str:
    """A series' name as the panel has it."""
    for name, value in labels.items():
        form = form.replace(f"{{{{{name}}}}}", value)
    return form


def draw(panels: list[dict[str, object]], begun: float, until: float, out: Path) -> None:
    """One picture with a field for each panel."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = pyplot.figure(figsize=(15, rows * 0.38), layout="constrained")
    grid = figure.add_gridspec(rows, 24)
    for panel in panels:
        place = panel["gridPos"]
        field = figure.add_subplot(grid[place["y"] : place["y"] + place["h"], place["x"] : place["x"] + place["w"]])
        field.set_title(panel["title"], loc="left", fontsize=10)
        (table if panel["type"] == "table" else curves)(field, panel, begun, until)
    figure.savefig(out, dpi=80)


def curves(field: object, panel: dict[str, object], begun: float, until: float) -> None:
    """A panel of lines."""
    factor, unit = UNITS.get(panel["fieldConfig"]["defaults"]["unit"], (1, ""))
    for target in panel["targets"]:
        for series in asked(target["expr"], begun, until):
            times, values = zip(*series["values"], strict=True)
            name = legend(target["legendFormat"], series["metric"])
            field.plot([at - begun for at in times], [float(value) * factor for value in values], label=name, lw=1.2)
    field.set_ylim(bottom=0)
    field.set_ylabel(unit, fontsize=8)
    field.tick_params(labelsize=8)
    field.grid(alpha=0.3)
    if field.lines:
        field.legend(fontsize=7, loc="best")
    else:
        field.text(0.5, 0.5, "no data", transform=field.transAxes, ha="center", color="gray")


def table(field: object, panel: dict[str, object], begun: float, until: float) -> None:
    """A panel with the present values, labels first."""
    rows = [
        [*(str(value) for _, value in sorted(series["metric"].items(), reverse=True)), series["value"][1]]
        for series in asked(panel["targets"][0]["expr"], None, until)
    ]
    field.axis("off")
    if rows:
        field.table(rows, loc="upper left", cellLoc="left", edges="horizontal")


def main() -> None:
    """Draws into the file named, or beside this one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=Path(__file__).with_name("dashboard.png"))
    parser.add_argument("--seconds", type=float, default=90)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests.e2e.services import Service, wait_for

    with tempfile.TemporaryDirectory(prefix="dashboard-") as name, ExitStack() as stack:
        service = Service(Path(name), SCRAPED)
        stack.enter_context(prometheus(Path(name)))
        stack.enter_context(service.running())
        begun = time.time()
        ranks = [stack.enter_context(service.rank(number)) for number in range(2)]
        wait_for(ranks, 0, 5)
        time.sleep(arguments.seconds)
        draw(json.loads(DASHBOARD.read_text())["panels"], begun, time.time(), arguments.out)


if __name__ == "__main__":
    main()
