"""The dashboard over a real Prometheus that scrapes a service at work: every panel has series."""

from __future__ import annotations

import importlib.util
import json
import time
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest

from tests.e2e.services import Service, wait_for

DOCS = Path(__file__).parents[2] / "docs" / "deploy"
# Nothing fails here.
EMPTY = {
    "Errors that ended sessions, since the engine started",
    # Of packed documents, which its jobs do not read.
    "Rows of documents: padding and spread of costs",
    "Tokens per second, by job",
}


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_panel_has_series(tmp_path: Path) -> None:
    """Every panel of the dashboard has series with the labels of its legend, and shares of hits are between 0 and 1."""
    pictures = _load("dashboard_picture")
    if pictures.PROGRAM is None:
        pytest.skip("no prometheus: apt-get install prometheus")
    panels = json.loads(pictures.DASHBOARD.read_text())["panels"]
    service = Service(tmp_path, pictures.SCRAPED)
    with ExitStack() as stack:
        stack.enter_context(pictures.prometheus(tmp_path))
        stack.enter_context(service.running())
        ranks = [stack.enter_context(service.rank(number)) for number in range(2)]
        wait_for(ranks, 1, 20)
        queries = {(p["title"], t["expr"]): t["legendFormat"] for p in panels for t in p["targets"]}
        deadline = time.monotonic() + 60
        found: dict[tuple[str, str], list] = {}
        while time.monotonic() < deadline and len(found) < sum(title not in EMPTY for title, _ in queries):
            time.sleep(1)  # Prometheus does not tell when it has scraped
            found = {key: series for key in queries if (series := pictures.asked(key[1], None, time.time()))}
    assert {title for title, query in queries if (title, query) not in found} == EMPTY & {p["title"] for p in panels}
    for key, series in found.items():
        assert all("{{" not in pictures.legend(queries[key], one["metric"]) for one in series), key
    shares = [float(one["value"][1]) for (title, _), series in found.items() for one in series if "Hits" in title]
    assert shares
    assert all(0 <= share <= 1 for share in shares)
