"""Runs the tests in forks of the process that has collected them: `--forks N`.

Processes of pytest-xdist import and collect everything once more, 12 s of CPU each, and send three messages for each
test: 60 s of `make test` (2026-11-26).
"""

from __future__ import annotations

import io
import itertools
import json
import mmap
import os
import selectors
import signal
import traceback
from collections.abc import Iterator

import pytest
from _pytest._io import TerminalWriter

_NUMBER_BYTES = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="run the tests in so many processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count: int = session.config.option.forks
    if not count or session.testsfailed or session.config.option.collectonly:
        return None
    _run(session, count)
    return True


def _run(session: pytest.Session, count: int) -> None:
    """Runs all tests; each fork takes the next file when it has come to the end of one."""
    files = [list(items) for _, items in itertools.groupby(session.items, key=lambda item: item.path)]
    folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    todo, given = os.pipe()
    os.write(given, b"".join(number.to_bytes(_NUMBER_BYTES, "little") for number in range(len(files))))
    os.close(given)
    # Which test each one runs.
    running = memoryview(mmap.mmap(-1, _NUMBER_BYTES * count)).cast("i")
    forks: dict[int, tuple[int, int]] = {}
    try:
        for number in range(count):
            reading, writing = os.pipe()
            if (pid := os.fork()) == 0:
                _be_fork(
                    session, _claimed(files, todo), writing, running[number : number + 1], folder / f"fork{number}"
                )
            os.close(writing)
            forks[reading] = pid, number
        for sender, line in _lines(list(forks)):
            if line:
                _tell(session, json.loads(line))
            else:
                pid, number = forks.pop(sender)
                if status := os.waitpid(pid, 0)[1]:
                    _tell_of_end(session, session.items[running[number]], os.waitstatus_to_exitcode(status))
            if session.shouldfail or session.shouldstop:
                while os.read(todo, 1 << 16):
                    pass
    finally:
        for pid, _ in forks.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def _lines(descriptors: list[int]) -> Iterator[tuple[int, bytes]]:
    """The lines that arrive, and at the end of each descriptor an empty one."""
    begun = dict.fromkeys(descriptors, b"")
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        while begun:
            for key, _ in selector.select():
                received = os.read(key.fd, 1 << 20)
                *lines, begun[key.fd] = (begun[key.fd] + received).split(b"\n")
                yield from ((key.fd, line) for line in lines)
                if not received:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    del begun[key.fd]
                    yield key.fd, b""


def _tell(session: pytest.Session, reports: list[dict[str, object]]) -> None:
    """Passes on the reports of one test."""
    hook = session.config.hook
    for data in reports:
        report = hook.pytest_report_from_serializable(config=session.config, data=data)
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)


def _tell_of_end(session: pytest.Session, item: pytest.Item, code: int) -> None:
    said = f"the process that ran this test ended with {code}; later tests of it were not run"
    report = pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call")
    session.config.hook.pytest_runtest_logreport(report=report)


# ---------------------------------------------------------------- in a fork


class _Reports:
    """Keeps what is sent of a test."""

    def __init__(self) -> None:
        self.of_test: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Of a test that passed its set-up and its end say nothing.
        if report.when == "call" or not report.passed:
            self.of_test.append(report)


def _claimed(files: list[list[pytest.Item]], todo: int) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """Test after test of the files that this fork takes, and the next one of each."""

    def claim() -> list[pytest.Item]:
        number = os.read(todo, _NUMBER_BYTES)
        return files[int.from_bytes(number, "little")] if number else []

    items = claim()
    while items:
        yield from itertools.pairwise(items)
        last, items = items[-1], claim()
        yield last, items[0] if items else None


def _be_fork(
    session: pytest.Session,
    tests: Iterator[tuple[pytest.Item, pytest.Item | None]],
    writing: int,
    running: memoryview[int],
    folder: os.PathLike[str],
) -> None:
    """Runs the tests, and ends this process."""
    code = 1
    try:
        config, reports = session.config, _Reports()
        places = {item: place for place, item in enumerate(session.items)}
        # Its files are shared with the other forks.
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        # Other plugins use the reporter; it is to be silent.
        config.pluginmanager.getplugin("terminalreporter")._tw = TerminalWriter(io.StringIO())
        config.pluginmanager.register(reports)
        os.mkdir(folder)
        config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
        for item, following in tests:
            running[0] = places[item]
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            to_send = [config.hook.pytest_report_to_serializable(config=config, report=r) for r in reports.of_test]
            reports.of_test.clear()
            line = memoryview(json.dumps(to_send, default=str).encode() + b"\n")
            while line:
                line = line[os.write(writing, line) :]
        code = 0
    except BaseException:  # noqa: BLE001 - the process that collects tells of it
        traceback.print_exc()
    finally:
        os._exit(code)
