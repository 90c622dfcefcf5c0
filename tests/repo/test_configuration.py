"""The configuration reference has the settings of the code: names, types, defaults, variables and options."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from pathlib import Path
from typing import Literal, NamedTuple, get_origin, get_type_hints

import pytest

from streamer.cli import serve_command
from streamer.config import (
    ENGINE_VARIABLES,
    FETCH_SETTINGS,
    SERVICE_VARIABLES,
    CacheConfig,
    DatasetConfig,
    EngineConfig,
    Environment,
    FetchConfig,
    PeersConfig,
    ServiceConfig,
    check_variables,
)
from streamer.service.configuration import read_service_config

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
SECTIONS = {
    "cache": CacheConfig,
    "fetch": FetchConfig,
    "engine": EngineConfig,
    "service": ServiceConfig,
    "peers": PeersConfig,
}
# Sections of their own, and what only an engine that a trainer starts has.
NO_SETTINGS = {"cache", "fetch", "service", "peers", "datasets", "grace_seconds", "refuse_local", "secret_files"}
# Their defaults come from the environment.
PLACES = {"directory", "socket_path"}
TYPES = {
    bool: "true or false",
    float: "seconds",
    int: "number",
    int | None: "number",
    str: "text",
    str | None: "text",
    Path: "path",
    Path | None: "path",
    tuple[Path, ...]: "list of paths",
    tuple[int, ...]: "list of numbers",
}


class Row(NamedTuple):
    """Row of the page for one setting."""

    name: str
    type: str
    default: str
    source: str
    text: str


def rows(section: str) -> list[Row]:
    """Returns the table of a section."""
    text = re.split(r"^## ", PAGE.partition(f"\n## [{section}]\n")[2], flags=re.MULTILINE)[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [Row(*(cell.strip(" `") for cell in line.strip("|").split("|"))) for line in lines]


def type_of(section: str, name: str) -> str:
    """Returns the page's word for a field's type."""
    if name.endswith("_bytes"):
        return "size"
    if name.endswith("_share"):
        return "share"
    hint = get_type_hints(SECTIONS[section])[name]
    if get_origin(hint) is Literal:
        return "text"
    assert hint in TYPES, f"give {hint} a word in TYPES, and a row in the page's table of types"
    return TYPES[hint]


ALL = [row for section in SECTIONS for row in rows(section)]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_has_a_row_and_every_row_a_setting(section: str) -> None:
    """Each section's table has the settings of its class in order, with types and explanations."""
    names = [field.name for field in fields(SECTIONS[section])]
    hidden = {"engine": NO_SETTINGS, "fetch": set(names) - set(FETCH_SETTINGS)}.get(section, set())
    settings = [name for name in names if name not in hidden]
    assert [row.name for row in rows(section)] == settings
    assert {row.name: row.type for row in rows(section)} == {name: type_of(section, name) for name in settings}
    assert [row.name for row in rows(section) if not row.text] == []


@pytest.mark.parametrize("section", SECTIONS)
def test_the_defaults_are_those_of_the_service(section: str, tmp_path: Path) -> None:
    """A file with every default of the page gives the configuration of an empty file."""
    environment = Environment.read({"HOME": str(tmp_path), "STREAMER_RUNTIME_DIR": str(tmp_path)})
    written = {row.name: row.default for row in rows(section) if row.name not in PLACES and row.default != "none"}
    file = tmp_path / "streamer.toml"
    file.write_text("\n".join([f"[{section}]", *(f"{name} = {default}" for name, default in written.items())]))
    empty = read_service_config(None, environment, {})
    assert read_service_config(file, environment, {}) == empty
    part = empty if section == "engine" else getattr(empty, section)
    assert [row.name for row in rows(section) if row.default == "none" and getattr(part, row.name) is not None] == []


def test_datasets_have_their_settings() -> None:
    """The table of [[datasets]] has the settings of its class and the file that replaces one of them."""
    text = PAGE.partition("\n## [[datasets]]\n")[2].partition("\n## ")[0]
    names = {field.name for field in fields(DatasetConfig)} | {"storage_options_file"}
    assert set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE)) == names


def test_variables_and_options_are_all_named() -> None:
    """The page names only variables that exist, all variables of the service, and all options of `serve`."""
    variables = set(re.findall(r"STREAMER_[A-Z_]+", PAGE))
    check_variables(dict.fromkeys(variables, ""))
    assert {f"STREAMER_{name}" for name in (*ENGINE_VARIABLES, *SERVICE_VARIABLES)} <= variables
    parser = argparse.ArgumentParser(add_help=False)
    serve_command.add_arguments(parser)
    options = set(re.findall(r"^ +(--[a-z-]+)", parser.format_help(), re.MULTILINE))
    assert {option for row in ALL for option in re.findall(r"--[a-z-]+", row.source)} == options - {"--config"}


@pytest.mark.parametrize("section", SECTIONS)
def test_variables_set_what_their_row_says(section: str, tmp_path: Path) -> None:
    """A value in the variable of a row arrives in the field of that row."""
    examples: dict[str, tuple[str, object]] = {
        "text": ("x", "x"),
        "path": (str(tmp_path), tmp_path),
        "list of numbers": ("7,8", (7, 8)),
    }
    for row in rows(section):
        written, read = examples.get(row.type, ("7", 7))
        for variable in re.findall(r"STREAMER_[A-Z_]+", row.source):
            config = read_service_config(None, Environment.read({"HOME": "/nowhere", variable: written}), {})
            part = config if section == "engine" else getattr(config, section)
            assert (row.name, getattr(part, row.name)) == (row.name, read)
