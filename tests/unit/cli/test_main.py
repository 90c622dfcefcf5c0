"""The command line's frame: help, errors, exit codes, and options of earlier versions."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from streamer.cli import exit_codes, main
from streamer.cli.exit_codes import Exit, exit_of
from streamer.cli.parser import CommandParser
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
from streamer.removed import OPTIONS


def _arguments(error: BaseException | None = None, **values: object) -> argparse.Namespace:
    def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
        if error is not None:
            raise error
        return Exit.DONE

    return argparse.Namespace(run=run, debug=False, **values)


@pytest.mark.parametrize("command", [[], *([name] for name in main.COMMANDS)])
def test_help_teaches_with_examples_and_exit_codes(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each help has an example of a whole command line and the exit codes."""
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
    """Each typed error has its exit code, so that scripts can tell errors apart."""
    assert exit_of(error) == code


def test_an_error_is_one_line_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """A typed error is printed as one line without a traceback, also when its message has several lines."""
    code = main._run(_arguments(ConfigError("no such\n  folder")), Terminal())
    assert code == Exit.USAGE
    assert capsys.readouterr().err == "streamer: no such folder\n"


def test_debug_shows_the_traceback() -> None:
    """With --debug a typed error is raised with its traceback."""
    arguments = _arguments(ConfigError("x"))
    arguments.debug = True
    with pytest.raises(ConfigError, match="x"):
        main._run(arguments, Terminal())


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    """An interrupted command exits with 130, as in shells."""
    assert main._run(_arguments(KeyboardInterrupt()), Terminal()) == 130
    assert capsys.readouterr().err == "streamer: interrupted\n"


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that cannot be written is one line with its path, and exit code 1."""
    (tmp_path / "a").touch()
    error = NotADirectoryError(20, "Not a directory", f"{tmp_path}/a/manifest")
    assert main._run(_arguments(error), Terminal()) == Exit.FAILED
    assert capsys.readouterr().err == f"streamer: {tmp_path}/a/manifest: Not a directory\n"


def test_a_programming_error_is_not_hidden() -> None:
    """An error of another type than the package's is raised with its traceback."""
    with pytest.raises(ZeroDivisionError):
        main._run(_arguments(ZeroDivisionError()), Terminal())


@pytest.mark.parametrize("arguments", [["fetch"], ["index"], ["serve", "--cache-bytes", "many"], ["--nonsense"]])
def test_wrong_use_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown command, a missing url or a wrong size exits with 2 and shows the usage."""
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert ended.value.code == Exit.USAGE
    assert "usage: streamer" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["pack", "in", "--out", "out", "--join", "https://user:hunter2@host:80"],
        ["bench", "https://host/a", "https://user:hunter2@host/a?X-Amz-Signature=hunter2"],
        ["index", "in", "--chunk-bytes", "https://user:hunter2@host/a"],
    ],
    ids=lambda words: words[0],
)
def test_wrong_use_shows_no_secret(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An error about the words of a command shows their urls without logins and signatures."""
    with pytest.raises(SystemExit):
        main.main(words)
    shown = capsys.readouterr().err
    assert "https://host" in shown
    assert "hunter2" not in shown


@pytest.mark.process
def test_help_brings_no_heavy_library() -> None:
    """`streamer --help` imports no heavy library, so that it stays quick."""
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
        (["--field", "text"], "the following arguments are required: --out"),
        (["--out", "c.npy"], "one of the arguments --field --function is required"),
        (["--field", "text", "--out", "4.2"], "--out 4.2: the numbers are written to a .npy file"),
        (["--field", "text", "--out", "own.npy"], "own.npy is there and was not written by `streamer measure`"),
        (["--function", "job:nothing", "--out", "c.npy"], "'job:nothing': No module named 'job'"),
        (["--function", "json:__name__", "--out", "c.npy"], "'json:__name__' is not a function"),
        (["--function", "text", "--out", "c.npy"], "'text': write MODULE:NAME"),
    ],
)
def test_what_is_counted_is_checked_before_the_index(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Wrong options of `measure` are refused before anything is read or started."""
    monkeypatch.chdir(tmp_path)
    Path("own.npy").touch()
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert _end(["measure", "s3://nowhere/", *options]) == Exit.USAGE
    assert message in capsys.readouterr().err


def _end(words: list[str]) -> int | str | None:
    """Returns the exit code of a command line."""
    try:
        return main.main(words)
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize("command", ["", *main.COMMANDS])
def test_help_fits_a_terminal_and_names_units(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each help fits 80 columns, has its command line and explains the units of its placeholders."""
    monkeypatch.setenv("COLUMNS", "80")
    assert _end([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert f"\n  streamer {command}".rstrip() in text
    used = {action.metavar for action in commands()[command]._actions} if command else set()
    for metavar, explained in main.UNITS.items():
        assert (metavar in used) == (explained[:20] in " ".join(text.split()))


def test_an_option_has_one_meaning() -> None:
    """An option has the same placeholder and number of values in all commands, except for --out."""
    found: dict[str, set[tuple[object, object]]] = {}
    for command in commands().values():
        for action in (each for each in command._actions if each.help != argparse.SUPPRESS):
            for option in action.option_strings:
                found.setdefault(option, set()).add((action.nargs, action.metavar))
    several = {option for option, meanings in found.items() if len(meanings) > 1}
    # Where a result goes: a url of a manifest or of shards, a file.
    assert several == {"--out"}
    assert "--executor" in found
    assert "--on" not in found


def commands() -> Mapping[str, CommandParser]:
    """Returns the parsers of all commands."""
    (choices,) = (action.choices for action in main.build_parser()._actions if action.dest == "command")
    return cast("Mapping[str, CommandParser]", choices)


OLD = [
    ("index", "--on processes:2", "--executor"),
    ("index", "--on=processes:2", "--executor"),
    ("index", "--index-errors skip", "--damaged"),
    ("index", "--explain 4096", "streamer explain URL --global-batch-size N"),
    ("index", "--nodes 4", "--nodes of streamer explain"),
    ("index", "--packing 8192", "--packing of streamer explain"),
    ("index", "--measure job:count", "streamer measure URL"),
    ("index", "--cost costs.npy", "--lengths of streamer explain"),
    ("index", "--seed 3", "--seed of streamer explain"),
    ("pack", "--on processes:2", "--executor"),
    ("pack", "--source-format video", "--format"),
    ("pack", "--format parquet", "--output-format parquet"),
    ("pack", "--format=tokens", "--output-format tokens"),
    ("pack", "--format tar", "--output-format webdataset"),
    ("pack", "--shard-size 1GB", "--shard-bytes"),
    ("pack", "--vocabulary 50257", "--vocab-size"),
    ("verify", "--on processes:2", "--executor"),
    ("show", "--index-errors skip", "--damaged"),
    ("warm", "--index-errors skip", "--damaged"),
    ("plan", "--index-errors skip", "--damaged"),
    ("plan", "--on uid", "--join URL:KEY"),
    ("plan", "--json plan.json", "--json-file FILE"),
    ("bench", "--json link.json", "--json-file FILE"),
    ("bench", "--json=link.json", "--json-file FILE"),
    ("bench", "--json figures", "--json-file FILE"),
    ("bench", "--like resnet50", "python -m benchmarks.feed NAME"),
]


@pytest.mark.parametrize(("command", "old", "new"), OLD)
@pytest.mark.parametrize("is_first", [True, False])
def test_an_old_option_names_the_new_one(
    command: str, old: str, new: str, is_first: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option of an earlier version is refused with its new name, before or after the url."""
    words = [command, *old.split(), "s3://nowhere/"] if is_first else [command, "s3://nowhere/", *old.split()]
    assert _end(words) == Exit.USAGE
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"streamer {command}: error: {old.replace('=', ' ').split()[0]}")
    assert f" is now {new}" in error or new in error.partition(" is now ")[2]


def test_every_old_option_has_its_case() -> None:
    """Every option in the table of old ones has a case in this file."""
    cases = {(command, old.replace("=", " ").split()[0]) for command, old, _ in OLD}
    table = {(command, old.split()[0]) for command, row in OPTIONS.items() for old in row}
    assert cases == table


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "s3://a/", "--json"],
        ["bench", "--json", "s3://a/"],
        ["plan", "--json", "s3://a/", "--cache-bytes", "1GB", "--batch-size", "2", "--step-seconds", "1"],
        ["pack", "--format", "parquet", "s3://a/", "--out", "s3://b/", "--output-format", "webdataset"],
        ["pack", "--format", "video", "s3://a/", "--out", "s3://b/"],
        ["show", "--key", "--", "--on"],
    ],
)
def test_new_options_are_not_taken_for_old_ones(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A new option with an old one's name is accepted: `--json` is a flag, `--format` that of the source."""
    if words[0] == "show":
        assert _end(words) == Exit.USAGE
        assert "is now" not in capsys.readouterr().err
    else:
        assert main.build_parser().parse_args(words).command == words[0]


@pytest.mark.parametrize("where", ["processes", "nowhere:7"])
def test_an_executor_without_tasks_is_refused(where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`streamer verify --executor` without --every, which has no tasks, is refused, whatever the executor is."""
    assert _end(["verify", str(tmp_path), "--executor", where]) == Exit.USAGE
    assert "add --every, or leave --executor out" in " ".join(capsys.readouterr().err.split())
