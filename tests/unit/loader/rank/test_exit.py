"""Objects that live until the interpreter exits, when their modules' names are gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Kept from a module that is cleared after theirs, as a library may do.
PROGRAM = """
import sys, threading
import streamer.loader.{module} as module
threading.kept = module.{made}
threading.module = module
sys.kept = [threading, module]
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "made"),
    [
        ("rank.epoch_cell", "EpochCell()"),
        ("rank.sample_iterator", "SampleIterator.__new__(module.SampleIterator)"),
        ("feed.wakeup", "Wakeup()"),
    ],
)
def test_the_exit_is_silent(module: str, made: str) -> None:
    """No 'Exception ignored in ...' at the end of a job's output."""
    program = PROGRAM.format(module=module, made=made)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
