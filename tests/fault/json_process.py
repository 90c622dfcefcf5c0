"""A program that takes requests and gives answers, a line of JSON each."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class JsonProcess:
    """A process of a program of `tests/` that speaks JSON, and its pipes; the program imports from `tests`, too.

    Args:
        command: the program and its arguments.
        variables: of its environment, besides those of this process.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def tell(self, request: Mapping[str, Any]) -> None:
        """Sends a request to the program."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Waits for the program's next answer and returns it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process failed; its traceback is above"
        return dict(json.loads(line))

    def close(self, *, kill: bool = False) -> None:
        """Ends the program, by SIGKILL where asked, and waits for its end."""
        if kill:
            self._process.kill()
        self._process.communicate()
