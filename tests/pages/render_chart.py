"""Lints and renders a chart with Helm's own engine: python render_chart.py CHART VALUES..., values as JSON.

Runs where `helm-python-sdk` is installed, which has Helm 4's library. Prints, for each set of values, what the linter
says and the rendered templates, or the error.
"""

from __future__ import annotations

import json
import sys

from helm_python import helm_sdk_version
from helm_python.chart import Chart, lint
from helm_python.errors import HelmError


def rendered(folder: str, values: dict[str, object]) -> dict[str, object]:
    try:
        linted = lint(folder, values, strict=True)
        templates = Chart.load(folder).render(values, name="engines", namespace="training")
    except HelmError as error:
        return {"error": str(error)}
    return {"lint": linted, "templates": templates, "helm": helm_sdk_version()}


if __name__ == "__main__":
    print(json.dumps([rendered(sys.argv[1], json.loads(text)) for text in sys.argv[2:]]))
