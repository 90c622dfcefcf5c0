"""Defines what decoders have in common: where they write to, their random numbers, and their optional libraries.

The decoders of images (`decode/images.py`, `decode/scaling.py`, `decode/tiff.py`) and of video and audio
(`streamer/media/decode`) use it, and `decode/dispatch.py`, which calls them. Packs and scans (`shards/task.py`,
`shards/sources.py`, `batches/samples/stored.py`) name samples in errors with it.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.base.extras import explain_import_error, require_extra
from streamer.base.system_limits import raise_shortage
from streamer.errors import DecodeError, StreamerError

Array = NDArray[Any]
# A function that returns the random numbers of a sample, which depend on seed, epoch and sample alone. Each call
# returns a generator that begins anew.
Draws = Callable[[], np.random.Generator]


class TargetDecoder(ABC):
    """A decoder that writes an array to given memory where it fits, and may draw random numbers."""

    @abstractmethod
    def decode(self, content: memoryview, out: Array | None = None, draws: Draws | None = None) -> object:
        """Decodes a field.

        Args:
            content: Bytes of the field.
            out: Array that is written and returned where it has the shape and type of the result.
            draws: Random numbers of the sample. Without them a decoder takes the middle where it would draw.

        Returns:
            The value: `out`, if the decoder wrote to it.

        Raises:
            ValueError: The bytes are not of this kind, or damaged. Those of media also raise DecodeError, struct.error
                or av.FFmpegError for them.
            ConfigError: A library is not installed.
        """

    def check(self, codecs: Collection[str] = ()) -> None:  # noqa: B027 - most need no library
        """Raises a ConfigError if a library is missing, or does not decode one of `codecs`, by FFmpeg's names."""

    def __call__(self, content: bytes | memoryview) -> object:
        """Decodes a field outside of an epoch: without random numbers, and into new memory; errors as of `decode`."""
        return self.decode(memoryview(content))


@contextmanager
def sample_errors(where: str, passed: type[Exception] = StreamerError) -> Iterator[None]:
    """Names the sample in errors of decoders and formats that are raised inside of a `with`, which decodes its fields.

    Args:
        where: the sample, as the beginning of the message.
        passed: type of errors that are raised as they are, besides those of this package.

    Raises:
        DecodeError: a decoder or a format has refused the bytes, with whatever error.
        ConfigError: a package is not installed, or this process has too many files open.
        MemoryError: there is no memory.
        StreamerError: any other error of this package, which is raised as it is.
    """
    try:
        yield
    except DecodeError as error:
        raise DecodeError(f"{where}: {error.message}", **error.details) from error
    except (StreamerError, passed):
        raise
    except ImportError as error:
        raise explain_import_error(where, error, field="decode") from error
    except Exception as error:  # decoders, which may be the user's, and their libraries have errors of their own
        raise_shortage(error)
        raise DecodeError(f"{where}: {type(error).__name__}: {error}") from error


@cache
def library(name: str) -> ModuleType | None:
    """Imports and returns the optional module `name`, or None if it is not installed. The result is kept.

    It sets OpenCV to one thread and silences its log, for this whole process.
    """
    if name == "cv2":
        # OpenCV's log does not name the sample, but the error that a decoder raises does.
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
    """Imports and returns the module `name`; raises a ConfigError if it is not installed."""
    module = library(name)
    if module is None:
        with require_extra("decoding images", field="decode"):
            # It is imported once more for the reason: the package may be there, and lack a library of the system.
            module = importlib.import_module(name)
    return module
