"""Errors on their way from a worker to the trainer, with the traceback of where they were raised. Free of torch."""

from __future__ import annotations

import logging
import pickle
import traceback

import cloudpickle  # type: ignore[import-untyped]

from streamer.errors import WorkerError

logger = logging.getLogger(__name__)


class RemoteTracebackError(Exception):
    """Carries a worker's traceback as text: the cause of an error that was raised there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def serialize_error(error: BaseException, limit: int) -> bytes:
    """An error with its traceback, for the pipe; one that cannot be pickled becomes a WorkerError with its text."""
    text = "".join(traceback.format_exception(error))[-limit // 4 :]
    for candidate in (error, WorkerError(f"{type(error).__name__}: {str(error)[: limit // 8]}")):
        try:
            frozen: bytes = cloudpickle.dumps((candidate, text))
            pickle.loads(frozen)  # noqa: S301 - made one line above; some errors pickle but do not come back
        except Exception:
            logger.debug("an error of type %s does not pickle", type(error).__name__, exc_info=True)
        else:
            if len(frozen) <= limit:
                return frozen
    return cloudpickle.dumps((WorkerError(f"{type(error).__name__}: its text is too long"), text))  # type: ignore[no-any-return]


def deserialize_error(frozen: bytes) -> BaseException:
    """The error as it was raised, its cause the worker's traceback as text."""
    error, text = pickle.loads(frozen)  # noqa: S301 - from this trainer's own worker (docs/architecture.md, rule 7)
    error.__cause__ = RemoteTracebackError(text)
    assert isinstance(error, BaseException)
    return error
