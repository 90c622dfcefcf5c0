"""The command line's frame: help, errors, exit codes."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from streamer.cli import exit_codes, main
from streamer.cli.exit_codes import Exit, exit_of
from streamer.cli.terminal import Terminal
from streamer.errors import (
    AccessDeniedError,
    CacheFullError,
    ConfigError,
    EngineUnavailableError,
    IntegrityError,
    ObjectNotFoundError,
    StreamerError,
)


def _arguments(error: BaseException | None = None, **values: object) -> argparse.Namespace:
    def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
        if error is not None:
            raise error
        return Exit.DONE

    return argparse.Namespace(run=run, debug=False, **values)


@pytest.mark.parametrize("command", [[], *([name] for name in main.COMMANDS)])
def test_help_teaches_with_examples_and_exit_codes(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each help shows a whole command line to copy, and what a script may rely on."""
    with pytest.raises(SystemExit) as ended:
        main.main([*command, "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"streamer {command[0] if command else 'demo'} " in text
    assert "exit codes:" in text
    assert all(meaning in text for meaning in exit_codes.MEANINGS.values())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a"), Exit.USAGE),
        (ObjectNotFoundError("a"), Exit.STORE),
        (AccessDeniedError("a"), Exit.STORE),
        (CacheFullError("a"), Exit.CACHE),
        (EngineUnavailableError("a"), Exit.ENGINE),
        (IntegrityError("a"), Exit.FAILED),
        (StreamerError("a"), Exit.FAILED),
    ],
)
def test_an_error_becomes_its_exit_code(error: StreamerError, code: Exit) -> None:
    """Scripts tell errors apart by the code."""
    assert exit_of(error) == code


def test_an_error_is_one_line_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """Also when its message has several."""
    code = main._run(_arguments(ConfigError("no such\n  folder")), Terminal())
    assert code == Exit.USAGE
    assert capsys.readouterr().err == "streamer: no such folder\n"


def test_debug_shows_the_traceback() -> None:
    """The error goes through."""
    arguments = _arguments(ConfigError("x"))
    arguments.debug = True
    with pytest.raises(ConfigError):
        main._run(arguments, Terminal())


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    """As shells have it."""
    assert main._run(_arguments(KeyboardInterrupt()), Terminal()) == 130
    assert capsys.readouterr().err == "streamer: interrupted\n"


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The user named it; frames of the library say nothing more. Code 1, as the help has it."""
    (tmp_path / "a").touch()
    error = NotADirectoryError(20, "Not a directory", f"{tmp_path}/a/manifest")
    assert main._run(_arguments(error), Terminal()) == Exit.FAILED
    assert capsys.readouterr().err == f"streamer: {tmp_path}/a/manifest: Not a directory\n"


def test_a_programming_error_is_not_hidden() -> None:
    """Only our own errors become one line."""
    with pytest.raises(ZeroDivisionError):
        main._run(_arguments(ZeroDivisionError()), Terminal())


@pytest.mark.parametrize("arguments", [["fetch"], ["index"], ["serve", "--cache-bytes", "many"], ["--nonsense"]])
def test_wrong_use_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown command, a missing url, a size that is none."""
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert ended.value.code == Exit.USAGE
    assert "usage: streamer" in capsys.readouterr().err


@pytest.mark.process
def test_help_brings_no_heavy_library() -> None:
    """`streamer --help` stays quick because of what it does not import."""
    program = (
        "import sys, contextlib, io\n"
        "from streamer.cli.main import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main(['--help'])\n"
        "heavy = {'torch', 'numpy', 'fsspec', 'aiohttp', 'rich', 'PIL', 'matplotlib', 'asyncio'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["text"], "--measure needs --cost FILE.npy"),
        (["text", "--cost", "4.2"], "--measure needs --cost FILE.npy"),
        (["text", "--cost", "own.npy"], "--cost own.npy is there and was not written by --measure"),
        (["job:nothing", "--cost", "c.npy"], "'job:nothing': No module named 'job'"),
        (["json:__name__", "--cost", "c.npy"], "'json:__name__' is not a function"),
    ],
)
def test_what_is_counted_is_checked_before_the_index(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is read or started."""
    monkeypatch.chdir(tmp_path)
    Path("own.npy").touch()
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        code = main.main(["index", "s3://nowhere/", "--measure", *options])
    except SystemExit as ended:
        code = ended.code
    assert code == Exit.USAGE
    assert message in capsys.readouterr().err
