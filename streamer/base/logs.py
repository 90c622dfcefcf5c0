"""The log of streamer's processes: lines of text, or with STREAMER_LOG_FORMAT=json one object per line.

The names are those of OpenTelemetry's log data model:

    timestamp         UTC, RFC 3339, microseconds
    severity_text     DEBUG, INFO, WARNING, ERROR, CRITICAL; severity_number: 5, 9, 13, 17, 21
    body              the message
    scope             its name is the logger's
    resource          service.name, service.version, service.instance.id (the process); of a rank its job and number
    attributes        thread and exception, and whatever the message has as `extra=`
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
# Attributes of every record are not `extra=`; formatters set the last two.
_STANDARD = frozenset([*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"])


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object on one line.

    Args:
        rank: job and rank of this process, if it is a trainer's.
    """

    def __init__(self, rank: Mapping[str, str | int] | None = None) -> None:
        super().__init__()
        self._resource = {"service.name": "streamer", "service.version": VERSION, **(rank or {})}

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line without its end."""
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

    Control characters in names of strangers are written out, and further lines indented: none looks like a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the lines without their end."""
        return printable(without_secrets(super().format(record)))


def severity_number(level: int) -> int:
    """Returns OpenTelemetry's number of a level of logging."""
    return next((number for least, number in _SEVERITY_NUMBERS if level >= least), _TRACE)


def configure(level: int, text: str, environment: Environment) -> None:
    """Sets up the log of a program of streamer, on standard error.

    Args:
        level: lowest level that is logged.
        text: format of lines other than JSON.
        environment: environment that names the format.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if environment.log_format == "json" else TextFormatter(text))
    logging.basicConfig(level=level, handlers=[handler])


def join_trainer(environment: Environment) -> None:
    """With STREAMER_LOG_FORMAT=json, writes streamer's log from INFO on to standard error in a trainer's process.

    Without the variable the trainer sets up the log. Idempotent.
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
    """Returns the level that STREAMER_LOG names."""
    return logging.getLevelNamesMapping().get((name or "").upper(), default)
