"""Settings of the process: glibc keeps freed memory, and the garbage collector runs rarely."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own: the setting is for the whole process and cannot be taken back.
ROUNDS = """
import resource
from streamer.base.process import keep_free_memory

kept = keep_free_memory(256 << 20)
faults = []
for _ in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [bytes(256 << 10) for _ in range(128)]
    del pieces
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(int(kept), *faults)
"""


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_second_body_costs_no_page_faults() -> None:
    """Freed memory is used again without page faults: 32 MiB in pieces of 256 KiB take 8,000 faults only once."""
    done = subprocess.run([sys.executable, "-c", ROUNDS], capture_output=True, text=True, check=True)
    kept, first, _, *later = map(int, done.stdout.split())
    assert kept == 1
    assert first > 1000
    assert max(later) < 200


RARELY = """
import gc
import streamer.fetch
from streamer.base.process import collect_rarely

gc.disable()
collect_rarely()
before = gc.get_stats()[0]["collections"]
kept = [[] for _ in range(9_000)]
print(gc.isenabled(), gc.get_freeze_count() > 10_000, gc.get_stats()[0]["collections"] - before, len(kept))
"""


@pytest.mark.process
def test_collector_looks_rarely() -> None:
    """The garbage collector makes no collection for 9,000 new containers, where Python's default makes 12."""
    done = subprocess.run([sys.executable, "-c", RARELY], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "0", "9000"]
