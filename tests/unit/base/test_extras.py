"""Optional packages: what the error says where one is missing or broken, and the table of what installs each."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from streamer.base.extras import EXTRAS, require_extra, require_modules
from streamer.errors import ConfigError

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
# Names of distributions that differ from those of their packages.
DISTRIBUTIONS = {"PIL": "pillow", "cv2": "opencv-python-headless", "google_crc32c": "google-crc32c"}
DISTRIBUTIONS |= {"prometheus_client": "prometheus-client"}


@pytest.mark.parametrize("package", EXTRAS)
def test_each_extra_installs_its_package(package: str) -> None:
    """The extra that an error names has the package among its requirements."""
    wanted = {re.split(r"[\[>;]", one)[0] for one in PROJECT["optional-dependencies"][EXTRAS[package]]}
    assert DISTRIBUTIONS.get(package, package) in wanted


def test_a_missing_package_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package raises ConfigError that says what needs it, in which Python, and what to install."""
    monkeypatch.setitem(sys.modules, "av", None)
    message = re.escape(f"clips needs av in this environment ({sys.prefix}): pip install 'streamer-data[video]'")
    with pytest.raises(ConfigError, match=message) as caught, require_extra("clips", field="decode"):
        import av  # noqa: F401
    assert caught.value.details == {"field": "decode"}
    with pytest.raises(ConfigError, match=message):
        require_modules("clips", "video", "av", field="decode")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImportError("libGL.so.1: cannot open shared object file", name="cv2.cv2"), r"streamer-data\[images\].*libGL"),
        (ImportError("No module named 'mine'", name="mine"), "needs a module that cannot be imported .*'mine'"),
        (ImportError("broken"), "needs a module that cannot be imported .*broken"),
    ],
)
def test_a_broken_package_says_why(error: ImportError, said: str) -> None:
    """A package that is there and cannot be imported raises ConfigError with the reason; others name no extra."""
    with pytest.raises(ConfigError, match=said), require_extra("images", field="decode"):
        raise error
