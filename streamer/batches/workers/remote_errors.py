"""Serializes errors of workers for the trainer, with their tracebacks. Free of torch."""

from __future__ import annotations

import logging
import pickle
import traceback

import cloudpickle  # type: ignore[import-untyped]

from streamer.errors import WorkerError

logger = logging.getLogger(__name__)


class RemoteTracebackError(Exception):
    """A worker's traceback as text: the cause of an error that was raised there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def serialize_error(error: BaseException, limit: int) -> bytes:
    """Serializes an error with its traceback; one that cannot be pickled becomes a WorkerError with its text."""
    text = "".join(traceback.format_exception(error))[-limit // 4 :]
    for candidate in (error, WorkerError(f"{type(error).__name__}: {str(error)[: limit // 8]}")):
        try:
            data: bytes = cloudpickle.dumps((candidate, text))
            pickle.loads(data)  # noqa: S301 - made one line above; some errors cannot be unpickled
        except Exception:
            logger.debug("an error of type %s does not pickle", type(error).__name__, exc_info=True)
        else:
            if len(data) <= limit:
                return data
    return cloudpickle.dumps((WorkerError(f"{type(error).__name__}: its text is too long"), text))  # type: ignore[no-any-return]


def deserialize_error(data: bytes) -> BaseException:
    """Returns the error; its cause is the worker's traceback as text."""
    error, text = pickle.loads(data)  # noqa: S301 - from this trainer's own worker (docs/architecture.md, rule 7)
    error.__cause__ = RemoteTracebackError(text)
    assert isinstance(error, BaseException)
    return error
