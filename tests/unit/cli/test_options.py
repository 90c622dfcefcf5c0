"""Options that commands share: sizes, rates, joins, storage options, choices of samples, and those of `serve`."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from streamer.cli import serve_command
from streamer.cli.main import build_parser
from streamer.cli.options import add_choice_to_request, parse_join, rate, size, size_or_auto, storage_options
from streamer.config import Environment
from streamer.wire.messages import GetManifest


def test_sizes_are_read_as_everywhere() -> None:
    """A size of 200GB is 2 x 10^11 bytes, 8MiB is 2^23, and auto leaves it to the engine."""
    assert size("200GB") == 200 * 10**9
    assert size("8MiB") == 8 << 20
    assert size_or_auto("auto") is None


def test_rates_are_sizes_per_second() -> None:
    """A rate is a size, with any of its units, per second."""
    assert rate("10MB/s") == 10**7
    assert rate("1GiB/s") == 2**30


@pytest.mark.parametrize("text", ["10MB", "10", "fast/s", "/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    """A size without a unit of time, and a unit of time without a size, are no rates."""
    with pytest.raises(argparse.ArgumentTypeError):
        rate(text)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("s3://b/right/:__key__", {"url": "s3://b/right/", "on": "__key__"}),
        ("s3://b/right/:json.uid=uid", {"url": "s3://b/right/", "on": ["json.uid", "uid"]}),
        ("./right:image/id", {"url": "./right", "on": "image/id"}),
        ("http://host:9000/b/:uid", {"url": "http://host:9000/b/", "on": "uid"}),
        ('{"url": "s3://b/", "on": "uid"}', {"url": "s3://b/", "on": "uid"}),
    ],
)
def test_a_join_is_a_url_and_a_key(text: str, options: dict[str, object]) -> None:
    """A join is URL:KEY, or JSON for more arguments of `join`."""
    assert parse_join(text) == options


@pytest.mark.parametrize("text", ["s3://b/right/", "right", "right:", ":uid", "http://host:9000/b/", "http://host:80"])
def test_a_join_without_a_key_is_an_error(text: str) -> None:
    """A join without a key is an error, and a port is no key."""
    with pytest.raises(argparse.ArgumentTypeError, match="names no key: write URL:KEY"):
        parse_join(text)


def test_storage_options_come_from_the_line_or_a_file(tmp_path: Path) -> None:
    """Storage options are JSON on the command line or in a file, which keeps secrets out of `ps`."""
    (tmp_path / "options.json").write_text('{"key": "k", "secret": "s"}')
    assert storage_options('{"anon": true}') == {"anon": True}
    assert storage_options(f"@{tmp_path}/options.json") == {"key": "k", "secret": "s"}


@pytest.mark.parametrize("text", ["[1]", "{", "@/nowhere/options.json"])
def test_storage_options_that_are_none_say_why(text: str) -> None:
    """Storage options that are no JSON object raise argparse's error."""
    with pytest.raises(argparse.ArgumentTypeError):
        storage_options(text)


@pytest.mark.parametrize("command", [["index"], ["warm"], ["show", "--sample", "0"]])
def test_a_manifest_is_found_by_what_the_job_says(command: list[str]) -> None:
    """--extensions, --damaged and --no-shuffle request the manifest of a job with these choices."""
    plain = build_parser().parse_args([*command, "data/"])
    assert add_choice_to_request(GetManifest(0, ["data/"], "auto"), plain) == GetManifest(0, ["data/"], "auto")
    chosen = build_parser().parse_args(
        [*command, "data/", "--extensions", ".JPEG,png", "--damaged", "skip", "--no-shuffle"]
    )
    assert add_choice_to_request(GetManifest(0, ["data/"], "auto"), chosen) == GetManifest(
        0, ["data/"], "auto", extensions=["jpg", "png"], skip_damaged=True, in_key_order=True
    )
    with pytest.raises(SystemExit):
        build_parser().parse_args([*command, "data/", "--extensions", "jpg,,png"])


def test_serve_takes_what_the_line_says_and_the_environment_otherwise(tmp_path: Path) -> None:
    """`serve` takes its options first and the environment otherwise, and has no grace time."""
    environment = Environment.read({"STREAMER_CACHE_DIR": str(tmp_path), "STREAMER_RUNTIME_DIR": "/run/x"})
    arguments = build_parser().parse_args(["serve", "--cache-bytes", "200GB", "--memory-bytes", "64MiB"])
    config = serve_command.configuration(arguments, environment)
    assert (config.cache.directory, config.cache.limit_bytes) == (tmp_path, 200 * 10**9)
    assert (config.socket_path, config.grace_seconds) == (Path("/run/x/engine.sock"), None)
    assert config.fetch.memory_bytes == 64 << 20
    arguments = build_parser().parse_args(["serve", "--socket", "/s", "--cache-dir", "/c"])
    config = serve_command.configuration(arguments, environment)
    assert (config.socket_path, config.cache.directory) == (Path("/s"), Path("/c"))


NUMBERS = {"N": "", "SECONDS": "", "USD": "", "TOKENS": "", "SIZE": "GB", "RATE": "GB/s"}
# A sample's number may be negative, and is compared with their number when the manifest is open.
ANY_NUMBER = {("show", "--sample")}
# These options are compared with other values, or the cache needs more than 0 bytes, when the command runs.
ZERO_IS_A_VALUE = {
    *(("plan", name) for name in ("--step-seconds", "--sample-seconds", "--first-byte", "--fetch-processes")),
    *(("plan", name) for name in ("--price-per-gb", "--price-per-million-gets", "--cache-bytes", "--seed")),
    *(("explain", "--seed"), ("pack", "--seed"), ("bench", "--max-bytes"), ("index", "--chunk-bytes")),
    *(("serve", name) for name in ("--cache-bytes", "--memory-bytes", "--drain-seconds")),
    ("warm", "--cache-bytes"),
}


def numeric_options() -> list[tuple[str, str, argparse.ArgumentParser, argparse.Action]]:
    """Returns the options of all commands and their groups that take a number, with the parser of each."""
    found = []
    todo: list[tuple[str, argparse.ArgumentParser]] = [("", build_parser())]
    while todo:
        name, parser = todo.pop()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                todo += [(f"{name} {each}".strip(), inner) for each, inner in action.choices.items()]
            elif action.metavar in NUMBERS or action.type in (int, float):
                found.append((name, action.option_strings[0], parser, action))
    return found


OPTIONS = numeric_options()


@pytest.mark.parametrize("option", OPTIONS, ids=[f"{option[0]} {option[1]}" for option in OPTIONS])
def test_numbers_that_are_none_are_refused_by_the_option(
    option: tuple[str, str, argparse.ArgumentParser, argparse.Action],
) -> None:
    """Each option with a number refuses a negative, an infinite and a huge one, none at all, and 0 where that is none.

    The value is refused as an error of the option before the command does anything.
    """
    command, name, parser, action = option
    unit = NUMBERS[str(action.metavar)]
    wrong = ["-1", "nan", "inf", "-inf", "1e400", "9" * 40, "9" * 5000, "", "x", "\u00b2"]
    if (command, name) in ANY_NUMBER:
        wrong.remove("-1")
        wrong.remove("9" * 40)
    elif (command, name) not in ZERO_IS_A_VALUE:
        wrong.append("0")
    for text in wrong:
        with pytest.raises(argparse.ArgumentError):
            pytest.fail(f"{name} takes {text[:50]}{unit} as {parser._get_value(action, text + unit)}")
    parser._get_value(action, f"7{unit}")


def test_the_numeric_options_are_found() -> None:
    """The options that the test above tries are those of all commands, and no exception names one that is gone."""
    names = {(command, name) for command, name, _, _ in OPTIONS}
    some = {("plan", "--first-byte"), ("bench", "--seconds"), ("serve", "--drain-seconds"), ("top", "--count")}
    assert names >= some | ANY_NUMBER | ZERO_IS_A_VALUE
