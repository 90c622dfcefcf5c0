"""Sets up the log of streamer's processes: lines of text, or with STREAMER_LOG_FORMAT=json one object per line.

Commands, engines and fetch processes call `configure` at their start, and the client calls `join_trainer` in the
process of a trainer. The fields of an object have the names of OpenTelemetry's log data model:

    timestamp         UTC, RFC 3339, microseconds
    severity_text     DEBUG, INFO, WARNING, ERROR, CRITICAL
    severity_number   5, 9, 13, 17, 21
    body              the message
    scope             its name is the logger's
    resource          service.name, service.version, service.instance.id (process id); of a rank its job and number
    attributes        thread and exception, and what the call gave as `extra=`
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime

from streamer.config import Environment
from streamer.errors import printable, without_secrets
from streamer.version import VERSION

# OpenTelemetry, logs data model, "Mapping of SeverityNumber": the lowest number of each range.
_SEVERITY_NUMBERS = (
    (logging.CRITICAL, 21),
    (logging.ERROR, 17),
    (logging.WARNING, 13),
    (logging.INFO, 9),
    (logging.DEBUG, 5),
)
_TRACE = 1
# Attributes that did not come from `extra=`: those of every record, those that formatters set, and that of asyncio.
_STANDARD = frozenset([*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"])


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object on one line.

    Args:
        rank: fields of `resource` that name job and rank. None means that this is no process of a trainer.
    """

    def __init__(self, rank: Mapping[str, str | int] | None = None) -> None:
        super().__init__()
        self._resource = {"service.name": "streamer", "service.version": VERSION, **(rank or {})}

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line without its end, and without logins and signatures of urls."""
        attributes: dict[str, object] = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info and record.exc_info[0] is not None:
            kind, error, stack = record.exc_info
            attributes["exception.type"] = f"{kind.__module__}.{kind.__qualname__}"
            attributes["exception.message"] = str(error)
            attributes["exception.stacktrace"] = "".join(traceback.format_exception(kind, error, stack))
        attributes["thread.name"] = record.threadName
        line = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")[:-6] + "Z",
            "severity_text": record.levelname,
            "severity_number": severity_number(record.levelno),
            "body": record.getMessage(),
            "scope": {"name": record.name},
            "resource": {**self._resource, "service.instance.id": str(record.process)},
            "attributes": attributes,
        }
        return without_secrets(json.dumps(line, default=str))


class TextFormatter(logging.Formatter):
    """Writes a record as text, without logins and signatures of urls that another library may quote.

    Control characters are written out, and further lines are indented. So a text from outside, such as the name of an
    object, cannot look like a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the lines without their end."""
        return printable(without_secrets(super().format(record)))


def severity_number(level: int) -> int:
    """Returns OpenTelemetry's number for a level of `logging`; 1 (TRACE) below DEBUG."""
    return next((number for least, number in _SEVERITY_NUMBERS if level >= least), _TRACE)


def configure(level: int, text: str, environment: Environment) -> None:
    """Makes this process log to standard error; does nothing if its root logger has a handler already.

    Args:
        level: lowest level that is logged.
        text: format of `logging` for lines of text.
        environment: its `log_format` says whether lines are text or JSON.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if environment.log_format == "json" else TextFormatter(text))
    logging.basicConfig(level=level, handlers=[handler])


def join_trainer(environment: Environment) -> None:
    """Makes a trainer's process write streamer's log as JSON to standard error, if STREAMER_LOG_FORMAT=json is set.

    Streamer's records do not reach the trainer's own handlers then. The level is that of STREAMER_LOG, otherwise INFO.
    Without STREAMER_LOG_FORMAT this does nothing, and the trainer sets up the log. Idempotent.

    Args:
        environment: format, level, job and rank.
    """
    own = logging.getLogger("streamer")
    handlers = (*own.handlers, *logging.getLogger().handlers)
    if environment.log_format != "json" or any(isinstance(one.formatter, JsonFormatter) for one in handlers):
        return
    handler = logging.StreamHandler()
    rank = environment.rank
    handler.setFormatter(JsonFormatter({"streamer.job": rank.job, "streamer.rank": rank.rank}))
    own.addHandler(handler)
    own.setLevel(level_of(environment.log_level, logging.INFO))
    # Otherwise the trainer's own handlers would write each line again.
    own.propagate = False


def level_of(name: str | None, default: int) -> int:
    """Returns the number of the level that `name`, the value of STREAMER_LOG, has; `default` if it names no level."""
    return logging.getLevelNamesMapping().get((name or "").upper(), default)
