"""Log lines as JSON with the names of OpenTelemetry, and the variable that asks for them."""

import json
import logging
import sys

import pytest

from streamer.base.logs import JsonFormatter, join_trainer, level_of, severity_number
from streamer.config import Environment
from streamer.errors import ConfigError
from streamer.version import VERSION


@pytest.fixture
def own():
    """The logger of streamer, restored after the test."""
    logger = logging.getLogger("streamer")
    before = logger.handlers[:], logger.level, logger.propagate
    yield logger
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def record(**more):
    """Makes a record as Python's logging does, with a message of two lines."""
    given = {"name": "streamer.fetch", "levelno": 30, "levelname": "WARNING", "msg": "%s is\nslow", "args": ("a",)}
    return logging.makeLogRecord({**given, "created": 1795440000.25, "process": 7, "threadName": "MainThread", **more})


def test_a_record_is_one_line_with_the_names_of_opentelemetry():
    """A log record is one line of JSON with the names of OpenTelemetry, even if its message has two lines."""
    line = JsonFormatter({"streamer.job": "j", "streamer.rank": 3}).format(record())
    assert "\n" not in line
    assert json.loads(line) == {
        "timestamp": "2026-11-23T13:20:00.250000Z",
        "severity_text": "WARNING",
        "severity_number": 13,
        "body": "a is\nslow",
        "scope": {"name": "streamer.fetch"},
        "resource": {
            "service.name": "streamer",
            "service.version": VERSION,
            "service.instance.id": "7",
            "streamer.job": "j",
            "streamer.rank": 3,
        },
        "attributes": {"thread.name": "MainThread"},
    }


def test_what_a_message_has_as_extra_and_its_exception_are_attributes():
    """The extra fields of a record and its exception become attributes; figures stay numbers, the stack is one text."""
    try:
        raise ConfigError("no", field="x")
    except ConfigError:
        found = json.loads(JsonFormatter().format(record(exc_info=sys.exc_info(), **{"streamer.stall.share": 0.5})))
    attributes = found["attributes"]
    assert attributes["streamer.stall.share"] == 0.5
    assert attributes["exception.type"] == "streamer.errors.ConfigError"
    assert attributes["exception.message"].startswith("no")
    assert attributes["exception.stacktrace"].count("\n") > 2


def test_levels_have_the_numbers_of_opentelemetry():
    """Each level of Python has the first number of its range in OpenTelemetry, a level between two the lower one's."""
    assert [severity_number(level) for level in (5, 10, 20, 25, 30, 40, 50)] == [1, 5, 9, 9, 13, 17, 21]
    assert (level_of("debug", 30), level_of(None, 30), level_of("loud", 20)) == (10, 30, 20)


def test_a_trainer_gets_lines_of_json_only_if_it_asks_for_them(own, capsys):
    """A trainer's logger writes JSON from INFO on, one line a record, only if STREAMER_LOG_FORMAT asks for it."""
    before = own.handlers[:]
    join_trainer(Environment.read({"HOME": "/"}))
    assert own.handlers == before
    environment = Environment.read({"STREAMER_LOG_FORMAT": "json", "STREAMER_JOB": "j", "RANK": "1", "WORLD_SIZE": "2"})
    for _ in range(2):
        join_trainer(environment)
    logging.getLogger("streamer.loader").info("half")
    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert (line["body"], line["resource"]["streamer.rank"], line["resource"]["streamer.job"]) == ("half", 1, "j")


def test_another_format_is_refused():
    """An unknown format of log lines is refused by an error that names STREAMER_LOG_FORMAT."""
    with pytest.raises(ConfigError, match=r"STREAMER_LOG_FORMAT='xml'"):
        Environment.read({"STREAMER_LOG_FORMAT": "xml"})
