"""Tests of objects that live until the interpreter exits, when their modules' names are gone.

A real process ends so.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

# Kept from a module that is cleared after theirs, as a library may do.
PROGRAM = """
import sys, threading
from streamer.base import linux
from streamer.loader.rank import sample_iterator
from streamer.loader import epoch_cell
iterator = sample_iterator.SampleIterator
threading.kept = [epoch_cell.EpochCell(), iterator.__new__(iterator), linux.Wakeup()]
threading.modules = [epoch_cell, sample_iterator, linux]
sys.kept = [threading, threading.modules]
"""


@pytest.mark.slow
@pytest.mark.process
def test_the_exit_is_silent() -> None:
    """Objects that outlive their modules print no 'Exception ignored in ...' when the interpreter exits."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
