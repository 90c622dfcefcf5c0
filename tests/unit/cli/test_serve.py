"""`streamer serve`: where its configuration comes from; no engine is started."""

import pytest

from streamer.cli import serve_command
from streamer.cli.main import build_parser, main
from streamer.config import Environment


def configured(*arguments, **variables):
    environment = Environment.read({"HOME": "/home/u", "STREAMER_RUNTIME_DIR": "/run/u", **variables})
    return serve_command.configuration(build_parser().parse_args(["serve", *arguments]), environment)


def test_the_file_is_named_by_option_or_variable(tmp_path):
    """--config precedes STREAMER_CONFIG, and an option precedes the value in the file."""
    for name, limit in (("a", "1GB"), ("b", "2GB")):
        (tmp_path / f"{name}.toml").write_text(f"[cache]\nlimit_bytes = '{limit}'")
    variables = {"STREAMER_CONFIG": str(tmp_path / "a.toml")}
    assert configured(**variables).cache.limit_bytes == 10**9
    assert configured("--config", str(tmp_path / "b.toml"), **variables).cache.limit_bytes == 2 * 10**9
    assert configured("--cache-bytes", "3GB", **variables).cache.limit_bytes == 3 * 10**9
    assert configured("--cache-bytes", "auto", **variables).cache.limit_bytes is None


def test_every_option_reaches_its_field():
    """The options for group, HTTP, drain time, socket and cache folder reach their fields of the configuration."""
    config = configured("--group", "7", "--http", "off", "--drain-seconds", "3", "--socket", "/s", "--cache-dir", "/c")
    assert (config.cache.group, config.service.http, config.service.drain_seconds) == ("7", "off", 3.0)
    assert (str(config.socket_path), str(config.cache.directory)) == ("/s", "/c")


def test_a_misspelt_variable_ends_it_before_it_starts(monkeypatch, capsys, tmp_path):
    """A misspelt variable ends `serve` with exit code 2 and its name before anything is created."""
    monkeypatch.setenv("STREAMER_CACHE_BYTE", "1GB")
    assert main(["serve", "--cache-dir", str(tmp_path / "cache")]) == 2
    assert "STREAMER_CACHE_BYTE is not a setting" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("wrong", ["[cash]", "[cache]\nsize = 3", "not toml"])
def test_a_wrong_file_ends_it_with_one_line(wrong, capsys, tmp_path):
    """A wrong configuration file ends `serve` with exit code 2 and one line."""
    (tmp_path / "s.toml").write_text(wrong)
    assert main(["serve", "--config", str(tmp_path / "s.toml")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
