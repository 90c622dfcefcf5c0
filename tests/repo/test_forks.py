"""`--forks`: what each test printed, how it ended, and that the tests of a file share its fixtures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SHARED = """
import os, pytest

@pytest.fixture(scope="module")
def process():
    yield os.getpid()
    print("the end of the module")

def test_first(process):
    assert process == os.getpid()

def test_second(process):
    print("printed by", __name__)
    assert process != os.getpid()
"""
ENDED = """
import os, pytest

@pytest.fixture
def bad():
    yield
    raise ValueError("its end")

def test_bad(bad):
    pass

@pytest.mark.skip(reason="no need")
def test_skipped():
    pass

def test_ends():
    os._exit(7)

def test_later():
    pass
"""


def test_tests_run_in_forks(tmp_path: Path) -> None:
    """Failures, skips and errors are those of one process; a fork that dies is the failure of its test."""
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text(SHARED)
    (tmp_path / "test_c.py").write_text(ENDED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.forks", "--forks", "2", "--rootdir", str(tmp_path)]
    ended = subprocess.run(
        [*command, "-c", "/dev/null", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "3 failed, 3 passed, 1 skipped, 1 error" in ended.stdout, ended.stdout + ended.stderr
    for said in ("printed by test_a", "printed by test_b", "ValueError: its end", "this test ended with 7"):
        assert ended.stdout.count(said) == 1, ended.stdout
