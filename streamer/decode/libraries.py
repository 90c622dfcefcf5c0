"""Imports the libraries that decode images, which are optional, when an image needs them."""

from __future__ import annotations

import importlib
import os
from functools import cache
from types import ModuleType

from streamer.errors import ConfigError


@cache
def library(name: str) -> ModuleType | None:
    """Returns the optional module `name`, or None if it is not installed."""
    if name == "cv2":
        # OpenCV's log names no sample; the error that a decoder raises does.
        os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    if name == "cv2":
        # A worker process uses one thread: OpenCV's pool would compete with the other workers for the cores.
        module.setNumThreads(1)
    return module


def require_library(name: str) -> ModuleType:
    """Returns the module `name`; raises ConfigError if it is not installed."""
    module = library(name)
    if module is None:
        raise ConfigError(f"{name} is not installed; `pip install 'streamer-data[images]'`", field="decode")
    return module
